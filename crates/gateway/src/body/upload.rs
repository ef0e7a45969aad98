//! A client's body on its way to a server.

use crate::access_log::RequestTrace;
use crate::metrics::ThreadCounters;
use crate::settings::OnClientGone;
use bytes::Bytes;
use http::Version;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tollgate_http::ReservedHeaders;
use tollgate_listen::{MinRate, Peer, PeerWait};

/// How long the rest of a body is read that no server needs any more. A client that is still sending may not read its
/// response before it has sent everything; closing the connection would reset it, and the response could be lost.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// A client's body, as it is sent to a server.
#[derive(Debug)]
pub(crate) struct UploadBody {
    /// `None` for an empty body.
    upload: Option<Box<ActiveUpload>>,
}

/// Why an upload failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the request body failed: {0}")]
    Client(hyper::Error),
    #[error("the request body arrived too slowly")]
    TooSlow,
}

#[derive(Debug)]
struct ActiveUpload {
    /// `None` once it has ended.
    body: Option<Incoming>,
    /// The client has disconnected before the end. An error would end the request here while the server still works on
    /// it, so the server gets nothing more and has to respond or give up.
    is_abandoned: bool,
    progress: Arc<UploadProgress>,
    client: UploadClient,
    wait: Option<PeerWait>,
}

/// The client that sends a body.
#[derive(Clone, Debug)]
pub(crate) struct UploadClient {
    pub(crate) version: Version,
    pub(crate) min_rate: Option<MinRate>,
    pub(crate) peer: Arc<Peer>,
    /// The names that trailers must not have.
    pub(crate) reserved: Arc<ReservedHeaders>,
    pub(crate) on_client_gone: OnClientGone,
    pub(crate) counters: Arc<ThreadCounters>,
    /// For the access log.
    pub(crate) trace: Option<Arc<RequestTrace>>,
}

/// The progress of an upload, shared with the exchange that waits for the response.
#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    has_ended: AtomicBool,
    is_waiting: AtomicBool,
    is_too_slow: AtomicBool,
    frames: AtomicU32,
}

impl UploadProgress {
    /// The number of frames sent so far.
    pub(crate) fn frames(&self) -> u32 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether the client has to send more before the server can go on.
    pub(crate) fn is_waiting_for_client(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed) && !self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the upload failed because the client was too slow.
    pub(crate) fn is_too_slow(&self) -> bool {
        self.is_too_slow.load(Ordering::Relaxed)
    }
}

impl UploadBody {
    /// An empty body.
    pub(crate) fn empty() -> Self {
        Self { upload: None }
    }

    /// The client's body and its progress; no progress if it is empty.
    pub(crate) fn new(
        body: Incoming,
        client: impl FnOnce() -> UploadClient,
    ) -> (Self, Option<Arc<UploadProgress>>) {
        if body.is_end_stream() {
            return (Self::empty(), None);
        }
        let progress = Arc::new(UploadProgress::default());
        let upload = ActiveUpload {
            body: Some(body),
            is_abandoned: false,
            progress: Arc::clone(&progress),
            client: client(),
            wait: None,
        };
        (Self { upload: Some(Box::new(upload)) }, Some(progress))
    }

    fn body(&self) -> Option<&Incoming> {
        self.upload.as_ref()?.body.as_ref()
    }
}

impl ActiveUpload {
    /// Waits for the next frame; ready with an error if the client is too slow.
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<UploadError> {
        self.progress.is_waiting.store(true, Ordering::Relaxed);
        let Some(min_rate) = self.client.min_rate else { return Poll::Pending };
        let is_slow = self.wait.get_or_insert_with(|| PeerWait::new(min_rate)).poll_slow(cx);
        if is_slow { Poll::Ready(self.fail_as_too_slow()) } else { Poll::Pending }
    }

    /// Records a frame that the client has sent. Fails if it was too slow.
    fn record_frame(&mut self, frame: &Frame<Bytes>) -> Result<(), UploadError> {
        self.progress.is_waiting.store(false, Ordering::Relaxed);
        self.progress.frames.fetch_add(1, Ordering::Relaxed);
        self.client.peer.record_progress();
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        self.client.counters.record_received(bytes);
        if let Some(trace) = &self.client.trace {
            trace.record_received(bytes);
        }
        let is_slow = self.wait.as_mut().is_some_and(|wait| wait.end(bytes));
        if is_slow { Err(self.fail_as_too_slow()) } else { Ok(()) }
    }

    fn fail_as_too_slow(&mut self) -> UploadError {
        self.progress.is_too_slow.store(true, Ordering::Relaxed);
        self.end();
        UploadError::TooSlow
    }

    fn end(&mut self) {
        self.progress.has_ended.store(true, Ordering::Relaxed);
        self.body = None;
    }
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(upload) = &mut self.upload else { return Poll::Ready(None) };
        if upload.is_abandoned {
            return Poll::Pending;
        }
        let Some(body) = &mut upload.body else { return Poll::Ready(None) };
        match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Pending => upload.poll_slow(cx).map(|error| Some(Err(error))),
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    upload.client.reserved.clean_trailers(trailers);
                }
                let is_last = body.is_end_stream();
                let recorded = upload.record_frame(&frame);
                if is_last && recorded.is_ok() {
                    upload.end();
                }
                Poll::Ready(Some(recorded.map(|()| frame)))
            }
            Poll::Ready(Some(Err(_))) if upload.client.on_client_gone == OnClientGone::Finish => {
                upload.is_abandoned = true;
                upload.progress.is_waiting.store(true, Ordering::Relaxed);
                Poll::Pending
            }
            Poll::Ready(ended) => {
                upload.end();
                Poll::Ready(ended.map(|ended| ended.map_err(UploadError::Client)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_abandoned = self.upload.as_ref().is_some_and(|upload| upload.is_abandoned);
        !is_abandoned && self.body().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for ActiveUpload {
    /// In HTTP/2 a reset tells the client that the rest of a body is not needed.
    fn drop(&mut self) {
        if self.client.version != Version::HTTP_2
            && let (Some(body), Ok(runtime)) = (self.body.take(), Handle::try_current())
        {
            runtime.spawn(linger(body));
        }
    }
}

/// Reads the rest of a body for a while. The connection of a client that sends for longer is closed.
async fn linger(mut body: Incoming) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(LINGER_TIME, rest).await;
}
