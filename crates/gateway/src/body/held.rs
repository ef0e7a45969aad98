//! Requests that count as in flight until their server is done with them.
//!
//! A client that hangs up does not stop the server: mostly it goes on until it has an answer. If the place of such a
//! request were free at once, a client could have any number of them by hanging up on each. So the exchange goes on
//! without the client, in a task of its own on the same thread: until the answer has ended or failed, the server has
//! sent more than is worth reading, or the place runs out.

use super::{AnswerBody, Received};
use crate::exchange::Forwarding;
use crate::forward::Answer;
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tollgate_http::layer::SharedPermit;

/// Exchanges without a client that a thread goes on with; beyond that they end with their clients.
const MOST_EXCHANGES: usize = 1_000;
/// What is read of an answer without a client. A server that sends more notices that the connection is closed.
const MOST_BYTES: usize = 1 << 20;

/// Room for the exchanges of one thread that go on without a client.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeRoom(Arc<Semaphore>);

impl Default for ExchangeRoom {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_EXCHANGES)))
    }
}

/// The place of a request that outlives its client.
#[derive(Debug)]
pub(crate) struct Outliving {
    place: SharedPermit,
    room: ExchangeRoom,
}

impl Outliving {
    pub(crate) fn new(place: SharedPermit, room: &ExchangeRoom) -> Self {
        Self { place, room: room.clone() }
    }

    /// Holds the place until `work` is over.
    fn go_on(self, work: impl Future<Output = ()> + Send + 'static) {
        let Self { place, room } = self;
        let Ok(runtime) = Handle::try_current() else { return };
        let Ok(room) = room.0.try_acquire_owned() else {
            return tracing::debug!("too many requests without a client; the upstream connection is closed");
        };
        runtime.spawn(async move {
            let ended = timeout(place.timeout(), work).await;
            if ended.is_err() {
                tracing::debug!("the place of a request without a client has run out");
            }
            drop((place, room));
        });
    }
}

/// An exchange that goes on if its client hangs up.
pub(crate) struct OutlivingExchange {
    rest: Option<(Forwarding, Outliving)>,
}

impl OutlivingExchange {
    pub(crate) fn new(forwarding: Forwarding, outliving: Outliving) -> Self {
        Self { rest: Some((forwarding, outliving)) }
    }
}

impl Future for OutlivingExchange {
    type Output = Result<Answer, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (forwarding, _) = self.rest.as_mut().expect("a future is not polled after it was ready");
        let answer = ready!(forwarding.as_mut().poll(cx))?;
        let (_, outliving) = self.rest.take().expect("it was there a moment ago");
        Poll::Ready(Ok(answer.map(|body| match body {
            AnswerBody::Upstream(received) if !received.has_ended() => {
                AnswerBody::Outliving(Box::new(OutlivingBody { rest: Some((received, outliving)) }))
            }
            other => other,
        })))
    }
}

impl Drop for OutlivingExchange {
    fn drop(&mut self) {
        if let Some((forwarding, outliving)) = self.rest.take() {
            outliving.go_on(async move {
                let Ok(answer) = forwarding.await;
                discard(answer.into_body()).await;
            });
        }
    }
}

/// A server's body that is read on if its client hangs up.
#[derive(Debug)]
pub struct OutlivingBody {
    rest: Option<(Received, Outliving)>,
}

impl OutlivingBody {
    pub(super) fn received(&self) -> Option<&Received> {
        self.rest.as_ref().map(|(received, _)| received)
    }

    pub(super) fn received_mut(&mut self) -> Option<&mut Received> {
        self.rest.as_mut().map(|(received, _)| received)
    }
}

impl Drop for OutlivingBody {
    fn drop(&mut self) {
        if let Some((received, outliving)) = self.rest.take()
            && !received.has_ended()
        {
            outliving.go_on(discard(AnswerBody::Upstream(received)));
        }
    }
}

async fn discard(mut body: AnswerBody) {
    let mut bytes = 0;
    while bytes < MOST_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes += frame.data_ref().map_or(0, |data| data.len());
    }
}
