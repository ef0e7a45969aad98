//! A real server over a real connection, with the headers that Tollgate writes.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tollgate_client::ThrottleLayer;
use tower::{Layer, ServiceExt};

/// Serves two requests a second and refuses the rest.
async fn serve() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let refused = Arc::new(AtomicU64::new(0));
    let (count, started) = (Arc::clone(&refused), Instant::now());
    let used = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (count, used) = (Arc::clone(&count), Arc::clone(&used));
            let service = service_fn(move |_| {
                let second = started.elapsed().as_secs();
                if used.0.swap(second, Ordering::Relaxed) != second {
                    used.1.store(0, Ordering::Relaxed);
                }
                let number = used.1.fetch_add(1, Ordering::Relaxed);
                let answer = Response::builder()
                    .header("x-ratelimit-limit", "2")
                    .header("x-ratelimit-remaining", 2_u64.saturating_sub(number + 1).to_string())
                    .header("x-ratelimit-reset", "1")
                    .header("ratelimit-policy", "\"api\";q=2;w=1")
                    .header("ratelimit", format!("\"api\";r={};t=1", 2_u64.saturating_sub(number + 1)));
                let answer = if number < 2 {
                    answer.body(Full::new(Bytes::from_static(b"hello")))
                } else {
                    count.fetch_add(1, Ordering::Relaxed);
                    answer.status(429).header("retry-after", "1").body(Full::default())
                };
                async move { Ok::<_, Infallible>(answer.unwrap()) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, refused)
}

#[tokio::test]
async fn all_requests_are_answered_in_the_end() {
    let (address, refused) = serve().await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = ThrottleLayer::default().layer(client);
    let started = Instant::now();
    for _ in 0..5 {
        let request = Request::get(format!("http://{address}/hello")).body(Full::default()).unwrap();
        let response = client.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    }
    let took = started.elapsed();
    assert!((Duration::from_millis(1_500)..Duration::from_secs(10)).contains(&took), "{took:?}");
    // No request is sent that would be refused, unless the machine is late.
    assert!(refused.load(Ordering::Relaxed) <= 1);
}
