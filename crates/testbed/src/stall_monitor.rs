//! Stalls of the machine: no bound on a measured time holds better than the longest of them.

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::iter::Sum;
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
        Self::start_recording(RECORDED_FROM)
    }

    /// The same, and records stalls from a length of `recorded_from`.
    pub fn start_recording(recorded_from: Duration) -> Self {
        Self::start_on([None], recorded_from)
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

    /// For how long of `span` the machine stalled, as far as that is recorded.
    pub fn stalled_within(&self, span: Range<Instant>) -> Duration {
        covered_length(&self.stalls(), &span, Instant::saturating_duration_since)
    }
}

/// How much of `span` lies in any of `stalls`, which may overlap. `since` tells how much later an instant is than another.
pub fn covered_length<T: Copy + Ord, D: Sum>(
    stalls: &[Range<T>],
    span: &Range<T>,
    since: impl Fn(&T, T) -> D,
) -> D {
    let mut parts: Vec<Range<T>> =
        stalls.iter().map(|stall| stall.start.max(span.start)..stall.end.min(span.end)).collect();
    parts.sort_unstable_by_key(|part| part.start);
    let mut end = span.start;
    let lengths = parts.into_iter().map(|part| {
        let start = part.start.max(end);
        end = end.max(part.end);
        since(&end, start.min(end))
    });
    lengths.sum()
}

impl Drop for StallMonitor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stalls_within_the_span_count_and_each_instant_once() {
        let table: [(&[(u64, u64)], u64); 7] = [
            (&[], 0),
            (&[(0, 10)], 0),
            (&[(5, 15)], 5),
            (&[(12, 14), (16, 40)], 6),
            (&[(12, 18), (14, 16), (17, 19)], 7),
            (&[(17, 19), (12, 18)], 7),
            (&[(0, 100), (12, 14)], 10),
        ];
        for (stalls, expected) in table {
            let ranges: Vec<Range<u64>> = stalls.iter().map(|(start, end)| *start..*end).collect();
            let length: u64 = covered_length(&ranges, &(10..20), |end, start| end - start);
            assert_eq!(length, expected, "{stalls:?}");
        }
    }
}
