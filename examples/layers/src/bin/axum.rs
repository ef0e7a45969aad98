//! An axum service behind a limit.
//!
//! `cargo run -p tollgate-example-layers --bin axum`, then
//! `for i in 1 2 3 4; do curl -i http://127.0.0.1:3000/hello; done`: the fourth is a 429.

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use std::error::Error;
use std::net::SocketAddr;
use tollgate_http::RateLimitLayer;
use tower::Layer;

/// Three requests a minute by API key, or by address without one.
const RULES: &str = "rules: [{ id: hello, endpoint: /hello, limit: 3/min }]";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = tollgate_example_layers::limiter(RULES)?;

    // axum keeps the peer's address in an extension of the request (see `into_make_service_with_connect_info` below).
    let layer = RateLimitLayer::new(limiter)
        .peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));

    let app = Router::new().route("/hello", get(|| async { "Hello!\n" }));

    // The layer is around the router, so that the router gets the path that the rules were matched against. `app.layer(layer)`
    // works as well.
    let app = Router::new().fallback_service(layer.layer(app));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
