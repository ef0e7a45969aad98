//! A client's body on its way to a server.

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

/// How long the rest of a body is read that no server wants any more. A client that is still sending may not look for
/// its answer before; to close on it would reset the connection, and the answer could be lost.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// A client's body, as a server gets it.
#[derive(Debug)]
pub(crate) struct Sent {
    upload: Option<Box<Upload>>,
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SentError {
    #[error("the client's body broke off: {0}")]
    Client(hyper::Error),
    #[error("the client's body came too slowly")]
    TooSlow,
}

#[derive(Debug)]
struct Upload {
    /// Gone once it has ended.
    body: Option<Incoming>,
    /// The client has gone in the middle. To break off would end the request here, while the server works on: it gets
    /// nothing more, and has to answer or give up.
    is_abandoned: bool,
    progress: Arc<Progress>,
    client: Uploader,
    wait: Option<PeerWait>,
}

/// What is known of the client that sends a body.
#[derive(Clone, Debug)]
pub(crate) struct Uploader {
    pub(crate) version: Version,
    pub(crate) min_rate: Option<MinRate>,
    pub(crate) peer: Option<Arc<Peer>>,
    /// What its trailers must not carry.
    pub(crate) reserved: Arc<ReservedHeaders>,
    /// The request counts as in flight until the server is done with it.
    pub(crate) holds_place: HoldsPlace,
}

/// Whether a request counts as in flight also without its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldsPlace {
    Yes,
    No,
}

/// How far a client's body is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    ended: AtomicBool,
    /// The client has to send more before anything moves.
    is_waited_for: AtomicBool,
    is_too_slow: AtomicBool,
    /// Counts frames.
    frames: AtomicU32,
}

impl Progress {
    pub(crate) fn frames(&self) -> u32 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether the client is what is waited for.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_waited_for.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed)
    }

    /// Whether it broke off because it came too slowly.
    pub(crate) fn is_too_slow(&self) -> bool {
        self.is_too_slow.load(Ordering::Relaxed)
    }
}

impl Sent {
    /// No body.
    pub(crate) fn empty() -> Self {
        Self { upload: None }
    }

    /// The client's, and where to see how far it is; none if there is nothing to send.
    pub(crate) fn new(body: Incoming, client: impl FnOnce() -> Uploader) -> (Self, Option<Arc<Progress>>) {
        if body.is_end_stream() {
            return (Self::empty(), None);
        }
        let progress = Arc::new(Progress::default());
        let upload = Upload {
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

impl Upload {
    /// The client has not sent more yet.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<SentError> {
        self.progress.is_waited_for.store(true, Ordering::Relaxed);
        let Some(least) = self.client.min_rate else { return Poll::Pending };
        let is_slow = self.wait.get_or_insert_with(|| PeerWait::new(least)).poll_slow(cx);
        if is_slow { Poll::Ready(self.give_up()) } else { Poll::Pending }
    }

    /// The client has sent more. The error says that it was too slow.
    fn advance(&mut self, frame: &Frame<Bytes>) -> Result<(), SentError> {
        self.progress.is_waited_for.store(false, Ordering::Relaxed);
        self.progress.frames.fetch_add(1, Ordering::Relaxed);
        if let Some(peer) = &self.client.peer {
            peer.record_progress();
        }
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let is_slow = self.wait.as_mut().is_some_and(|wait| wait.end(bytes));
        if is_slow { Err(self.give_up()) } else { Ok(()) }
    }

    fn give_up(&mut self) -> SentError {
        self.progress.is_too_slow.store(true, Ordering::Relaxed);
        self.end();
        SentError::TooSlow
    }

    fn end(&mut self) {
        self.progress.ended.store(true, Ordering::Relaxed);
        self.body = None;
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = SentError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SentError>>> {
        let Some(upload) = &mut self.upload else { return Poll::Ready(None) };
        if upload.is_abandoned {
            return Poll::Pending;
        }
        let Some(body) = &mut upload.body else { return Poll::Ready(None) };
        match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Pending => upload.wait(cx).map(|error| Some(Err(error))),
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    upload.client.reserved.clean_trailers(trailers);
                }
                let is_last = body.is_end_stream();
                let advanced = upload.advance(&frame);
                if is_last && advanced.is_ok() {
                    upload.end();
                }
                Poll::Ready(Some(advanced.map(|()| frame)))
            }
            Poll::Ready(Some(Err(_))) if upload.client.holds_place == HoldsPlace::Yes => {
                upload.is_abandoned = true;
                upload.progress.is_waited_for.store(true, Ordering::Relaxed);
                Poll::Pending
            }
            Poll::Ready(ended) => {
                upload.end();
                Poll::Ready(ended.map(|ended| ended.map_err(SentError::Client)))
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

impl Drop for Upload {
    /// HTTP/2 has a way to say that the rest of a body is not wanted.
    fn drop(&mut self) {
        if self.client.version != Version::HTTP_2
            && let (Some(body), Ok(runtime)) = (self.body.take(), Handle::try_current())
        {
            runtime.spawn(linger(body));
        }
    }
}

/// Reads the rest of a body for a while.
async fn linger(mut body: Incoming) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // A client that sends for longer has its connection closed, as is due to any that sends what is not read.
    let _ = timeout(LINGER_TIME, rest).await;
}
