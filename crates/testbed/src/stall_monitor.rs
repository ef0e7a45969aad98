//! Stalls of the machine: no bound on a measured time holds better than the longest of them.

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::time::Instant;

const NAP: Duration = Duration::from_millis(1);
/// Only longer stalls are recorded with their times.
const RECORDED_FROM: Duration = Duration::from_millis(20);

/// A thread that sleeps for a millisecond at a time, and measures how much longer each sleep takes.
#[derive(Debug)]
pub struct StallMonitor {
    stalls: Arc<Mutex<ObservedStalls>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ObservedStalls {
    longest: Duration,
    long_ones: Vec<Range<Instant>>,
}

impl StallMonitor {
    /// Starts the thread.
    pub fn start() -> Self {
        let (stalls, is_over) = (Arc::<Mutex<ObservedStalls>>::default(), Arc::new(AtomicBool::new(false)));
        let (observed, over) = (Arc::clone(&stalls), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(NAP);
                let after = Instant::now();
                let overslept = (after - before).saturating_sub(NAP);
                let mut observed = observed.lock();
                observed.longest = observed.longest.max(overslept);
                if overslept > RECORDED_FROM {
                    observed.long_ones.push(before..after);
                }
            }
        });
        Self { stalls, is_over, thread: Some(thread) }
    }

    /// The longest stall so far.
    pub fn longest(&self) -> Duration {
        self.stalls.lock().longest
    }

    /// When the machine stalled for more than 20 ms.
    pub fn stalls(&self) -> Vec<Range<Instant>> {
        self.stalls.lock().long_ones.clone()
    }
}

impl Drop for StallMonitor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
