//! `GET /v1/events/stream`: server-sent events for the page and for nodes that follow this control plane.

use super::ControlPlane;
use super::access::recheck;
use super::problem::Problem;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_core::Stream;
use http::HeaderMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The most streams at once; each is a connection.
pub(super) const MOST_STREAMS: usize = 300;
/// How often a stream without events says that it is alive, and how often its token is verified again.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// Events that wait for a slow client; then its stream ends.
const MOST_WAITING: usize = 64;

/// The events of one client, until it disconnects.
pub(super) struct EventFrames(mpsc::Receiver<Event>);

impl Stream for EventFrames {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|event| event.map(Ok))
    }
}

/// Server-sent events: `revision` with the number of the newest revision, at the start and after every publish.
#[utoipa::path(get, path = "/v1/events/stream", tag = "traffic",
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(super) async fn stream_events(
    State(plane): State<Arc<ControlPlane>>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let permit = Arc::clone(&plane.streams).try_acquire_owned();
    let permit =
        permit.map_err(|_| Problem::unavailable(format!("there are {MOST_STREAMS} streams already")))?;
    let (sender, events) = mpsc::channel(MOST_WAITING);
    tokio::spawn(send_events(plane, headers, sender, permit));
    let alive = KeepAlive::new().interval(ALIVE_EVERY).text("alive");
    Ok(Sse::new(EventFrames(events)).keep_alive(alive))
}

/// Sends events until the client is gone or too slow, its token is not valid any more, or the node stops.
async fn send_events(
    plane: Arc<ControlPlane>,
    headers: HeaderMap,
    sender: mpsc::Sender<Event>,
    _permit: OwnedSemaphorePermit,
) {
    let mut changes = plane.repository.changes();
    let mut stopping = plane.stopping.clone();
    let mut verify = tokio::time::interval(ALIVE_EVERY);
    let mut sent = None;
    loop {
        changes.borrow_and_update();
        if let Ok(newest) = plane.repository.newest().await {
            let number = newest.map(|newest| newest.summary.number);
            if let Some(number) = number.filter(|_| number != sent) {
                sent = Some(number);
                if sender.try_send(Event::default().event("revision").data(number.to_string())).is_err() {
                    return;
                }
            }
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            _ = verify.tick() => if !recheck(&plane, &headers).await { return },
            _ = stopping.changed() => return,
            () = sender.closed() => return,
        }
    }
}
