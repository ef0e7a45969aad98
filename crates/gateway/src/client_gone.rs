//! Requests that continue after their client has disconnected (`on_client_gone: finish`).
//!
//! A disconnect does not stop the server: most servers work until they have a response. If the permit of such a request
//! were released at once, a client could have any number of requests in flight by disconnecting from each. So the
//! exchange continues without the client, in a task on the same thread, until the response has ended or failed, the
//! server has sent more than is worth reading, or the permit expires.

use crate::body::{GatewayBody, RoutedBody, UpstreamBody};
use crate::exchange::ForwardFuture;
use crate::forward::RoutedResponse;
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tollgate_http::layer::SharedPermit;

/// The most exchanges without a client on one thread; beyond that they end with their clients.
const MOST_EXCHANGES: usize = 1_000;
/// How much of a response is read without a client. A server that sends more finds the connection closed.
const MOST_BYTES: usize = 1 << 20;

/// Bounds the exchanges of one thread that continue without a client.
#[derive(Clone, Debug)]
pub(crate) struct FinishLimit(Arc<Semaphore>);

impl Default for FinishLimit {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_EXCHANGES)))
    }
}

/// The permit of a request that continues without its client, and the limit of such requests.
#[derive(Debug)]
pub(crate) struct FinishGuard {
    permit: SharedPermit,
    limit: FinishLimit,
}

impl FinishGuard {
    pub(crate) fn new(permit: SharedPermit, limit: &FinishLimit) -> Self {
        Self { permit, limit: limit.clone() }
    }

    /// Runs `rest` in a task and holds the permit until it has ended.
    fn finish(self, rest: impl Future<Output = ()> + Send + 'static) {
        let Self { permit, limit } = self;
        let Ok(runtime) = Handle::try_current() else { return };
        let Ok(counted) = limit.0.try_acquire_owned() else {
            return tracing::debug!(
                limit = MOST_EXCHANGES,
                "too many requests without a client; upstream connection closed"
            );
        };
        runtime.spawn(async move {
            if timeout(permit.timeout(), rest).await.is_err() {
                tracing::debug!("timeout of a request without a client; permit released");
            }
            drop((permit, counted));
        });
    }
}

/// An exchange that continues if its client disconnects.
pub(crate) struct FinishingExchange {
    rest: Option<(ForwardFuture, FinishGuard)>,
}

impl FinishingExchange {
    pub(crate) fn new(exchange: ForwardFuture, guard: FinishGuard) -> Self {
        Self { rest: Some((exchange, guard)) }
    }
}

impl Future for FinishingExchange {
    type Output = Result<RoutedResponse, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (exchange, _) = self.rest.as_mut().expect("a future is not polled after it was ready");
        let response = ready!(exchange.as_mut().poll(cx))?;
        let (_, guard) = self.rest.take().expect("it was polled just now");
        Poll::Ready(Ok(response.map(|RoutedBody { body, route }| {
            let body = match body {
                GatewayBody::Upstream(body) if !body.has_ended() => {
                    GatewayBody::Finishing(Box::new(FinishingBody { rest: Some((body, guard)) }))
                }
                other => other,
            };
            RoutedBody { body, route }
        })))
    }
}

impl Drop for FinishingExchange {
    fn drop(&mut self) {
        if let Some((exchange, guard)) = self.rest.take() {
            guard.finish(async move {
                let Ok(response) = exchange.await;
                discard(response.into_body().body).await;
            });
        }
    }
}

/// The body of a server's response, which is read to its end also if the client disconnects.
#[derive(Debug)]
pub(crate) struct FinishingBody {
    rest: Option<(UpstreamBody, FinishGuard)>,
}

impl FinishingBody {
    pub(crate) fn upstream(&self) -> Option<&UpstreamBody> {
        self.rest.as_ref().map(|(body, _)| body)
    }

    pub(crate) fn upstream_mut(&mut self) -> Option<&mut UpstreamBody> {
        self.rest.as_mut().map(|(body, _)| body)
    }
}

impl Drop for FinishingBody {
    fn drop(&mut self) {
        if let Some((body, guard)) = self.rest.take()
            && !body.has_ended()
        {
            guard.finish(discard(GatewayBody::Upstream(body)));
        }
    }
}

async fn discard(mut body: GatewayBody) {
    let mut bytes = 0;
    while bytes < MOST_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes += frame.data_ref().map_or(0, |data| data.len());
    }
}
