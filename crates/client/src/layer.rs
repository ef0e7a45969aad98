//! The tower layer: waits, sends, and retries.

use crate::clock;
use crate::error::{ThrottleError, Throttled};
use crate::pace::PaceSettings;
use crate::pacer::PacerTable;
use crate::repeat_body::RepeatBody;
use crate::response_limits::ResponseLimits;
use crate::retry::{RetrySettings, ServerOutcome, is_idempotent};
use crate::retry_budget::ClientRetryBudget;
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

/// Keeps a client to the limits that servers state, and retries refused requests where that is safe.
///
/// All services of one layer, and their clones, share the known limits and the budget for retries.
#[derive(Clone)]
pub struct ThrottleLayer {
    core: Arc<ThrottleCore>,
}

/// A client with a [`ThrottleLayer`] around it.
///
/// It is always ready: the readiness of the inner client is awaited just before a request is sent, so that a request
/// that waits for its limit occupies nothing there.
#[derive(Clone)]
pub struct Throttle<S> {
    client: S,
    core: Arc<ThrottleCore>,
}

type KeyOf = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

struct ThrottleCore {
    pace: PaceSettings,
    retry: RetrySettings,
    key_of: KeyOf,
    pacers: PacerTable,
    budget: ClientRetryBudget,
}

impl Default for ThrottleLayer {
    fn default() -> Self {
        Self::new(PaceSettings::default(), RetrySettings::default())
    }
}

impl ThrottleLayer {
    /// A layer with these settings. Limits are tracked per authority: host and port.
    pub fn new(pace: PaceSettings, retry: RetrySettings) -> Self {
        Self::with_key(pace, retry, authority)
    }

    /// A layer that tracks limits per key instead: requests with the same key share a limit. If a server limits by API
    /// key and path, the key consists of both.
    pub fn with_key(
        pace: PaceSettings,
        retry: RetrySettings,
        key_of: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        let budget = ClientRetryBudget::new(&retry);
        Self {
            core: Arc::new(ThrottleCore {
                pace,
                retry,
                key_of: Arc::new(key_of),
                pacers: PacerTable::default(),
                budget,
            }),
        }
    }
}

/// The host and port of a request, in lower case.
fn authority(parts: &Parts) -> String {
    let host = || parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    let authority = parts.uri.authority().map(|authority| authority.as_str()).or_else(host);
    authority.unwrap_or_default().to_ascii_lowercase()
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = Throttle<S>;

    fn layer(&self, client: S) -> Throttle<S> {
        Throttle { client, core: Arc::clone(&self.core) }
    }
}

impl<S, B, R> Service<Request<B>> for Throttle<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: RepeatBody + Send + 'static,
    R: Send,
{
    type Response = Response<R>;
    type Error = ThrottleError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, ThrottleError<S::Error>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (client, core) = (self.client.clone(), Arc::clone(&self.core));
        Box::pin(async move { core.send(client, request).await })
    }
}

impl ThrottleCore {
    /// Sends a request when its pace allows, and again while the server refuses it and a retry is allowed.
    async fn send<S, B, R>(
        &self,
        mut client: S,
        request: Request<B>,
    ) -> Result<Response<R>, ThrottleError<S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>>,
        B: RepeatBody,
    {
        let (parts, body) = request.into_parts();
        let started = Instant::now();
        let pacer = self.pacers.get(&(self.key_of)(&parts), started, &self.pace);
        let is_idempotent = is_idempotent(&parts);
        let mut request = Request::from_parts(parts, body);
        let mut refused: Option<Response<R>> = None;
        let mut attempt = 1;
        self.budget.earn();
        loop {
            let deadline = match &refused {
                None => Instant::now() + self.pace.max_wait,
                Some(_) => started + self.retry.total,
            };
            let paced = match (pacer.wait_to_send(deadline, &self.pace).await, refused.take()) {
                (Ok(paced), _) => paced,
                // Without time for a retry, the refusal of the server is the response.
                (Err(_), Some(response)) => return Ok(response),
                (Err(retry_after), None) => return Err(ThrottleError::Throttled(Throttled { retry_after })),
            };
            let again = if is_idempotent && attempt < self.retry.attempts { repeat(&request) } else { None };
            poll_fn(|context| client.poll_ready(context)).await?;
            let response = client.call(request).await?;
            let outcome = ServerOutcome::of(response.status());
            let limits = ResponseLimits::read(response.headers(), clock::now());
            paced.end(&limits, outcome, &self.pace);
            let Some(again) = again.filter(|_| outcome == ServerOutcome::Refused) else {
                return Ok(response);
            };
            attempt += 1;
            let wait = self.retry.backoff(attempt, limits.retry_after);
            if started.elapsed().saturating_add(wait) > self.retry.total || !self.budget.try_spend() {
                return Ok(response);
            }
            sleep(wait).await;
            request = again;
            refused = Some(response);
        }
    }
}

/// A copy of the request, if its body can be sent again.
fn repeat<B: RepeatBody>(request: &Request<B>) -> Option<Request<B>> {
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
        self.core.fmt(f)
    }
}

impl<S> fmt::Debug for Throttle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl fmt::Debug for ThrottleCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle")
            .field("pace", &self.pace)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
