//! How long the machine stood still: no bound on a time holds better than that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::time::Instant;

const NAP: Duration = Duration::from_millis(1);

/// A thread that sleeps for a millisecond at a time, and notes by how much it oversleeps.
#[derive(Debug)]
pub struct Witness {
    longest_us: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Begins to watch.
    pub fn start() -> Self {
        let (longest_us, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (noted, over) = (Arc::clone(&longest_us), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(NAP);
                let overslept = before.elapsed().saturating_sub(NAP);
                noted.fetch_max(overslept.as_micros() as u64, Ordering::Relaxed);
            }
        });
        Self { longest_us, is_over, thread: Some(thread) }
    }

    /// The longest stall so far.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
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
