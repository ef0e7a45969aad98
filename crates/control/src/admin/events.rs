//! `GET /v1/events/stream`: server-sent events for the page and for nodes that follow this control plane.

use super::ControlPlane;
use super::access::{Operator, recheck};
use super::change_numbers::ChangeNumbers;
use super::problem::Problem;
use super::request_parts::QueryParts;
use crate::access_token::TokenRole;
use crate::live::LiveMessage;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_core::Stream;
use http::HeaderMap;
use serde::Deserialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use utoipa::IntoParams;

/// The most streams at once; each is a connection.
pub(super) const MOST_STREAMS: usize = 300;
/// How often a stream without events says that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// How often its token is verified again.
const VERIFY_EVERY: Duration = Duration::from_secs(1);
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

/// Which events are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// `changes`: only `revision` and `control_state`. A token of a node that follows gets no others.
    #[param(value_type = Option<String>, pattern = "^changes$")]
    only: Option<EventSelection>,
}

/// A selection of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventSelection {
    Changes,
}

/// Server-sent events: `revision` with the number of the newest revision, at the start and after every publish;
/// `control_state` with its version, at the start and after every change of grants and the emergency limit; `live` with a
/// point of the fleet, once a second; `event` with what happened.
#[utoipa::path(get, path = "/v1/events/stream", tag = "traffic", params(EventQuery),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(super) async fn stream_events(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    headers: HeaderMap,
    QueryParts(query): QueryParts<EventQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let permit = Arc::clone(&plane.streams).try_acquire_owned();
    let permit =
        permit.map_err(|_| Problem::unavailable(format!("there are {MOST_STREAMS} streams already")))?;
    let (sender, events) = mpsc::channel(MOST_WAITING);
    let is_live = query.only.is_none() && operator.role != TokenRole::Follow;
    let live = is_live.then(|| plane.live.subscribe());
    tokio::spawn(send_events(plane, headers, sender, live, permit));
    let alive = KeepAlive::new().interval(ALIVE_EVERY).text("alive");
    Ok(Sse::new(EventFrames(events)).keep_alive(alive))
}

/// Sends events until the client is gone or too slow, its token is not valid any more, or the node stops.
async fn send_events(
    plane: Arc<ControlPlane>,
    headers: HeaderMap,
    sender: mpsc::Sender<Event>,
    mut live: Option<broadcast::Receiver<LiveMessage>>,
    _permit: OwnedSemaphorePermit,
) {
    let mut changes = plane.changes.subscribe();
    let mut stopping = plane.stopping.clone();
    let mut verify = tokio::time::interval(VERIFY_EVERY);
    let mut sent = ChangeNumbers::default();
    changes.mark_changed();
    loop {
        tokio::select! {
            changed = changes.changed() => {
                let numbers = *changes.borrow_and_update();
                if changed.is_err() || !send_changes(&sender, numbers, sent) {
                    return;
                }
                sent = numbers;
            }
            message = next_live(&mut live) => {
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

/// The next point or event; never if they are not wanted.
async fn next_live(live: &mut Option<broadcast::Receiver<LiveMessage>>) -> Result<LiveMessage, RecvError> {
    match live {
        Some(live) => live.recv().await,
        None => std::future::pending().await,
    }
}

/// Sends the numbers that differ from those that were `sent`. Returns whether the client is there and fast enough.
fn send_changes(sender: &mpsc::Sender<Event>, numbers: ChangeNumbers, sent: ChangeNumbers) -> bool {
    let changes = [
        ("revision", numbers.revision, sent.revision),
        ("control_state", numbers.control_state, sent.control_state),
    ];
    let mut changes = changes.into_iter().filter(|(_, number, sent)| number != sent);
    changes.all(|(name, number, _)| {
        let event = number.map(|number| Event::default().event(name).data(number.to_string()));
        event.is_none_or(|event| sender.try_send(event).is_ok())
    })
}

/// Sends a point or an event. Returns whether the client is there and fast enough.
fn send_live(
    sender: &mpsc::Sender<Event>,
    message: Result<LiveMessage, RecvError>,
    live: &mut Option<broadcast::Receiver<LiveMessage>>,
) -> bool {
    let event = match message {
        Ok(LiveMessage::Point(point)) => Event::default().event("live").json_data(&*point),
        Ok(LiveMessage::Event(event)) => Event::default().event("event").json_data(&*event),
        // What was missed is in `/v1/live`.
        Err(RecvError::Lagged(_)) => {
            *live = live.as_ref().map(broadcast::Receiver::resubscribe);
            return true;
        }
        Err(RecvError::Closed) => return false,
    };
    event.is_ok_and(|event| sender.try_send(event).is_ok())
}
