//! The sample upstream: an API that answers every request with a line of JSON.

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_http::{FullResponse, response};
use tollgate_listen::{ListenerSetup, ServeOptions, serve};

/// What a response takes, so that the latencies of the gateway look like those of a real one.
const WORK: Duration = Duration::from_millis(2);

/// Begins to serve on a free port.
pub async fn start() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let service = |_| service_fn(respond);
    let (setup, options) = (ListenerSetup::default(), ServeOptions::default());
    tokio::spawn(serve(listener, setup, service, std::future::pending(), options));
    Ok(address)
}

async fn respond(request: Request<Incoming>) -> Result<FullResponse, Infallible> {
    tokio::time::sleep(WORK).await;
    let path = serde_json::Value::from(request.uri().path());
    Ok(response::content("application/json", format!("{{\"path\":{path}}}\n").into_bytes()))
}
