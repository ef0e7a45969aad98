//! Bodies on their way: one frame at a time, in both directions, so that no memory holds a whole one.

mod held;
mod sent;

use crate::upstream::Load;
use crate::upstream::pool::{Connection, Pool};
use bytes::Bytes;
pub use held::OutlivingBody;
pub(crate) use held::{ExchangeRoom, Outliving, OutlivingExchange};
use http::Version;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
pub(crate) use sent::{HoldsPlace, Progress, Sent, Uploader};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_http::ReservedHeaders;

/// What comes after a body must not change what was decided by the head.
fn clean_trailers(polled: &mut Poll<Option<Result<Frame<Bytes>, hyper::Error>>>, reserved: &ReservedHeaders) {
    if let Poll::Ready(Some(Ok(frame))) = polled
        && let Some(trailers) = frame.trailers_mut()
    {
        reserved.clean_trailers(trailers);
    }
}

/// The body of an answer: the gateway's own, or a server's.
#[derive(Debug)]
pub enum AnswerBody {
    /// Short, and whole.
    Own(Full<Bytes>),
    /// The same, because of something wrong with the request.
    ClientFault(Full<Bytes>),
    /// On its way from a server.
    Upstream(Received),
    /// The same, and read on if the client hangs up.
    Outliving(Box<OutlivingBody>),
}

/// A server's body, and the connection that it comes on.
#[derive(Debug)]
pub struct Received {
    body: Incoming,
    /// Gone once the body has ended.
    lease: Option<Lease>,
    /// Whether the client can tell when it breaks off.
    telling: bool,
    /// How it broke off.
    broken: Option<hyper::Error>,
    reserved: Arc<ReservedHeaders>,
}

impl Received {
    /// `lease` is given back when `body` ends, or dropped with it. The client speaks `version`.
    pub(crate) fn new(
        body: Incoming,
        lease: Lease,
        version: Version,
        reserved: Arc<ReservedHeaders>,
    ) -> Self {
        // HTTP/1.0 has no end of a body without a length but the end of the connection.
        let telling = version != Version::HTTP_10 || body.size_hint().exact().is_some();
        let mut received = Self { body, lease: Some(lease), telling, broken: None, reserved };
        received.look_for_end();
        received
    }

    /// Whether the server has nothing more to send.
    fn has_ended(&self) -> bool {
        self.lease.is_none()
    }

    fn look_for_end(&mut self) {
        if self.body.is_end_stream()
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.lease.is_none() {
            return Poll::Ready(self.broken.take().map(Err));
        }
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        clean_trailers(&mut polled, &self.reserved);
        match polled {
            Poll::Ready(Some(Ok(_))) => self.look_for_end(),
            Poll::Ready(None) => {
                if let Some(lease) = self.lease.take() {
                    lease.give_back();
                }
            }
            Poll::Ready(Some(Err(error))) => {
                // A connection that broke is of no more use.
                self.lease = None;
                if !self.telling {
                    return Poll::Ready(Some(Err(error)));
                }
                // An error would keep what came before from being written at once: it is told the next time.
                self.broken = Some(error);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Pending => {}
        }
        polled
    }
}

/// A connection in use.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) connection: Connection,
    pub(crate) load: Load,
    pub(crate) pool: Arc<Pool>,
    pub(crate) most_idle: usize,
}

impl Lease {
    fn give_back(self) {
        self.pool.put(self.load.member().index, self.connection, self.most_idle);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own(body) | Self::ClientFault(body) => {
                Pin::new(body).poll_frame(cx).map_err(|never| match never {})
            }
            Self::Upstream(received) => received.poll_frame(cx),
            Self::Outliving(body) => {
                body.received_mut().map_or(Poll::Ready(None), |received| received.poll_frame(cx))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) | Self::ClientFault(body) => body.is_end_stream(),
            Self::Upstream(received) => received.body.is_end_stream(),
            Self::Outliving(body) => body.received().is_none_or(|received| received.body.is_end_stream()),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) | Self::ClientFault(body) => body.size_hint(),
            Self::Upstream(received) => received.body.size_hint(),
            Self::Outliving(body) => body.received().map_or(SizeHint::with_exact(0), |r| r.body.size_hint()),
        }
    }
}
