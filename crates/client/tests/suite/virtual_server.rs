//! A server on virtual time: a fixed window, or responses that a test defines.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tower::Service;

pub type Body = Full<Bytes>;

/// The response to the n-th request, from 0, at a time since the start of the server.
type Responses = Arc<dyn Fn(usize, Duration) -> Response<Body> + Send + Sync>;

#[derive(Clone)]
pub struct VirtualServer {
    responses: Responses,
    seen: Arc<Mutex<Seen>>,
    started: Instant,
    /// How long a response takes.
    pub latency: Duration,
}

#[derive(Default)]
struct Seen {
    /// When each request came, and the status of its response.
    requests: Vec<(Duration, StatusCode)>,
    headers: Vec<HeaderMap>,
}

impl VirtualServer {
    pub fn new(responses: impl Fn(usize, Duration) -> Response<Body> + Send + Sync + 'static) -> Self {
        let latency = Duration::from_millis(20);
        Self { responses: Arc::new(responses), seen: Arc::default(), started: Instant::now(), latency }
    }

    /// A server that admits `limit` requests in each window of `window` seconds, with the headers of the IETF draft.
    pub fn windowed(limit: u64, window: u64) -> Self {
        let used = Mutex::new((0, 0));
        Self::new(move |_, at| {
            let mut used = used.lock();
            let index = at.as_secs() / window;
            if used.0 != index {
                *used = (index, 0);
            }
            let left = (Duration::from_secs((index + 1) * window) - at).as_secs_f64().ceil();
            let admitted = used.1 < limit;
            used.1 += u64::from(admitted);
            let mut answer = answer(if admitted { 200 } else { 429 })
                .header("ratelimit-policy", format!("\"w\";q={limit};w={window}"))
                .header("ratelimit", format!("\"w\";r={};t={left}", limit - used.1));
            if !admitted {
                answer = answer.header("retry-after", left.to_string());
            }
            answer.body(Body::default()).unwrap()
        })
    }

    /// When requests came, in milliseconds, and the status of their responses.
    pub fn seen(&self) -> Vec<(u128, u16)> {
        self.seen.lock().requests.iter().map(|(at, status)| (at.as_millis(), status.as_u16())).collect()
    }

    pub fn count(&self, status: u16) -> usize {
        self.seen().iter().filter(|(_, seen)| *seen == status).count()
    }

    pub fn headers(&self) -> Vec<HeaderMap> {
        self.seen.lock().headers.clone()
    }
}

impl<B> Service<Request<B>> for VirtualServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut seen = self.seen.lock();
        let at = self.started.elapsed();
        let answer = (self.responses)(seen.requests.len(), at);
        seen.requests.push((at, answer.status()));
        seen.headers.push(request.headers().clone());
        let latency = self.latency;
        Box::pin(async move {
            sleep(latency).await;
            Ok(answer)
        })
    }
}

pub fn answer(status: u16) -> http::response::Builder {
    Response::builder().status(status)
}

pub fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::default()).unwrap()
}
