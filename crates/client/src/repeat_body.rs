//! Which bodies can be sent more than once.

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Empty, Full};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body that can perhaps be sent more than once.
pub trait RepeatBody: Sized {
    /// A copy of the body; none if it can be sent only once.
    fn repeat(&self) -> Option<Self>;
}

/// Wraps a body that is sent once, such as a stream. Its requests are never retried.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOnce<B>(pub B);

impl<B> RepeatBody for SendOnce<B> {
    fn repeat(&self) -> Option<Self> {
        None
    }
}

impl<B: Body + Unpin> Body for SendOnce<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// For bodies that can be cloned.
macro_rules! repeat_by_clone {
    ($($body:ty),+) => {
        $(impl RepeatBody for $body {
            fn repeat(&self) -> Option<Self> {
                Some(self.clone())
            }
        })+
    };
}

repeat_by_clone!((), Bytes, String, Vec<u8>, &'static str, &'static [u8]);

impl<D: Buf + Clone> RepeatBody for Full<D> {
    fn repeat(&self) -> Option<Self> {
        Some(self.clone())
    }
}

impl<D> RepeatBody for Empty<D> {
    fn repeat(&self) -> Option<Self> {
        Some(Self::new())
    }
}

impl<T: RepeatBody> RepeatBody for Option<T> {
    fn repeat(&self) -> Option<Self> {
        match self {
            None => Some(None),
            Some(body) => body.repeat().map(Some),
        }
    }
}

impl<L: RepeatBody, R: RepeatBody> RepeatBody for Either<L, R> {
    fn repeat(&self) -> Option<Self> {
        match self {
            Self::Left(body) => body.repeat().map(Self::Left),
            Self::Right(body) => body.repeat().map(Self::Right),
        }
    }
}
