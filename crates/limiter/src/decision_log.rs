//! The decision log: one line of JSON for each decision that is recorded.
//!
//! Threads that decide call it, so it neither locks nor waits. Over the cap of lines per second, or if the queue is full,
//! records are dropped and counted.

use crate::key_text::{KeyDisplay, KeySecret, KeyText};
use crate::line_log::{JsonFields, LineLog, LogDestination, LogLine, LogRotation, rfc3339_us};
use crate::metrics::{DecisionObserver, DecisionRecord};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::rate::SECOND_US;

/// How a decision log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionLogSettings {
    /// Where it is written.
    pub destination: LogDestination,
    /// When its file is rotated.
    pub rotation: Option<LogRotation>,
    /// What it shows of keys.
    pub keys: KeyDisplay,
    /// The secret of hashed keys; random if there is none.
    pub key_secret: Option<KeySecret>,
    /// The most lines in each second, at least 1.
    pub lines_per_second: u32,
}

impl DecisionLogSettings {
    /// Hashed keys, 1,000 lines per second, no rotation.
    pub fn new(destination: LogDestination) -> Self {
        Self {
            destination,
            rotation: None,
            keys: KeyDisplay::default(),
            key_secret: None,
            lines_per_second: 1_000,
        }
    }
}

/// The decision log of a node.
#[derive(Debug)]
pub struct DecisionLog {
    log: LineLog,
    keys: Arc<KeyText>,
    cap: LineCap,
}

impl DecisionLog {
    /// Opens the log.
    pub fn open(settings: &DecisionLogSettings) -> io::Result<Self> {
        let log = LineLog::open("decision", &settings.destination, settings.rotation)?;
        Ok(Self::to_log(log, settings))
    }

    fn to_log(log: LineLog, settings: &DecisionLogSettings) -> Self {
        let keys = Arc::new(KeyText::new(settings.keys, settings.key_secret));
        Self { log, keys, cap: LineCap::new(settings.lines_per_second) }
    }

    /// The log of lines: for reopening, for the flush at shutdown, and for the number of dropped lines.
    pub fn lines(&self) -> &LineLog {
        &self.log
    }
}

impl DecisionObserver for DecisionLog {
    fn record(&self, record: DecisionRecord) {
        if self.cap.take(record.time.as_us() / SECOND_US) {
            self.log.send(Box::new(DecisionLine { record, keys: Arc::clone(&self.keys) }));
        } else {
            self.log.record_dropped(1);
        }
    }

    fn record_dropped(&self, records: u64) {
        self.log.record_dropped(records);
    }
}

/// The number of lines in the current second, in one word: the second in the upper half, the lines in the lower.
#[derive(Debug)]
struct LineCap {
    most: u64,
    second_and_lines: AtomicU64,
}

impl LineCap {
    fn new(most: u32) -> Self {
        Self { most: u64::from(most.max(1)), second_and_lines: AtomicU64::new(0) }
    }

    /// Whether one more line may be written in `second`.
    fn take(&self, second: u64) -> bool {
        let second = second & u64::from(u32::MAX);
        let current = self.second_and_lines.load(Ordering::Relaxed);
        let counted = current >> 32;
        // Threads may be a second apart: then the earlier counts in the later. More than that is a step of the clock.
        if second > counted || second + 1 < counted {
            let next = second << 32 | 1;
            let swapped =
                self.second_and_lines.compare_exchange(current, next, Ordering::Relaxed, Ordering::Relaxed);
            if swapped.is_ok() {
                return true;
            }
        } else if current & u64::from(u32::MAX) >= self.most {
            return false;
        }
        let before = self.second_and_lines.fetch_add(1, Ordering::Relaxed);
        before & u64::from(u32::MAX) < self.most
    }
}

/// A record on its way to the thread of the log.
#[derive(Debug)]
struct DecisionLine {
    record: DecisionRecord,
    keys: Arc<KeyText>,
}

impl LogLine for DecisionLine {
    fn write(&self, out: &mut Vec<u8>) {
        let DecisionRecord {
            time,
            door,
            outcome,
            rule,
            algorithm,
            tier,
            route,
            key,
            cost,
            limit,
            remaining,
            retry_after_us,
            degraded,
            shadowed_by,
        } = &self.record;
        let mut fields = JsonFields::begin(out);
        fields.text("time", &rfc3339_us(*time));
        fields.text("door", door.name());
        fields.text("outcome", outcome.name());
        fields.optional_text("rule", Some(rule));
        fields.optional_text("algorithm", Some(algorithm));
        fields.optional_text("tier", Some(tier));
        fields.optional_text("route", Some(route));
        fields.texts("key", key.iter().map(|part| self.keys.part(part)));
        fields.number("cost", Some(*cost));
        fields.number("limit", *limit);
        fields.number("remaining", *remaining);
        fields.milliseconds("retry_after_ms", *retry_after_us);
        fields.flag("degraded", *degraded);
        fields.optional_text("shadowed_by", shadowed_by.as_deref());
        fields.end();
    }

    fn queued_bytes(&self) -> usize {
        let record = &self.record;
        let key = record.key.iter().map(|part| size_of_val(part) + part.kind.len() + part.value.len());
        size_of_val(self) + record.rule.len() + record.tier.len() + record.route.len() + key.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{DecisionOutcome, KeyPart};
    use parking_lot::Mutex;
    use std::io::Write;
    use tollgate_core::request::Door;
    use tollgate_core::time::UnixTime;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(change: impl FnOnce(&mut DecisionLogSettings)) -> (DecisionLog, Lines) {
        let lines = Lines::default();
        let mut settings = DecisionLogSettings::new(LogDestination::Stdout);
        change(&mut settings);
        let log = LineLog::to_stream("decision", lines.clone()).unwrap();
        (DecisionLog::to_log(log, &settings), lines)
    }

    async fn written(log: &DecisionLog, lines: &Lines) -> String {
        log.lines().flush().await;
        String::from_utf8(lines.0.lock().clone()).unwrap()
    }

    fn record(us: u64) -> DecisionRecord {
        DecisionRecord {
            time: UnixTime::from_us(us),
            door: Door::Gateway,
            outcome: DecisionOutcome::Limited,
            rule: "login".to_owned(),
            algorithm: "token_bucket",
            tier: String::new(),
            route: "/login".to_owned(),
            key: vec![KeyPart {
                kind: "api_key".to_owned(),
                value: "sk_live_0123456789abcdef".to_owned(),
                is_credential: true,
            }],
            cost: 1,
            limit: Some(5),
            remaining: Some(0),
            retry_after_us: Some(29_512_345),
            degraded: false,
            shadowed_by: None,
        }
    }

    #[tokio::test]
    async fn a_record_is_a_line_of_json() {
        let (log, lines) = log(|settings| settings.keys = KeyDisplay::Shown);
        log.record(record(1_000_250));
        let expected = r#"{"time":"1970-01-01T00:00:01.000250Z","door":"gateway","outcome":"limited","rule":"login","algorithm":"token_bucket","tier":null,"route":"/login","key":["api_key:sk_live_…"],"cost":1,"limit":5,"remaining":0,"retry_after_ms":29512.345,"degraded":false,"shadowed_by":null}"#;
        assert_eq!(written(&log, &lines).await, format!("{expected}\n"));
    }

    #[tokio::test]
    async fn texts_are_escaped_and_keys_are_hashed() {
        let (log, lines) = log(|_| ());
        let odd = "a\"b\\c\nd\u{0}e";
        for _ in 0..2 {
            let key = ["user", "api_key"].map(|kind| KeyPart {
                kind: kind.to_owned(),
                value: odd.to_owned(),
                is_credential: kind == "api_key",
            });
            log.record(DecisionRecord {
                rule: odd.to_owned(),
                key: key.into(),
                shadowed_by: Some(odd.to_owned()),
                ..record(0)
            });
        }
        let text = written(&log, &lines).await;
        let values: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(values.len(), 2);
        assert_eq!((&values[0]["rule"], &values[0]["shadowed_by"]), (&odd.into(), &odd.into()));
        assert_eq!(values[0]["key"], values[1]["key"], "stable");
        assert!(!values[0]["key"].to_string().contains("a\\\"b"), "{}", values[0]["key"]);
    }

    #[tokio::test]
    async fn lines_over_the_cap_are_dropped_and_counted() {
        let (log, lines) = log(|settings| settings.lines_per_second = 10);
        for (second, lines_written, dropped) in
            [(5, 10, 90), (6, 20, 180), (5, 20, 280), (100, 30, 370), (2, 40, 460)]
        {
            (0..100).for_each(|number| log.record(record(second * SECOND_US + number)));
            let text = written(&log, &lines).await;
            assert_eq!((text.lines().count(), log.lines().dropped()), (lines_written, dropped), "{second}");
        }
    }

    #[test]
    fn the_cap_holds_over_many_threads() {
        let cap = LineCap::new(100);
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let count = (0..1_000).filter(|_| cap.take(7)).count();
                    taken.fetch_add(count as u64, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(taken.into_inner(), 100);
    }
}
