//! What is known of each server, or of whatever the key says; never of more than so many.

use crate::advice::Advice;
use crate::pace::{Pace, PaceSettings, Turn};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

/// All that are known.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    known: Mutex<HashMap<String, Arc<Known>>>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Known {
    pace: Mutex<Pace>,
    /// There may be more than those who wait believe.
    heard: Notify,
}

/// A request that is under way. It counts until this is dropped.
pub(crate) struct UnderWay {
    known: Arc<Known>,
    has_ended: bool,
}

impl Keys {
    /// What is known of `key`. If there is no room for a new one, it is not kept: it then begins fresh each time.
    pub(crate) fn get(&self, key: &str, now: Instant, settings: &PaceSettings) -> Arc<Known> {
        let mut known = self.known.lock();
        if let Some(known) = known.get(key) {
            return Arc::clone(known);
        }
        if known.len() >= settings.most_keys {
            known.retain(|_, known| Arc::strong_count(known) > 1 || !known.pace.lock().is_fresh(now));
        }
        let new = Arc::new(Known { pace: Mutex::new(Pace::new(now)), heard: Notify::new() });
        if known.len() < settings.most_keys {
            known.insert(key.to_owned(), Arc::clone(&new));
        }
        new
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.known.lock().len()
    }
}

impl Known {
    /// Waits until a request may go. If that would be after `deadline`, it answers how long it would be.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        deadline: Instant,
        settings: &PaceSettings,
    ) -> Result<UnderWay, Duration> {
        loop {
            // Before the look: what is heard after it must not be missed.
            let heard = self.heard.notified();
            let now = Instant::now();
            let turn = self.pace.lock().turn(now, settings);
            match turn {
                Turn::Go(at) => {
                    let under_way = UnderWay { known: Arc::clone(self), has_ended: false };
                    if at > deadline {
                        return Err(at - now);
                    }
                    sleep_until(at).await;
                    return Ok(under_way);
                }
                Turn::Wait(until) if until > deadline => return Err(until - now),
                Turn::Wait(until) => {
                    // Those who wait together do not all come at the same instant.
                    let spread = (until - now).mul_f64(0.05 * fastrand::f64());
                    // Whether the time is over or something was heard: both mean to look again.
                    let _ = timeout_at(until + spread, heard).await;
                }
            }
        }
    }
}

impl UnderWay {
    /// The request was answered.
    pub(crate) fn answered(mut self, advice: &Advice, is_refusal: bool, settings: &PaceSettings) {
        self.has_ended = true;
        let mut pace = self.known.pace.lock();
        pace.ended();
        pace.heard(advice, is_refusal, Instant::now(), settings);
        drop(pace);
        self.known.heard.notify_waiters();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.has_ended {
            self.known.pace.lock().ended();
            self.known.heard.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_are_known_than_allowed_and_those_that_matter_stay() {
        let settings = PaceSettings { most_keys: 10, ..PaceSettings::default() };
        let keys = Keys::default();
        let now = Instant::now();
        let closed = keys.get("closed", now, &settings);
        let refusal = Advice { retry_after: Some(Duration::from_secs(30)), quota: None };
        let under_way = closed.turn(now, &settings).await.unwrap_or_else(|_| panic!("nothing is known"));
        under_way.answered(&refusal, true, &settings);
        drop(closed);
        for number in 0..1_000 {
            keys.get(&format!("server-{number}"), now, &settings);
            assert!(keys.len() <= 10);
        }
        let closed = keys.get("closed", now, &settings);
        assert!(closed.turn(now, &settings).await.is_err(), "it is still known to be closed");
    }
}
