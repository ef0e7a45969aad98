//! Response bodies. They are forwarded frame by frame, so that none is held in memory as a whole.

mod upload;

use crate::client_gone::FinishingBody;
use crate::route_table::RouteIndex;
use crate::upstream::pool::PooledConnection;
use bytes::Bytes;
use http::{Response, Version};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_http::ReservedHeaders;
pub(crate) use upload::{UploadBody, UploadClient, UploadProgress};

/// The body of a gateway's response: its own, or that of a server.
#[derive(Debug)]
pub(crate) enum GatewayBody {
    /// The gateway's own.
    Own(Full<Bytes>),
    /// The gateway's own, because the request is invalid.
    InvalidRequest(Full<Bytes>),
    /// A server's.
    Upstream(UpstreamBody),
    /// A server's, which is read to its end also if the client disconnects.
    Finishing(Box<FinishingBody>),
}

/// The body of a response, and the route of its request.
#[derive(Debug)]
pub(crate) struct RoutedBody {
    pub(crate) body: GatewayBody,
    pub(crate) route: RouteIndex,
}

/// The body of a server's response, with the connection it arrives on.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    body: Incoming,
    /// `None` once the body has ended.
    connection: Option<PooledConnection>,
    truncation: TruncationSignal,
    /// An error that is reported by the next poll.
    pending_error: Option<hyper::Error>,
    reserved: Arc<ReservedHeaders>,
}

/// Whether a client can tell a truncated body from a complete one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TruncationSignal {
    /// By the length or the framing of the body.
    Framing,
    /// Only if the connection fails: the body of HTTP/1.0 without a length ends with the connection.
    ConnectionError,
}

impl RoutedBody {
    /// Adds the route to a response.
    pub(crate) fn wrap(response: Response<GatewayBody>, route: RouteIndex) -> Response<Self> {
        response.map(|body| Self { body, route })
    }
}

impl UpstreamBody {
    /// `connection` is released when `body` ends, or closed if this is dropped earlier. The client uses `version`.
    pub(crate) fn new(
        body: Incoming,
        connection: PooledConnection,
        version: Version,
        reserved: Arc<ReservedHeaders>,
    ) -> Self {
        let truncation = if version != Version::HTTP_10 || body.size_hint().exact().is_some() {
            TruncationSignal::Framing
        } else {
            TruncationSignal::ConnectionError
        };
        let connection = Some(connection);
        let mut body = Self { body, connection, truncation, pending_error: None, reserved };
        body.release_if_ended();
        body
    }

    /// Whether the server has nothing more to send.
    pub(crate) fn has_ended(&self) -> bool {
        self.connection.is_none()
    }

    fn release_if_ended(&mut self) {
        if self.body.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.release();
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.connection.is_none() {
            return Poll::Ready(self.pending_error.take().map(Err));
        }
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        match &mut polled {
            Poll::Ready(Some(Ok(frame))) => {
                // Trailers must not change what was decided by the head.
                if let Some(trailers) = frame.trailers_mut() {
                    self.reserved.clean_trailers(trailers);
                }
                self.release_if_ended();
            }
            Poll::Ready(None) => self.release(),
            Poll::Ready(Some(Err(_))) => {
                self.connection = None;
                if self.truncation == TruncationSignal::Framing
                    && let Poll::Ready(Some(Err(error))) = polled
                {
                    // An error would keep hyper from writing what came before, so the next poll reports it.
                    self.pending_error = Some(error);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            Poll::Pending => {}
        }
        polled
    }
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own(body) | Self::InvalidRequest(body) => {
                Pin::new(body).poll_frame(cx).map_err(|never| match never {})
            }
            Self::Upstream(body) => body.poll_frame(cx),
            Self::Finishing(body) => {
                body.upstream_mut().map_or(Poll::Ready(None), |body| body.poll_frame(cx))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) | Self::InvalidRequest(body) => body.is_end_stream(),
            Self::Upstream(body) => body.body.is_end_stream(),
            Self::Finishing(body) => body.upstream().is_none_or(|body| body.body.is_end_stream()),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) | Self::InvalidRequest(body) => body.size_hint(),
            Self::Upstream(body) => body.body.size_hint(),
            Self::Finishing(body) => {
                body.upstream().map_or(SizeHint::with_exact(0), |body| body.body.size_hint())
            }
        }
    }
}

impl Body for RoutedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
