//! Whether processes wait for cores: where they do, a server may be late although the machine never stands still.

use parking_lot::Mutex;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::time::Instant;

const READ_EVERY: Duration = Duration::from_millis(10);
/// What the kernel tells of all processes; not all kernels do.
const FILE: &str = "/proc/pressure/cpu";

/// When it was read for how long some process had waited for a core since the machine started.
type PressureReading = (Instant, Duration);

/// Reads the pressure again and again as long as it lives.
#[derive(Debug)]
pub struct CpuPressureMonitor {
    readings: Arc<Mutex<Vec<PressureReading>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CpuPressureMonitor {
    /// Starts to read.
    pub fn start() -> Self {
        let (readings, is_over) =
            (Arc::<Mutex<Vec<PressureReading>>>::default(), Arc::<AtomicBool>::default());
        let (read, over) = (Arc::clone(&readings), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let waited = fs::read_to_string(FILE).ok().and_then(|text| waited(&text));
                read.lock().extend(waited.map(|waited| (Instant::now(), waited)));
                thread::sleep(READ_EVERY);
            }
        });
        Self { readings, is_over, thread: Some(thread) }
    }

    /// For how long some process waited for a core in that time; zero if the kernel does not tell.
    pub fn waited_within(&self, span: Range<Instant>) -> Duration {
        let readings = self.readings.lock();
        let first = readings.partition_point(|(at, _)| *at <= span.start).saturating_sub(1);
        let last = readings.partition_point(|(at, _)| *at < span.end).min(readings.len().saturating_sub(1));
        match (readings.get(first), readings.get(last)) {
            (Some((_, before)), Some((_, after))) => after.saturating_sub(*before),
            _ => Duration::ZERO,
        }
    }
}

/// The total in the first line.
fn waited(text: &str) -> Option<Duration> {
    let total = text.lines().next()?.split("total=").nth(1)?;
    Some(Duration::from_micros(total.trim().parse().ok()?))
}

impl Drop for CpuPressureMonitor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_and_differences_are_found() {
        let text = "some avg10=16.73 avg60=33.96 avg300=38.58 total=950959592\nfull avg10=0.00 total=0\n";
        assert_eq!(waited(text), Some(Duration::from_micros(950_959_592)));
        assert_eq!(waited(""), None);
        let monitor = CpuPressureMonitor { readings: Arc::default(), is_over: Arc::default(), thread: None };
        let (start, ms) = (Instant::now(), Duration::from_millis);
        assert_eq!(monitor.waited_within(start..start + ms(50)), Duration::ZERO);
        *monitor.readings.lock() =
            [(0, 5), (10, 5), (20, 9), (30, 19)].map(|(at, waited)| (start + ms(at), ms(waited))).to_vec();
        for (from, until, expected) in
            [(0, 10, 0), (10, 20, 4), (12, 18, 4), (12, 25, 14), (0, 90, 14), (40, 90, 0)]
        {
            let found = monitor.waited_within(start + ms(from)..start + ms(until));
            assert_eq!(found, ms(expected), "{from}..{until}");
        }
    }
}
