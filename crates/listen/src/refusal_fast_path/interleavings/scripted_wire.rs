//! The transport of a stream under the control of a test.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What the client sends and receives. What it sends in one piece is read in one piece, if the buffer has room.
#[derive(Default)]
pub(super) struct ScriptedWire {
    pub(super) pieces: VecDeque<Vec<u8>>,
    /// How much was read, and the reads since the last check.
    pub(super) read: usize,
    pub(super) parts: Vec<ReadPart>,
    pub(super) responses: Vec<u8>,
    pub(super) is_flushed: bool,
    /// How much more the client accepts.
    pub(super) room: usize,
    /// Flushes are pending.
    pub(super) is_stuck: bool,
}

/// One read, and what the client had received by then.
pub(super) struct ReadPart {
    pub(super) range: Range<usize>,
    pub(super) responses: usize,
    pub(super) is_flushed: bool,
}

pub(super) struct WireEnd(pub(super) Rc<RefCell<ScriptedWire>>);

impl AsyncRead for WireEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.0.borrow_mut();
        let Some(mut piece) = wire.pieces.pop_front() else { return Poll::Pending };
        let rest = piece.split_off(piece.len().min(buffer.remaining()));
        buffer.put_slice(&piece);
        let range = wire.read..wire.read + piece.len();
        wire.read = range.end;
        let (responses, is_flushed) = (wire.responses.len(), wire.is_flushed);
        wire.parts.push(ReadPart { range, responses, is_flushed });
        if !rest.is_empty() {
            wire.pieces.push_front(rest);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WireEnd {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.0.borrow_mut();
        let count = bytes.len().min(wire.room);
        if count == 0 {
            return Poll::Pending;
        }
        wire.room -= count;
        wire.is_flushed = false;
        wire.responses.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.0.borrow_mut();
        if wire.is_stuck {
            return Poll::Pending;
        }
        wire.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
