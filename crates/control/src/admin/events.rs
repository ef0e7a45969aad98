//! `GET /v1/events/stream`: server-sent events for the page and for nodes that follow this control plane.

use super::ControlPlane;
use super::access::recheck;
use super::problem::Problem;
use crate::live::LiveMessage;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_core::Stream;
use http::HeaderMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};

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

/// Server-sent events: `revision` with the number of the newest revision, at the start and after every publish; `live` with
/// a point of the fleet, once a second; `event` with what happened.
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
    let mut live = plane.live.subscribe();
    let mut sent = None;
    let mut is_changed = true;
    loop {
        // A change while the newest one is read is noticed again.
        if is_changed {
            changes.borrow_and_update();
        }
        if is_changed && let Ok(newest) = plane.repository.newest().await {
            is_changed = false;
            let number = newest.map(|newest| newest.summary.number);
            if let Some(number) = number.filter(|_| number != sent) {
                sent = Some(number);
                if sender.try_send(Event::default().event("revision").data(number.to_string())).is_err() {
                    return;
                }
            }
        }
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                is_changed = true;
            }
            message = live.recv() => {
                if !send_live(&sender, message, &mut live) {
                    return;
                }
            }
            _ = verify.tick() => if !recheck(&plane, &headers).await { return },
            _ = stopping.changed() => return,
            () = sender.closed() => return,
        }
    }
}

/// Sends a point or an event. Returns whether the client is there and fast enough.
fn send_live(
    sender: &mpsc::Sender<Event>,
    message: Result<LiveMessage, RecvError>,
    live: &mut broadcast::Receiver<LiveMessage>,
) -> bool {
    let event = match message {
        Ok(LiveMessage::Point(point)) => Event::default().event("live").json_data(&*point),
        Ok(LiveMessage::Event(event)) => Event::default().event("event").json_data(&*event),
        // What was missed is in `/v1/live`.
        Err(RecvError::Lagged(_)) => {
            *live = live.resubscribe();
            return true;
        }
        Err(RecvError::Closed) => return false,
    };
    event.is_ok_and(|event| sender.try_send(event).is_ok())
}
