//! A response body that counts its bytes and completes its log entry.

use crate::access_log::{AccessLogEntry, PendingLogEntry};
use crate::metrics::ThreadCounters;
use bytes::Buf;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_http::response::switches_protocols;

/// A response body, with the counters of its bytes and the log entry that ends with it.
#[derive(Debug)]
pub(crate) struct MeasuredBody<B> {
    body: B,
    counters: Arc<ThreadCounters>,
    /// `None` without an access log.
    entry: Option<Box<PendingLogEntry>>,
}

impl<B: Body> MeasuredBody<B> {
    /// Records the status of `response` in `entry`, and later its body.
    pub(crate) fn wrap(
        counters: Arc<ThreadCounters>,
        entry: Option<Box<PendingLogEntry>>,
        response: Response<B>,
    ) -> Response<Self> {
        let (status, has_tunnel) = (response.status().as_u16(), switches_protocols(&response));
        response.map(|body| {
            let mut measured = Self { body, counters, entry };
            measured.update(|entry| entry.status = status);
            measured.update_at_end();
            if has_tunnel && let Some(entry) = measured.entry.take() {
                entry.end_with_tunnel();
            }
            measured
        })
    }

    fn update(&mut self, update: impl FnOnce(&mut AccessLogEntry)) {
        if let Some(entry) = self.entry.as_mut().and_then(|entry| entry.entry_mut()) {
            update(entry);
        }
    }

    fn update_at_end(&mut self) {
        if self.body.is_end_stream() {
            self.update(|entry| entry.is_complete = true);
        }
    }
}

impl<B: Body + Unpin> Body for MeasuredBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.remaining() as u64);
                self.counters.record_sent(bytes);
                self.update(|entry| entry.bytes_sent += bytes);
                self.update_at_end();
            }
            Poll::Ready(None) => self.update(|entry| entry.is_complete = true),
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
