//! How long the machine stood still: no bound on a time holds better than that.

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::time::Instant;

const NAP: Duration = Duration::from_millis(1);
/// Shorter stalls are only counted.
const WORTH_A_NOTE: Duration = Duration::from_millis(20);

/// A thread that sleeps for a millisecond at a time, and notes by how much it oversleeps.
#[derive(Debug)]
pub struct Witness {
    noted: Arc<Mutex<Noted>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Noted {
    longest: Duration,
    stalls: Vec<Range<Instant>>,
}

impl Witness {
    /// Begins to watch.
    pub fn start() -> Self {
        let (noted, is_over) = (Arc::<Mutex<Noted>>::default(), Arc::new(AtomicBool::new(false)));
        let (note, over) = (Arc::clone(&noted), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(NAP);
                let after = Instant::now();
                let overslept = (after - before).saturating_sub(NAP);
                let mut noted = note.lock();
                noted.longest = noted.longest.max(overslept);
                if overslept > WORTH_A_NOTE {
                    noted.stalls.push(before..after);
                }
            }
        });
        Self { noted, is_over, thread: Some(thread) }
    }

    /// The longest stall so far.
    pub fn longest(&self) -> Duration {
        self.noted.lock().longest
    }

    /// When the machine stood still for more than a moment.
    pub fn stalls(&self) -> Vec<Range<Instant>> {
        self.noted.lock().stalls.clone()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
