//! One attempt: a request on one connection, and what follows from its outcome.

use super::request_copy::RequestCopy;
use super::{Repeatable, RetryState, UpstreamResponse};
use crate::body::UploadBody;
use crate::forward::ForwardContext;
use crate::forward_error::ForwardError;
use crate::metrics::UpstreamErrorKind;
use crate::upstream::health::ServerFailure;
use crate::upstream::pool::{AcquiredConnection, ConnectionUse, PooledConnection, UpstreamConnection};
use crate::upstream::{ActiveRequest, Upstream, UpstreamServer};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// What hyper makes of a request. The error has the request if nothing of it was sent.
pub(super) type SendResult = Result<Response<Incoming>, TrySendError<Request<UploadBody>>>;

/// A request that was handed to a connection.
#[derive(Debug)]
pub(super) struct Attempt {
    connection: UpstreamConnection,
    active: ActiveRequest,
    usage: ConnectionUse,
    /// The frames of the upload at the last look.
    frames: u32,
    copy: Option<RequestCopy>,
}

/// What follows from an attempt.
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large variant, and are moved only once")]
pub(super) enum AttemptOutcome {
    Done(Result<UpstreamResponse, ForwardError>),
    Retry(Box<Request<UploadBody>>),
}

impl Attempt {
    /// Sends the request at `now`.
    pub(super) fn send(
        acquired: AcquiredConnection,
        active: ActiveRequest,
        upstream: &Upstream,
        retry: &RetryState,
        request: Request<UploadBody>,
        now: Instant,
    ) -> (Self, impl Future<Output = SendResult> + use<>) {
        let AcquiredConnection { mut connection, usage } = acquired;
        let copy = (retry.repeatable == Repeatable::Yes).then(|| RequestCopy::of(&request));
        let sending = connection.sender.try_send_request(request);
        let deadline = retry.bounded(now + upstream.settings.response_time);
        connection.response_deadline.as_mut().reset(deadline);
        (Self { connection, active, usage, frames: 0, copy }, sending)
    }

    /// Waits for the response. The timeout does not run while the client's body is moving.
    pub(super) fn poll_sent(
        &mut self,
        sending: Pin<&mut impl Future<Output = SendResult>>,
        upstream: &Upstream,
        retry: &RetryState,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SendResult, ForwardError>> {
        if let Poll::Ready(sent) = sending.poll(cx) {
            return Poll::Ready(Ok(sent));
        }
        let timer = &mut self.connection.response_deadline;
        loop {
            ready!(timer.as_mut().poll(cx));
            match &retry.progress {
                Some(progress) if progress.frames() != self.frames && !retry.is_past_deadline() => {
                    self.frames = progress.frames();
                    let next = retry.bounded(timer.deadline() + upstream.settings.response_time);
                    timer.as_mut().reset(next);
                }
                Some(progress) if progress.is_waiting_for_client() => {
                    return Poll::Ready(Err(ForwardError::SlowBody));
                }
                _ => return Poll::Ready(Err(ForwardError::Timeout)),
            }
        }
    }

    /// Records the outcome in the server's health and decides whether to retry.
    pub(super) fn finish(
        self,
        retry: &mut RetryState,
        upstream: &Upstream,
        context: &ForwardContext,
        sent: Result<SendResult, ForwardError>,
    ) -> AttemptOutcome {
        let time = retry.record_attempt_end();
        let counters = context.counters.upstream(retry.upstream);
        let Self { connection, active, usage, copy, .. } = self;
        let mut error = match sent {
            Ok(Ok(response)) => {
                counters.record_response(time);
                active.server().health.record_success();
                let most_idle = upstream.settings.most_idle;
                let pool = Arc::clone(&context.pool);
                let connection = PooledConnection { connection, request: active, pool, most_idle };
                return AttemptOutcome::Done(Ok((response, connection)));
            }
            Ok(Err(error)) => error,
            Err(error) => {
                if error == ForwardError::Timeout {
                    counters.record_error(UpstreamErrorKind::Timeout);
                    let failure = ServerFailure::BadResponse(retry.client);
                    record_failure(upstream, active.server(), failure, &"response timeout");
                }
                return AttemptOutcome::Done(Err(error));
            }
        };
        let unsent = error.take_message();
        let error = error.into_error();
        if error.is_user() {
            let is_too_slow = retry.progress.as_ref().is_some_and(|progress| progress.is_too_slow());
            let error = if is_too_slow { ForwardError::SlowBody } else { ForwardError::InvalidBody };
            return AttemptOutcome::Done(Err(error));
        }
        let is_reused = usage == ConnectionUse::Repeated;
        // A server may close an idle connection at any time; that says nothing about its health.
        if !is_reused || error.is_parse() {
            let failure = ServerFailure::BadResponse(retry.client);
            record_failure(upstream, active.server(), failure, &error);
        }
        if error.is_parse() {
            counters.record_error(UpstreamErrorKind::Protocol);
            // The server has responded, and a retry would probably get the same response.
            return AttemptOutcome::Done(Err(ForwardError::InvalidResponse));
        }
        // A request that was not sent, because the server has closed an idle connection, has not failed.
        if !is_reused || unsent.is_none() {
            counters.record_error(UpstreamErrorKind::Closed);
        }
        match (unsent, copy) {
            (Some(request), _) if is_reused || retry.may_retry(context) => {
                AttemptOutcome::Retry(Box::new(request))
            }
            (None, Some(copy)) if retry.may_retry(context) => {
                AttemptOutcome::Retry(Box::new(copy.into_request()))
            }
            _ => AttemptOutcome::Done(Err(ForwardError::NoResponse)),
        }
    }
}

/// Counts a failure against a server.
#[cold]
pub(super) fn record_failure(
    upstream: &Upstream,
    server: &UpstreamServer,
    failure: ServerFailure,
    error: &dyn std::fmt::Display,
) {
    let (name, address) = (&upstream.settings.name, &server.address);
    tracing::debug!(upstream = %name, %address, %error, "upstream request failed");
    let has_other = || upstream.has_other_healthy(server);
    if let Some(ejection) = server.health.record_failure(failure, &upstream.settings, has_other) {
        tracing::warn!(
            upstream = %name,
            %address,
            %error,
            consecutive_failures = ejection.failures,
            for_seconds = ejection.duration.as_secs_f64(),
            "upstream marked unhealthy"
        );
    }
}
