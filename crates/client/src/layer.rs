//! The tower layer.

use crate::advice::Advice;
use crate::clock;
use crate::error::{Error, Throttled};
use crate::keys::Keys;
use crate::pace::PaceSettings;
use crate::repeat::Repeat;
use crate::retry::{Budget, RetrySettings, asks_for_retry, is_repeatable};
use http::request::Parts;
use http::{Request, Response};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::{Instant, sleep};
use tower_layer::Layer;
use tower_service::Service;

/// Keeps a client to the limits that servers state, and sends again what was refused, if that is safe.
///
/// All services that one layer makes, and their clones, share what they know of servers and the budget for retries.
#[derive(Clone)]
pub struct ThrottleLayer {
    shared: Arc<Shared>,
}

/// A client with a [`ThrottleLayer`] around it.
///
/// It is always ready: the client inside is asked when the request's turn has come, so that one that waits keeps no
/// place from others.
#[derive(Clone)]
pub struct Throttle<S> {
    client: S,
    shared: Arc<Shared>,
}

type KeyOf = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

struct Shared {
    pace: PaceSettings,
    retry: RetrySettings,
    key_of: KeyOf,
    keys: Keys,
    budget: Budget,
}

impl Default for ThrottleLayer {
    fn default() -> Self {
        Self::new(PaceSettings::default(), RetrySettings::default())
    }
}

impl ThrottleLayer {
    /// A layer with these settings. Limits are kept for each authority: host and port.
    pub fn new(pace: PaceSettings, retry: RetrySettings) -> Self {
        Self::with_key(pace, retry, authority)
    }

    /// The same for limits that go by something else: what has the same key shares what is known. If a server
    /// limits by the API key and by path, the key is made of both.
    pub fn with_key(
        pace: PaceSettings,
        retry: RetrySettings,
        key_of: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        let budget = Budget::new(&retry);
        Self {
            shared: Arc::new(Shared { pace, retry, key_of: Arc::new(key_of), keys: Keys::default(), budget }),
        }
    }
}

/// Host and port of a request.
fn authority(parts: &Parts) -> String {
    let host = || parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    let authority = parts.uri.authority().map(|authority| authority.as_str()).or_else(host);
    authority.unwrap_or_default().to_ascii_lowercase()
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = Throttle<S>;

    fn layer(&self, client: S) -> Throttle<S> {
        Throttle { client, shared: Arc::clone(&self.shared) }
    }
}

impl<S, B, R> Service<Request<B>> for Throttle<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Repeat + Send + 'static,
    R: Send,
{
    type Response = Response<R>;
    type Error = Error<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, Error<S::Error>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (client, shared) = (self.client.clone(), Arc::clone(&self.shared));
        Box::pin(async move { shared.send(client, request).await })
    }
}

impl Shared {
    /// Sends a request when its turn has come, and again while that is asked for and allowed.
    async fn send<S, B, R>(&self, mut client: S, request: Request<B>) -> Result<Response<R>, Error<S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>>,
        B: Repeat,
    {
        let (parts, body) = request.into_parts();
        let started = Instant::now();
        let known = self.keys.get(&(self.key_of)(&parts), started, &self.pace);
        let is_repeatable = self.retry.attempts > 1 && is_repeatable(&parts);
        let mut request = Request::from_parts(parts, body);
        let mut refused: Option<Response<R>> = None;
        self.budget.earn();
        for attempt in 1.. {
            let deadline = match &refused {
                None => Instant::now() + self.pace.longest_wait,
                Some(_) => started + self.retry.total,
            };
            let under_way = match (known.turn(deadline, &self.pace).await, refused.take()) {
                (Ok(under_way), _) => under_way,
                // Whoever has an answer gets that.
                (Err(_), Some(response)) => return Ok(response),
                (Err(retry_after), None) => return Err(Error::Throttled(Throttled { retry_after })),
            };
            let again = if is_repeatable && attempt < self.retry.attempts { repeat(&request) } else { None };
            poll_fn(|context| client.poll_ready(context)).await?;
            let response = client.call(request).await?;
            let is_refusal = asks_for_retry(response.status());
            let advice = Advice::read(response.headers(), clock::now());
            under_way.answered(&advice, is_refusal, &self.pace);
            let Some(again) = again.filter(|_| is_refusal) else { return Ok(response) };
            let wait = self.retry.wait(attempt + 1, advice.retry_after);
            if started.elapsed().saturating_add(wait) > self.retry.total || !self.budget.spend() {
                return Ok(response);
            }
            sleep(wait).await;
            request = again;
            refused = Some(response);
        }
        unreachable!("the last attempt has no other after it")
    }
}

/// The same request once more, if its body can be sent again.
fn repeat<B: Repeat>(request: &Request<B>) -> Option<Request<B>> {
    let mut again = Request::new(request.body().repeat()?);
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    Some(again)
}

impl fmt::Debug for ThrottleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

impl<S> fmt::Debug for Throttle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle")
            .field("pace", &self.pace)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
