//! Spans of script calls, for a sink that takes all of them.

use super::fleet::Node;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::Request;
use tollgate_limiter::metrics::{AttributeValue, SpanRecord, SpanSink};
use tollgate_redis::RedisSettings;
use tollgate_testbed::{RedisServer, eventually};

const RULES: &str = "rules: [{ id: one, key: api_key, consistency: strict, limit: 1000/h }]";

#[derive(Debug, Default)]
struct SpanList(Mutex<Vec<SpanRecord>>);

impl SpanList {
    /// The spans so far, which are forgotten.
    fn take(&self) -> Vec<SpanRecord> {
        std::mem::take(&mut self.0.lock())
    }
}

impl SpanSink for SpanList {
    fn samples_next(&self) -> bool {
        true
    }

    fn record(&self, span: SpanRecord) {
        self.0.lock().push(span);
    }
}

async fn check(node: &Node, key: &str) {
    let request = Request { api_key: Some(key), endpoint: "/", ..Request::default() };
    node.check(&request).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_a_span_with_its_shard_clients_and_error() {
    let redis = RedisServer::start(&[]);
    let spans = Arc::new(SpanList::default());
    let settings = RedisSettings {
        timeout: Duration::from_millis(300),
        spans: Some(Arc::clone(&spans) as _),
        ..RedisSettings::default()
    };
    let node = Node::start_with(&redis.url(), RULES, settings).await;
    check(&node, "alice").await;
    let found = spans.take();
    assert!(!found.is_empty());
    for span in &found {
        assert_eq!((span.name, &span.error), ("store call", &None));
        assert!(span.start <= span.end, "{span:?}");
        assert_eq!(span.attributes[1], ("tollgate.shard", AttributeValue::Integer(0)));
        assert_eq!(span.attributes[2], ("tollgate.clients", AttributeValue::Integer(1)));
    }

    redis.freeze();
    check(&node, "alice").await;
    eventually("a span of the timeout", async || {
        let found = spans.take();
        let timed_out = found.iter().find(|span| span.error.as_deref() == Some("timeout"));
        timed_out.is_some_and(|span| span.attributes.contains(&("error.type", "timeout".into())))
    })
    .await;
    redis.thaw();
}
