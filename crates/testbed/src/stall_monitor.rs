//! Stalls of the machine: no bound on a measured time holds better than the longest of them.

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::time::Instant;

const NAP: Duration = Duration::from_millis(1);
/// Only longer stalls are recorded with their times.
const RECORDED_FROM: Duration = Duration::from_millis(20);

/// Threads that sleep for a millisecond at a time, and measure how much longer each sleep takes.
#[derive(Debug)]
pub struct StallMonitor {
    stalls: Arc<Mutex<ObservedStalls>>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ObservedStalls {
    longest: Duration,
    long_ones: Vec<Range<Instant>>,
}

impl ObservedStalls {
    fn add_nap(&mut self, nap: Range<Instant>, recorded_from: Duration) {
        let overslept = (nap.end - nap.start).saturating_sub(NAP);
        self.longest = self.longest.max(overslept);
        if overslept > recorded_from {
            self.long_ones.push(nap);
        }
    }
}

impl StallMonitor {
    /// Starts one thread, on any core: it sees stalls of the whole machine.
    pub fn start() -> Self {
        Self::start_on([None], RECORDED_FROM)
    }

    /// Starts a thread on each core, which also sees that one core stalls. Records stalls from a length of `recorded_from`.
    pub fn start_on_every_core(recorded_from: Duration) -> Self {
        let allowed = sched_getaffinity(None).expect("the kernel tells the cores of a process");
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        Self::start_on(cores.map(Some), recorded_from)
    }

    fn start_on(cores: impl IntoIterator<Item = Option<usize>>, recorded_from: Duration) -> Self {
        let (stalls, is_over) = (Arc::<Mutex<ObservedStalls>>::default(), Arc::new(AtomicBool::new(false)));
        let observe = |core: Option<usize>| {
            let (observed, over) = (Arc::clone(&stalls), Arc::clone(&is_over));
            thread::spawn(move || {
                if let Some(core) = core {
                    let mut cores = CpuSet::new();
                    cores.set(core);
                    sched_setaffinity(None, &cores).expect("a thread may use each of its cores");
                }
                while !over.load(Ordering::Relaxed) {
                    let before = Instant::now();
                    thread::sleep(NAP);
                    observed.lock().add_nap(before..Instant::now(), recorded_from);
                }
            })
        };
        let threads = cores.into_iter().map(observe).collect();
        Self { stalls, is_over, threads }
    }

    /// The longest stall so far.
    pub fn longest(&self) -> Duration {
        self.stalls.lock().longest
    }

    /// When the machine stalled for longer than is recorded, 20 ms with [`Self::start`].
    pub fn stalls(&self) -> Vec<Range<Instant>> {
        self.stalls.lock().long_ones.clone()
    }
}

impl Drop for StallMonitor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
