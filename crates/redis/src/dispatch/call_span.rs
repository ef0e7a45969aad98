//! Spans of script calls. A call serves many requests, so a span has no identities of clients.

use crate::StoreCore;
use crate::connection::Failure;
use crate::errors::StoreErrorKind;
use crate::shard::RedisShard;
use redis::Value;
use std::sync::Arc;
use tollgate_core::time::UnixTime;
use tollgate_limiter::metrics::{SpanRecord, SpanSink};

/// A script call in flight that becomes a span.
#[derive(Debug)]
pub(crate) struct CallSpan {
    sink: Arc<dyn SpanSink>,
    start: UnixTime,
    shard: u32,
    clients: u64,
}

impl StoreCore {
    /// The span of a call that begins now; mostly none.
    pub(super) fn begin_span(&self, shard: &RedisShard, clients: usize) -> Option<Box<CallSpan>> {
        let sink = self.settings.spans.as_ref().filter(|sink| sink.samples_next())?;
        Some(Box::new(CallSpan {
            sink: Arc::clone(sink),
            start: self.clock.now(),
            shard: shard.number(),
            clients: clients as u64,
        }))
    }
}

impl CallSpan {
    /// Records the span of a call with this result; `None` if no reply came in time.
    pub(super) fn end(self, end: UnixTime, result: Option<&Result<Value, Failure>>) {
        let error = match result {
            Some(Ok(_)) => None,
            Some(Err(failure)) => Some(error_name(failure)),
            None => Some("timeout"),
        };
        let mut attributes = vec![
            ("db.system.name", "redis".into()),
            ("tollgate.shard", self.shard.into()),
            ("tollgate.clients", self.clients.into()),
        ];
        attributes.extend(error.map(|error| ("error.type", error.into())));
        let Self { sink, start, .. } = self;
        let error = error.map(Into::into);
        sink.record(SpanRecord { name: "store call", start, end, attributes, error });
    }
}

/// The kind of error: the label of `tollgate_store_errors_total` where it has one.
fn error_name(failure: &Failure) -> &'static str {
    match failure {
        Failure::Unavailable => "unavailable",
        Failure::Lost => "lost",
        Failure::NoScript => "noscript",
        Failure::Moved { .. } => "moved",
        Failure::Ask { .. } => "ask",
        Failure::TryAgain => "tryagain",
        other => other.kind().map_or("other", StoreErrorKind::name),
    }
}
