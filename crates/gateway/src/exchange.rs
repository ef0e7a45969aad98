//! The exchange of a request for a response: one attempt, and retries on other servers where that is safe.

mod attempt;
mod request_copy;

use crate::access_log::RequestTrace;
use crate::body::{RoutedBody, UploadBody, UploadClient, UploadProgress};
use crate::client_gone::{FinishGuard, FinishingExchange};
use crate::forward::{ForwardContext, PreparedRequest, RoutedResponse};
use crate::forward_error::ForwardError;
use crate::metrics::UpstreamErrorKind;
use crate::route_table::UpstreamIndex;
use crate::settings::{OnClientGone, UpstreamSettings};
use crate::upstream::connect::ConnectError;
use crate::upstream::health::ServerFailure;
use crate::upstream::pool::PooledConnection;
use crate::upstream::{ActiveRequest, TriedServers};
use attempt::{Attempt, AttemptOutcome, SendResult, record_failure};
use http::{Request, Response};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// A request until its response begins.
pub(crate) type ForwardFuture = Pin<Box<dyn Future<Output = Result<RoutedResponse, Infallible>> + Send>>;

/// A server's response and the connection it arrives on.
type UpstreamResponse = (Response<Incoming>, PooledConnection);

pin_project! {
    /// A request that was sent, until its response begins.
    ///
    /// A future written by hand is smaller than an `async` block: what only failures need is boxed.
    pub(crate) struct Exchange<F> {
        #[pin]
        sending: F,
        context: Arc<ForwardContext>,
        prepared: Option<PreparedRequest>,
        // `None` once the outcome of the first attempt is known.
        first: Option<(RetryState, Attempt)>,
        // The retries after a failed first attempt.
        retrying: Option<Pin<Box<dyn Future<Output = Result<UpstreamResponse, ForwardError>> + Send>>>,
    }
}

impl Exchange<()> {
    /// Starts the exchange. With an idle connection the request is sent before this returns.
    pub(crate) fn start(
        context: &Arc<ForwardContext>,
        request: Request<Incoming>,
        prepared: PreparedRequest,
    ) -> ForwardFuture {
        let on_client_gone = context.upstream(&prepared).settings.on_client_gone;
        let permit = prepared.permit.clone().filter(|_| on_client_gone == OnClientGone::Finish);
        let exchange = Self::send(context, request, prepared);
        match permit {
            None => exchange,
            Some(permit) => {
                Box::pin(FinishingExchange::new(exchange, FinishGuard::new(permit, &context.finish_limit)))
            }
        }
    }

    fn send(
        context: &Arc<ForwardContext>,
        request: Request<Incoming>,
        prepared: PreparedRequest,
    ) -> ForwardFuture {
        let upstream = context.upstream(&prepared);
        upstream.retry_budget.deposit();
        let (mut retry, request) = RetryState::new(&upstream.settings, request, context, &prepared);
        let active = match retry.select_server(context) {
            Ok(active) => active,
            Err(error) => {
                let response = RoutedBody::wrap(error.response(), prepared.route);
                return Box::pin(std::future::ready(Ok(response)));
            }
        };
        let context = Arc::clone(context);
        let Some(acquired) = context.pool.acquire_idle(active.server().index) else {
            return Box::pin(async move {
                let result = send_with_retries(Arc::clone(&context), retry, request, Some(active));
                Ok(conclude(&context, prepared, result.await))
            });
        };
        let now = retry.attempt_start;
        let (attempt, sending) = Attempt::send(acquired, active, upstream, &retry, request, now);
        Box::pin(Exchange {
            sending,
            context,
            prepared: Some(prepared),
            first: Some((retry, attempt)),
            retrying: None,
        })
    }
}

impl<F: Future<Output = SendResult>> Future for Exchange<F> {
    type Output = Result<RoutedResponse, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const POLLED_AFTER_READY: &str = "a future is not polled after it was ready";
        let mut this = self.project();
        let result = loop {
            if let Some(retrying) = this.retrying {
                break ready!(retrying.as_mut().poll(cx));
            }
            let prepared = this.prepared.as_ref().expect(POLLED_AFTER_READY);
            let upstream = this.context.upstream(prepared);
            let (retry, attempt) = this.first.as_mut().expect(POLLED_AFTER_READY);
            let sent = ready!(attempt.poll_sent(this.sending.as_mut(), upstream, retry, cx));
            let (mut retry, attempt) = this.first.take().expect("it was polled just now");
            match attempt.finish(&mut retry, upstream, this.context, sent) {
                AttemptOutcome::Done(result) => break result,
                AttemptOutcome::Retry(request) => {
                    let context = Arc::clone(this.context);
                    let retrying = send_with_retries(context, retry, *request, None);
                    *this.retrying = Some(Box::pin(retrying));
                }
            }
        };
        let prepared = this.prepared.take().expect(POLLED_AFTER_READY);
        Poll::Ready(Ok(conclude(this.context, prepared, result)))
    }
}

fn conclude(
    context: &ForwardContext,
    prepared: PreparedRequest,
    result: Result<UpstreamResponse, ForwardError>,
) -> RoutedResponse {
    let (route, upstream) = (prepared.route, prepared.upstream);
    let response = result.and_then(|(response, connection)| {
        let relayed = context.relay(response, connection, prepared);
        // A response that cannot be relayed is invalid.
        relayed.inspect_err(|_| context.counters.upstream(upstream).record_error(UpstreamErrorKind::Protocol))
    });
    RoutedBody::wrap(response.unwrap_or_else(|error| error.response()), route)
}

/// Sends the request to a server, and to others as long as a retry is safe. `first` is the server to begin with, if it
/// was already selected.
async fn send_with_retries(
    context: Arc<ForwardContext>,
    mut retry: RetryState,
    mut request: Request<UploadBody>,
    mut first: Option<ActiveRequest>,
) -> Result<UpstreamResponse, ForwardError> {
    let upstream = &context.state.upstreams[retry.upstream];
    loop {
        let active = match first.take() {
            Some(active) => active,
            None => {
                retry.attempt_start = Instant::now();
                retry.select_server(&context)?
            }
        };
        let acquired = match context.pool.acquire(active.server(), &upstream.settings).await {
            Ok(acquired) => acquired,
            Err(error) => {
                context.counters.upstream(retry.upstream).record_error(error_kind(&error));
                if !error.is_local() {
                    record_failure(upstream, active.server(), ServerFailure::Unreachable, &error);
                }
                retry.record_attempt_end();
                if retry.may_retry(&context) {
                    continue;
                }
                return Err(ForwardError::Unreachable);
            }
        };
        let now = Instant::now();
        let (mut attempt, sending) = Attempt::send(acquired, active, upstream, &retry, request, now);
        let mut sending = pin!(sending);
        let sent = poll_fn(|cx| attempt.poll_sent(sending.as_mut(), upstream, &retry, cx)).await;
        match attempt.finish(&mut retry, upstream, &context, sent) {
            AttemptOutcome::Done(result) => return result,
            AttemptOutcome::Retry(again) => request = *again,
        }
    }
}

fn error_kind(error: &ConnectError) -> UpstreamErrorKind {
    match error {
        error if error.is_local() => UpstreamErrorKind::Local,
        ConnectError::Timeout => UpstreamErrorKind::ConnectTimeout,
        ConnectError::Io(_) | ConnectError::Handshake(_) => UpstreamErrorKind::Connect,
    }
}

/// What is kept of a request for as long as it may be retried.
#[derive(Debug)]
struct RetryState {
    upstream: UpstreamIndex,
    /// When the last attempt began. The time to connect is a part of it.
    attempt_start: Instant,
    tried: TriedServers,
    retries_left: u32,
    repeatable: Repeatable,
    progress: Option<Arc<UploadProgress>>,
    client: IpAddr,
    deadline: Option<Instant>,
    trace: Option<Arc<RequestTrace>>,
}

/// Whether a request may be sent again after a server may have seen it: only if it is idempotent and has no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeatable {
    Yes,
    No,
}

impl RetryState {
    fn new(
        settings: &UpstreamSettings,
        request: Request<Incoming>,
        context: &ForwardContext,
        prepared: &PreparedRequest,
    ) -> (Self, Request<UploadBody>) {
        let mut progress = None;
        let client = || UploadClient {
            version: prepared.version,
            min_rate: prepared.bodies.min_rate,
            peer: Arc::clone(&context.peer),
            reserved: Arc::clone(&context.reserved),
            on_client_gone: match prepared.permit {
                Some(_) => settings.on_client_gone,
                None => OnClientGone::Cancel,
            },
            counters: Arc::clone(&context.counters),
            trace: prepared.trace.clone(),
        };
        let request = request.map(|body| {
            let (body, upload_progress) = UploadBody::new(body, client);
            progress = upload_progress;
            body
        });
        let is_repeatable = progress.is_none() && request.method().is_idempotent();
        let retry = Self {
            upstream: prepared.upstream,
            attempt_start: Instant::now(),
            tried: TriedServers::default(),
            retries_left: settings.retries,
            repeatable: if is_repeatable { Repeatable::Yes } else { Repeatable::No },
            progress,
            client: prepared.client,
            deadline: prepared.deadline,
            trace: prepared.trace.clone(),
        };
        (retry, request)
    }

    /// Selects the server of the next attempt.
    fn select_server(&mut self, context: &ForwardContext) -> Result<ActiveRequest, ForwardError> {
        let Some(active) = context.state.upstreams[self.upstream].select(&self.tried) else {
            context.counters.upstream(self.upstream).record_error(UpstreamErrorKind::NoHealthyServer);
            return Err(ForwardError::NoHealthyServer);
        };
        self.tried.add(active.server());
        if let Some(trace) = &self.trace {
            trace.record_server(active.server());
        }
        Ok(active)
    }

    /// The head of the response has arrived, or the attempt has failed. Returns how long the attempt took.
    fn record_attempt_end(&self) -> Duration {
        let time = self.attempt_start.elapsed();
        if let Some(trace) = &self.trace {
            trace.record_attempt_end(time);
        }
        time
    }

    /// `at`, or the deadline of the request if that is earlier.
    fn bounded(&self, at: Instant) -> Instant {
        self.deadline.map_or(at, |deadline| at.min(deadline))
    }

    fn is_past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether another retry is allowed; if so, it is counted and charged to the budget.
    fn may_retry(&mut self, context: &ForwardContext) -> bool {
        let may = self.retries_left > 0 && context.state.upstreams[self.upstream].retry_budget.withdraw();
        self.retries_left = self.retries_left.saturating_sub(1);
        if may {
            context.counters.upstream(self.upstream).record_retry();
        }
        may
    }
}
