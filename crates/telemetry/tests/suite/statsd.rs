//! Metrics to StatsD.

use crate::test_node::{TestNode, eventually, failures, totals_of};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate_telemetry::{MetricRegistry, StatsdExporter, StatsdSettings};
use tollgate_testbed::telemetry::TestStatsdServer;
use tollgate_testbed::telemetry::totals::{TotalValue, Totals};

/// Settings for a test: short times.
pub fn settings(address: String) -> StatsdSettings {
    StatsdSettings {
        address,
        interval: Duration::from_millis(5),
        timeout: Duration::from_secs(20),
        ..StatsdSettings::default()
    }
}

/// An exporter that runs.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(settings: &StatsdSettings, registry: &Arc<MetricRegistry>) -> Self {
        let exporter = StatsdExporter::new(settings, registry).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        let task = exporter.start(&Handle::current(), stopped).unwrap();
        Self { stop, task }
    }

    /// Ends it, with the last flush.
    pub async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(Duration::from_secs(60), self.task).await.expect("the task ends").unwrap();
    }
}

/// What a StatsD server has to have: labels with letters that the protocol reserves are written without them, series whose
/// labels then are the same add up, and counters that are zero are not sent.
pub fn expected(registry: &MetricRegistry) -> Totals {
    let mut expected = Totals::new();
    for ((name, labels), value) in totals_of(registry) {
        let is_reserved = |letter: char| matches!(letter, '|' | ',' | '#') || letter.is_control();
        let labels: BTreeMap<_, _> =
            labels.into_iter().map(|(label, value)| (label, value.replace(is_reserved, "_"))).collect();
        match (expected.get_mut(&(name.clone(), labels.clone())), value) {
            (Some(TotalValue::Count(total)), TotalValue::Count(count)) => *total += count,
            (_, TotalValue::Count(0)) => {}
            (_, value) => {
                expected.insert((name, labels), value);
            }
        }
    }
    expected
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sum_of_all_flushes_is_the_total() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let server = TestStatsdServer::udp(socket);
    let (node, registry) = TestNode::start();
    let exporter = Running::start(&settings(address.to_string()), &registry);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let node = Arc::clone(&node);
            std::thread::spawn(move || {
                for _ in 0..50 {
                    node.grow(4);
                    std::thread::sleep(Duration::from_millis(1)); // Growth is spread over several flushes.
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    exporter.stop().await;
    assert_eq!(server.stop(), expected(&registry));
    assert_eq!(failures(&registry, "statsd"), 0);
}

#[tokio::test]
async fn names_have_the_prefix() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let settings = StatsdSettings {
        prefix: "edge.eu".to_owned(),
        // The one flush is that at shutdown.
        interval: Duration::from_secs(3_600),
        ..settings(socket.local_addr().unwrap().to_string())
    };
    let server = TestStatsdServer::udp(socket);
    let (_, registry) = TestNode::start();
    Running::start(&settings, &registry).stop().await;
    let received = server.stop();
    assert!(received.keys().all(|(name, _)| name.starts_with("edge.eu.tollgate_")), "{received:?}");
    assert_eq!(received.len(), expected(&registry).len());
}

#[tokio::test]
async fn unix_sockets_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("statsd.sock");
    let (node, registry) = TestNode::start();
    let exporter = Running::start(&settings(format!("unix:{}", path.display())), &registry);
    // The server starts later.
    node.grow(20);
    eventually("failures", || failures(&registry, "statsd") >= 2).await;
    let server = TestStatsdServer::unix(&path, UnixDatagram::bind(&path).unwrap());
    node.grow(20);
    exporter.stop().await;
    assert_eq!(server.stop(), expected(&registry));
}
