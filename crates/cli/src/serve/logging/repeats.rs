//! Limits how often the same line is logged: a fault that every request meets would otherwise fill the disk.
//!
//! Lines are the same if they come from one place in the code and have the same fields. After the first few in ten
//! seconds the others are counted, and one line tells their number.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The most times that a line is logged in [`WINDOW`].
const MOST_REPEATS: u64 = 10;
const WINDOW: Duration = Duration::from_secs(10);
/// The most lines that are remembered. More different lines in ten seconds are not limited.
const MOST_LINES: usize = 1024;
/// The most characters of a line that its report repeats.
const MOST_SHOWN: usize = 200;

/// Counts repeated lines.
#[derive(Debug, Default)]
pub struct RepeatLimit {
    hasher: RandomState,
    lines: Mutex<HashMap<u64, RecentLine>>,
}

/// A line that was logged in the last ten seconds.
#[derive(Debug)]
struct RecentLine {
    since: Instant,
    times: u64,
    level: Level,
    target: &'static str,
    text: String,
}

/// The number of times that a line was not logged.
#[derive(Debug, PartialEq, Eq)]
pub struct RepeatReport {
    pub level: Level,
    pub target: &'static str,
    pub text: String,
    pub suppressed: u64,
}

impl RepeatReport {
    pub fn message(&self) -> String {
        format!("{}: repeated {} times", self.text, self.suppressed)
    }
}

impl RepeatLimit {
    /// Whether `line` is logged at `now`. Its report would have `level` and `target`.
    fn admit(&self, line: &LineText, level: Level, target: &'static str, now: Instant) -> bool {
        let mut lines = self.lines.lock();
        if let Some(recent) = lines.get_mut(&line.key) {
            recent.times += 1;
            return recent.times <= MOST_REPEATS;
        }
        if lines.len() >= MOST_LINES {
            lines.retain(|_, recent| recent.suppressed() > 0 || !recent.is_over(now));
        }
        if lines.len() < MOST_LINES {
            lines.insert(line.key, RecentLine { since: now, times: 1, level, target, text: line.shown() });
        }
        true
    }

    /// Ends the windows that are over at `now`, or all without it, and returns what was not logged in them.
    pub fn take_reports(&self, now: Option<Instant>) -> Vec<RepeatReport> {
        let mut reports = Vec::new();
        self.lines.lock().retain(|_, recent| {
            let is_over = now.is_none_or(|now| recent.is_over(now));
            if is_over && recent.suppressed() > 0 {
                let (level, target, suppressed) = (recent.level, recent.target, recent.suppressed());
                reports.push(RepeatReport {
                    level,
                    target,
                    text: std::mem::take(&mut recent.text),
                    suppressed,
                });
            }
            !is_over
        });
        reports
    }

    fn text(&self, event: &Event<'_>) -> LineText {
        let mut text = LineText::default();
        event.record(&mut text);
        let mut hasher = self.hasher.build_hasher();
        event.metadata().callsite().hash(&mut hasher);
        text.message.hash(&mut hasher);
        text.fields.hash(&mut hasher);
        text.key = hasher.finish();
        text
    }
}

impl RecentLine {
    fn suppressed(&self) -> u64 {
        self.times.saturating_sub(MOST_REPEATS)
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }
}

/// Suppresses events beyond the limit.
pub struct RepeatLayer(pub Arc<RepeatLimit>);

impl<S: Subscriber> Layer<S> for RepeatLayer {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        self.0.admit(&self.0.text(event), *metadata.level(), metadata.target(), Instant::now())
    }
}

/// The text of a line without its time.
#[derive(Debug, Default)]
struct LineText {
    key: u64,
    message: String,
    fields: String,
}

impl LineText {
    /// The first line of the text, cut if it is long.
    fn shown(&self) -> String {
        let message = self.message.lines().next().unwrap_or_default().trim_end_matches(':');
        format!("{message}{}", self.fields).chars().take(MOST_SHOWN).collect()
    }
}

impl Visit for LineText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    fn line(key: u64) -> LineText {
        LineText { key, message: "the disk is full:\nhelp".to_owned(), fields: " file=a".to_owned() }
    }

    #[test]
    fn a_line_is_limited_and_its_repeats_are_counted() {
        let (limit, start) = (RepeatLimit::default(), Instant::now());
        let admit =
            |key, after| limit.admit(&line(key), Level::WARN, "disk", start + Duration::from_secs(after));
        let admitted = (0..100).filter(|_| admit(1, 0)).count();
        assert_eq!(admitted as u64, MOST_REPEATS);
        assert!(admit(2, 0), "another line");
        assert_eq!(limit.take_reports(Some(start + Duration::from_secs(9))), []);
        let reports = limit.take_reports(Some(start + WINDOW));
        let expected = RepeatReport {
            level: Level::WARN,
            target: "disk",
            text: "the disk is full file=a".to_owned(),
            suppressed: 100 - MOST_REPEATS,
        };
        assert_eq!(reports, [expected]);
        assert_eq!(reports[0].message(), "the disk is full file=a: repeated 90 times");
        assert!(admit(1, 10), "a new window");
        assert_eq!(limit.take_reports(None), []);
    }

    #[test]
    fn the_memory_of_lines_is_bounded() {
        let (limit, now) = (RepeatLimit::default(), Instant::now());
        for key in 0..5 * MOST_LINES as u64 {
            assert!(limit.admit(&line(key), Level::INFO, "many", now));
        }
        assert_eq!(limit.lines.lock().len(), MOST_LINES);
        assert!(limit.admit(&line(u64::MAX), Level::INFO, "many", now + WINDOW));
        assert_eq!(limit.lines.lock().len(), 1, "old lines make room");
    }

    #[test]
    fn events_are_the_same_by_place_and_fields() {
        let limit = Arc::new(RepeatLimit::default());
        let subscriber = tracing_subscriber::registry().with(RepeatLayer(Arc::clone(&limit)));
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..2 * MOST_REPEATS {
                tracing::warn!(number = number % 2, "full");
            }
            tracing::warn!(number = 0, "full");
        });
        let lines = limit.lines.lock();
        let mut times: Vec<u64> = lines.values().map(|recent| recent.times).collect();
        times.sort_unstable();
        assert_eq!(times, [1, MOST_REPEATS, MOST_REPEATS]);
    }
}
