//! The body of a response: that of the inner service, or one of the layer.

use super::shared_permit::SharedPermit;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The body of a response of a [`RateLimit`](super::RateLimit).
    pub struct ResponseBody<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[project = BodyKindProjection]
    enum BodyKind<B> {
        /// The permit is released when the body has ended or is dropped.
        Passing { #[pin] body: B, permit: Option<SharedPermit> },
        Answered { #[pin] body: Full<Bytes>, cause: AnswerCause },
    }
}

/// Why the layer responds instead of the inner service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerCause {
    Refusal,
    InvalidRequest,
}

/// Where a response comes from.
#[derive(Debug)]
pub enum ResponseSource<'b, B> {
    /// The inner service, with this body.
    Service(&'b B),
    /// The limiter: a limit is exceeded, or the client is on the deny list; also as a gRPC status.
    Refusal,
    /// The layer: the request is invalid.
    InvalidRequest,
}

impl<B> ResponseBody<B> {
    pub(super) fn passing(body: B, permit: Option<SharedPermit>) -> Self {
        Self { kind: BodyKind::Passing { body, permit } }
    }

    pub(super) fn answered(body: Full<Bytes>, cause: AnswerCause) -> Self {
        Self { kind: BodyKind::Answered { body, cause } }
    }

    /// Where the response comes from.
    pub fn source(&self) -> ResponseSource<'_, B> {
        match &self.kind {
            BodyKind::Passing { body, .. } => ResponseSource::Service(body),
            BodyKind::Answered { cause: AnswerCause::Refusal, .. } => ResponseSource::Refusal,
            BodyKind::Answered { cause: AnswerCause::InvalidRequest, .. } => ResponseSource::InvalidRequest,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.project().kind.project() {
            BodyKindProjection::Passing { body, permit } => {
                let frame = ready!(body.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *permit = None;
                }
                Poll::Ready(frame)
            }
            BodyKindProjection::Answered { body, .. } => {
                let frame = ready!(body.poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Passing { body, .. } => body.is_end_stream(),
            BodyKind::Answered { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Passing { body, .. } => body.size_hint(),
            BodyKind::Answered { body, .. } => body.size_hint(),
        }
    }
}
