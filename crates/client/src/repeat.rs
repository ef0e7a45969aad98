//! Which bodies can be sent more than once.

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Empty, Full};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body that may be able to be sent again.
pub trait Repeat: Sized {
    /// The same body once more; none if it can be sent only once.
    fn repeat(&self) -> Option<Self>;
}

/// Any body, as one that is sent once: for streams. Its requests are never retried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Once<B>(pub B);

impl<B> Repeat for Once<B> {
    fn repeat(&self) -> Option<Self> {
        None
    }
}

impl<B: Body + Unpin> Body for Once<B> {
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

/// For bodies of which a copy is as good as the original.
macro_rules! repeat_by_clone {
    ($($body:ty),+) => {
        $(impl Repeat for $body {
            fn repeat(&self) -> Option<Self> {
                Some(self.clone())
            }
        })+
    };
}

repeat_by_clone!((), Bytes, String, Vec<u8>, &'static str, &'static [u8]);

impl<D: Buf + Clone> Repeat for Full<D> {
    fn repeat(&self) -> Option<Self> {
        Some(self.clone())
    }
}

impl<D> Repeat for Empty<D> {
    fn repeat(&self) -> Option<Self> {
        Some(Self::new())
    }
}

impl<T: Repeat> Repeat for Option<T> {
    fn repeat(&self) -> Option<Self> {
        match self {
            None => Some(None),
            Some(body) => body.repeat().map(Some),
        }
    }
}

impl<L: Repeat, R: Repeat> Repeat for Either<L, R> {
    fn repeat(&self) -> Option<Self> {
        match self {
            Self::Left(body) => body.repeat().map(Self::Left),
            Self::Right(body) => body.repeat().map(Self::Right),
        }
    }
}
