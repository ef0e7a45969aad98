//! A server on virtual time: a fixed window, and answers that a test writes.

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

/// What a server answers to the n-th request, from 0, at a time since its start.
type Answers = Arc<dyn Fn(usize, Duration) -> Response<Body> + Send + Sync>;

#[derive(Clone)]
pub struct Server {
    answers: Answers,
    seen: Arc<Mutex<Seen>>,
    started: Instant,
    /// How long an answer takes.
    pub latency: Duration,
}

#[derive(Default)]
struct Seen {
    /// When each request came, and what became of it.
    requests: Vec<(Duration, StatusCode)>,
    headers: Vec<HeaderMap>,
}

impl Server {
    pub fn new(answers: impl Fn(usize, Duration) -> Response<Body> + Send + Sync + 'static) -> Self {
        let latency = Duration::from_millis(20);
        Self { answers: Arc::new(answers), seen: Arc::default(), started: Instant::now(), latency }
    }

    /// `limit` requests in each window of so many seconds, with the headers of the IETF draft.
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

    /// When requests came, in milliseconds, and with what status they were answered.
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

impl<B> Service<Request<B>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut seen = self.seen.lock();
        let at = self.started.elapsed();
        let answer = (self.answers)(seen.requests.len(), at);
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
