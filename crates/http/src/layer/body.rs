//! The body of a response: the inner service's, or that of an answer in its place.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tollgate_limiter::Permit;

pin_project! {
    /// The body of a response of a [`RateLimit`](super::RateLimit).
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindNow]
    enum Kind<B> {
        /// The permit is given back when the body has ended, or is dropped because nobody reads it any more.
        Passing { #[pin] body: B, permit: Option<Permit> },
        Answered { #[pin] body: Full<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn passing(body: B, permit: Option<Permit>) -> Self {
        Self { kind: Kind::Passing { body, permit } }
    }

    pub(super) fn answered(body: Full<Bytes>) -> Self {
        Self { kind: Kind::Answered { body } }
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
            KindNow::Passing { body, permit } => {
                let frame = ready!(body.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *permit = None;
                }
                Poll::Ready(frame)
            }
            KindNow::Answered { body } => {
                let frame = ready!(body.poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Passing { body, .. } => body.is_end_stream(),
            Kind::Answered { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passing { body, .. } => body.size_hint(),
            Kind::Answered { body } => body.size_hint(),
        }
    }
}
