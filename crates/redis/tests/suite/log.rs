//! What is logged while a test runs.

use parking_lot::Mutex;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use tokio::runtime::Builder;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The lines of one test, as `ERROR message name=value …`.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// The lines of this level that contain all of `words`.
    pub fn lines(&self, level: Level, words: &[&str]) -> Vec<String> {
        let lines = self.0.lock();
        let is_meant =
            |line: &&String| line.starts_with(level.as_str()) && words.iter().all(|word| line.contains(word));
        lines.iter().filter(is_meant).cloned().collect()
    }

    pub fn errors(&self) -> Vec<String> {
        self.lines(Level::ERROR, &[])
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

/// Runs `test` on one thread, and hands it what is logged there: by the test and all that it starts, and nothing else.
pub fn logged(test: impl AsyncFnOnce(&Log)) {
    let log = Log::default();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(log.clone(), || runtime.block_on(test(&log)));
}

/// The same on several threads.
pub fn logged_on_threads(threads: usize, test: impl AsyncFnOnce(&Log)) {
    let log = Log::default();
    let of_thread = log.clone();
    let mut builder = Builder::new_multi_thread();
    // The guard is not needed: the threads end with the runtime.
    let set = move || std::mem::forget(tracing::subscriber::set_default(of_thread.clone()));
    let runtime = builder.worker_threads(threads).enable_all().on_thread_start(set).build().unwrap();
    tracing::subscriber::with_default(log.clone(), || runtime.block_on(test(&log)));
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        self.0.lock().push(format!("{} {}{}", event.metadata().level(), line.message, line.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}
