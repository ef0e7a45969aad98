//! The metrics of the process, from `/proc`.

use std::fs;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};

/// CPU time, memory and file descriptors of this process, and its version. Values that the system does not tell are left out.
#[derive(Debug)]
pub struct ProcessMetrics {
    version: String,
    /// Seconds since the epoch.
    start: Option<f64>,
}

impl ProcessMetrics {
    /// The metrics of this process, which runs `version`.
    pub fn new(version: &str) -> Self {
        Self { version: version.to_owned(), start: start_time() }
    }
}

impl MetricSource for ProcessMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        samples.number(&catalog::BUILD_INFO, &[&self.version], 1.0);
        let values = [
            (&catalog::PROCESS_CPU, cpu_seconds()),
            (&catalog::PROCESS_MEMORY, resident_bytes()),
            (&catalog::PROCESS_FDS, open_descriptors()),
            (&catalog::PROCESS_MAX_FDS, most_descriptors()),
            (&catalog::PROCESS_START, self.start),
        ];
        for (definition, value) in values {
            if let Some(value) = value {
                samples.number(definition, &[], value);
            }
        }
    }
}

/// The fields of `/proc/self/stat` from the third on. The second is the name of the program, which may contain spaces.
fn stat_fields() -> Option<Vec<u64>> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    // Fields that are negative or letters are not used.
    Some(fields.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn cpu_seconds() -> Option<f64> {
    let fields = stat_fields()?;
    let (user, system) = (fields.get(11)?, fields.get(12)?);
    Some((user + system) as f64 / ticks_per_second())
}

/// When this process started, in seconds since the epoch.
pub(crate) fn start_time() -> Option<f64> {
    let started_ticks = *stat_fields()?.get(19)?;
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot as f64 + started_ticks as f64 / ticks_per_second())
}

fn resident_bytes() -> Option<f64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages as f64 * rustix::param::page_size() as f64)
}

fn open_descriptors() -> Option<f64> {
    let listed = fs::read_dir("/proc/self/fd").ok()?.count();
    // Reading the folder opened one more.
    Some(listed.saturating_sub(1) as f64)
}

fn most_descriptors() -> Option<f64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.map(|most| most as f64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use tollgate_limiter::metrics::MetricValue;

    #[test]
    fn the_values_are_plausible() {
        let mut samples = MetricSamples::default();
        ProcessMetrics::new("1.2.3").collect(&mut samples);
        let value = |definition| match samples.of_metric(definition)[0].value {
            MetricValue::Number(number) => number,
            _ => panic!("not a number"),
        };
        assert_eq!(value(&catalog::BUILD_INFO), 1.0);
        assert_eq!(&*samples.of_metric(&catalog::BUILD_INFO)[0].labels[0], "1.2.3");
        assert!(value(&catalog::PROCESS_CPU) < 3600.0);
        assert!(value(&catalog::PROCESS_MEMORY) > 100_000.0);
        assert!(value(&catalog::PROCESS_FDS) >= 3.0);
        assert!(value(&catalog::PROCESS_MAX_FDS) >= value(&catalog::PROCESS_FDS));
        let now = tollgate_limiter::Clock::system().now().as_us() as f64 / 1e6;
        let age = now - value(&catalog::PROCESS_START);
        assert!((-2.0..3600.0).contains(&age), "started {age} s ago");
    }
}
