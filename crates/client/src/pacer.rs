//! The paces of all keys (by default: servers), bounded in number, and the requests that wait for them.

use crate::pace::{PaceSettings, PaceState, SendTime};
use crate::response_limits::ResponseLimits;
use crate::retry::ServerOutcome;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The pacers of all keys.
#[derive(Debug, Default)]
pub(crate) struct PacerTable {
    pacers: Mutex<HashMap<String, Arc<KeyPacer>>>,
}

/// The pace of one key, shared by its requests.
#[derive(Debug)]
pub(crate) struct KeyPacer {
    pace: Mutex<PaceState>,
    /// Wakes the waiting requests: there may be more left than they know.
    changed: Notify,
}

/// A request in flight. It is counted until this value is dropped.
pub(crate) struct PacedRequest {
    pacer: Arc<KeyPacer>,
    has_ended: bool,
}

impl PacerTable {
    /// The pacer of `key`. In a full table a new one is not kept, so that its key starts fresh each time.
    pub(crate) fn get(&self, key: &str, now: Instant, settings: &PaceSettings) -> Arc<KeyPacer> {
        let mut pacers = self.pacers.lock();
        if let Some(pacer) = pacers.get(key) {
            return Arc::clone(pacer);
        }
        if pacers.len() >= settings.max_keys {
            pacers.retain(|_, pacer| Arc::strong_count(pacer) > 1 || !pacer.pace.lock().is_fresh(now));
        }
        let new = Arc::new(KeyPacer { pace: Mutex::new(PaceState::new(now)), changed: Notify::new() });
        if pacers.len() < settings.max_keys {
            pacers.insert(key.to_owned(), Arc::clone(&new));
        }
        new
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.pacers.lock().len()
    }
}

impl KeyPacer {
    /// Waits until a request may be sent. If that would be after `deadline`, returns at once how long it would take.
    pub(crate) async fn wait_to_send(
        self: &Arc<Self>,
        deadline: Instant,
        settings: &PaceSettings,
    ) -> Result<PacedRequest, Duration> {
        loop {
            // Created before the state is read, so that no change after it is missed.
            let changed = self.changed.notified();
            let now = Instant::now();
            let time = self.pace.lock().reserve(now, settings);
            match time {
                SendTime::At(at) => {
                    let request = PacedRequest { pacer: Arc::clone(self), has_ended: false };
                    if at > deadline {
                        return Err(at - now);
                    }
                    sleep_until(at).await;
                    return Ok(request);
                }
                SendTime::AskAgain(at) if at > deadline => return Err(at - now),
                SendTime::AskAgain(at) => {
                    // Jitter: the waiting requests do not all wake at the same instant.
                    let jitter = (at - now).mul_f64(0.05 * fastrand::f64());
                    // A timeout and a change both mean that the state is read again.
                    let _ = timeout_at(at + jitter, changed).await;
                }
            }
        }
    }
}

impl PacedRequest {
    /// Records the response and ends the request.
    pub(crate) fn end(mut self, limits: &ResponseLimits, outcome: ServerOutcome, settings: &PaceSettings) {
        self.has_ended = true;
        let mut pace = self.pacer.pace.lock();
        pace.record_end();
        pace.record_response(limits, outcome, Instant::now(), settings);
        drop(pace);
        self.pacer.changed.notify_waiters();
    }
}

impl Drop for PacedRequest {
    fn drop(&mut self) {
        if !self.has_ended {
            self.pacer.pace.lock().record_end();
            self.pacer.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded_and_keeps_closed_keys() {
        let settings = PaceSettings { max_keys: 10, ..PaceSettings::default() };
        let table = PacerTable::default();
        let now = Instant::now();
        let closed = table.get("closed", now, &settings);
        let refusal = ResponseLimits { retry_after: Some(Duration::from_secs(30)), quota: None };
        let request =
            closed.wait_to_send(now, &settings).await.unwrap_or_else(|_| panic!("nothing is known"));
        request.end(&refusal, ServerOutcome::Refused, &settings);
        drop(closed);
        for number in 0..1_000 {
            table.get(&format!("server-{number}"), now, &settings);
            assert!(table.len() <= 10);
        }
        let closed = table.get("closed", now, &settings);
        assert!(closed.wait_to_send(now, &settings).await.is_err(), "it is still known to be closed");
    }
}
