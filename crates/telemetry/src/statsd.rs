//! Export to a StatsD server over UDP or a Unix datagram socket.
//!
//! A thread of its own collects the metrics at an interval. Counts are sent as the difference to the last flush, so their sum
//! at the server is the total. StatsD has no acknowledgement: a packet that the network loses is lost. If the system reports
//! that a packet could not be sent, the counts in it are part of the next flush.

mod packets;
mod series;
mod socket;

use crate::export_failures::ExportFailures;
use crate::registry::MetricRegistry;
use packets::LineFormat;
use series::SentCounts;
use socket::{StatsdAddress, StatsdSocket};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Packets that are sent without a pause. The receive buffer of a server holds about twice as many.
const BURST: usize = 32;
/// The pause after them.
const PAUSE: Duration = Duration::from_millis(2);
/// The longest prefix. With it, the longest line still fits in a packet.
const LONGEST_PREFIX: usize = 64;

/// The settings of the StatsD exporter.
#[derive(Clone, Debug)]
pub struct StatsdSettings {
    /// The server: `host:port`, or `unix:/path/to/socket`.
    pub address: String,
    /// Stands before every name, followed by a dot; empty for none.
    pub prefix: String,
    /// The time between two flushes.
    pub interval: Duration,
    /// The time that the last flush at shutdown may take.
    pub timeout: Duration,
}

impl Default for StatsdSettings {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:8125".to_owned(),
            prefix: String::new(),
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
        }
    }
}

impl StatsdSettings {
    /// Whether an exporter can be built from these settings.
    pub fn validate(&self) -> Result<(), StatsdSettingsError> {
        self.check().map(drop)
    }

    /// The address, if all settings are usable.
    fn check(&self) -> Result<StatsdAddress, StatsdSettingsError> {
        let address = StatsdAddress::parse(&self.address)
            .ok_or_else(|| StatsdSettingsError::Address(self.address.clone()))?;
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
        if self.prefix.len() > LONGEST_PREFIX || !self.prefix.chars().all(is_plain) {
            return Err(StatsdSettingsError::Prefix(self.prefix.clone()));
        }
        if self.interval.is_zero() {
            return Err(StatsdSettingsError::Interval);
        }
        Ok(address)
    }
}

/// Why an exporter cannot be built from its settings, or not be started.
#[derive(Debug, Error)]
pub enum StatsdSettingsError {
    /// The address is neither a host with a port nor a path.
    #[error("the StatsD address '{0}' must be host:port or unix:/path")]
    Address(String),
    /// The prefix would break the protocol.
    #[error("the StatsD prefix '{0}' must have at most 64 letters, digits, '_', '-' or '.'")]
    Prefix(String),
    /// The interval is zero.
    #[error("the StatsD interval must be longer than zero")]
    Interval,
    /// The system has no more threads.
    #[error("the thread of the StatsD exporter cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Sends metrics to a StatsD server.
#[derive(Debug)]
pub struct StatsdExporter {
    interval: Duration,
    timeout: Duration,
    flush: StatsdFlush,
}

impl StatsdExporter {
    /// An exporter of the metrics in `registry`, to which its own metrics are added. Nothing is sent before it is started.
    pub fn new(
        settings: &StatsdSettings,
        registry: &Arc<MetricRegistry>,
    ) -> Result<Self, StatsdSettingsError> {
        let address = settings.check()?;
        let failures = Arc::new(ExportFailures::new("statsd"));
        registry.register(Arc::clone(&failures) as _);
        let flush = StatsdFlush {
            registry: Arc::clone(registry),
            format: LineFormat::new(settings.prefix.trim_end_matches('.')),
            sent: SentCounts::default(),
            socket: StatsdSocket::new(address),
            failures,
        };
        Ok(Self { interval: settings.interval, timeout: settings.timeout, flush })
    }

    /// Exports in a thread until `shutdown`, and then once more. The returned task, of `handle`, ends with the last flush, and
    /// within the timeout after `shutdown`.
    pub fn start(
        self,
        handle: &Handle,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<JoinHandle<()>, StatsdSettingsError> {
        let Self { interval, timeout, mut flush } = self;
        let failures = Arc::clone(&flush.failures);
        let (stop, stopping) = mpsc::channel::<()>();
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new().name("statsd".to_owned()).spawn(move || {
            let mut due = Instant::now() + interval;
            // The sender only goes away; it never sends.
            while let Err(mpsc::RecvTimeoutError::Timeout) =
                stopping.recv_timeout(due.saturating_duration_since(Instant::now()))
            {
                flush.run();
                due = (due + interval).max(Instant::now());
            }
            flush.run();
            let _ = ended.send(());
        })?;
        Ok(handle.spawn(async move {
            shutdown.await;
            drop(stop);
            if tokio::time::timeout(timeout, end).await.is_err() {
                failures.record("metrics", &"the last flush at shutdown did not end within the timeout");
            }
        }))
    }
}

/// One flush, and what it has to know of the last one.
#[derive(Debug)]
struct StatsdFlush {
    registry: Arc<MetricRegistry>,
    format: LineFormat,
    sent: SentCounts,
    socket: StatsdSocket,
    failures: Arc<ExportFailures>,
}

impl StatsdFlush {
    fn run(&mut self) {
        let samples = self.registry.collect();
        let packets = self.sent.packets(&samples, &self.format);
        let sent = self.socket.open().and_then(|()| {
            for (number, packet) in packets.into_iter().enumerate() {
                if number > 0 && number % BURST == 0 {
                    std::thread::sleep(PAUSE);
                }
                self.socket.send(&packet.text)?;
                self.sent.record(packet.counts);
            }
            Ok(())
        });
        if let Err(error) = sent {
            self.failures.record("metrics", &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let registry = Arc::new(MetricRegistry::default());
        let default = StatsdSettings::default();
        for (settings, error) in [
            (default.clone(), None),
            (StatsdSettings { prefix: "edge.tollgate.".to_owned(), ..default.clone() }, None),
            (
                StatsdSettings { address: "localhost".to_owned(), ..default.clone() },
                Some("the StatsD address 'localhost' must be host:port or unix:/path"),
            ),
            (
                StatsdSettings { prefix: "a|b".to_owned(), ..default.clone() },
                Some("the StatsD prefix 'a|b' must have at most 64 letters, digits, '_', '-' or '.'"),
            ),
            (
                StatsdSettings { interval: Duration::ZERO, ..default },
                Some("the StatsD interval must be longer than zero"),
            ),
        ] {
            let result = StatsdExporter::new(&settings, &registry);
            assert_eq!(result.err().map(|error| error.to_string()).as_deref(), error, "{settings:?}");
        }
    }
}
