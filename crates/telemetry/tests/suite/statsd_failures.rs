//! StatsD servers that are down or do not read.

use crate::statsd::{Running, expected, settings};
use crate::test_node::{TestNode, eventually, failures};
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use tollgate_telemetry::StatsdSettings;
use tollgate_testbed::telemetry::TestStatsdServer;

#[tokio::test]
async fn a_server_that_is_down_and_comes_back_has_all_counts() {
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (node, registry) = TestNode::start();
    let exporter = Running::start(&settings(address.to_string()), &registry);
    for failed in 1..=3 {
        node.grow(50);
        eventually("a failure", || failures(&registry, "statsd") >= failed).await;
    }
    let server = TestStatsdServer::udp(UdpSocket::bind(address).unwrap());
    node.grow(50);
    exporter.stop().await;
    assert_eq!(server.stop(), expected(&registry));
}

#[tokio::test]
async fn a_name_without_an_address_is_a_failure() {
    let (_, registry) = TestNode::start();
    let exporter = Running::start(&settings("statsd.invalid:8125".to_owned()), &registry);
    eventually("a failure", || failures(&registry, "statsd") > 0).await;
    exporter.stop().await;
}

#[tokio::test]
async fn a_server_that_does_not_read_delays_no_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("statsd.sock");
    let socket = UnixDatagram::bind(&path).unwrap();
    let (node, registry) = TestNode::start();
    let address = format!("unix:{}", path.display());
    let settings = StatsdSettings { timeout: Duration::from_millis(50), ..settings(address) };
    let exporter = Running::start(&settings, &registry);
    node.grow(50);
    eventually("a failure", || failures(&registry, "statsd") > 0).await;
    exporter.stop().await;
    drop(socket);
}

#[tokio::test]
async fn a_server_that_reads_again_has_all_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("statsd.sock");
    let socket = UnixDatagram::bind(&path).unwrap();
    let (node, registry) = TestNode::start();
    let exporter = Running::start(&settings(format!("unix:{}", path.display())), &registry);
    let has_failed = || {
        // Every flush has something to count, also the one that fails.
        node.grow(5);
        failures(&registry, "statsd") > 0
    };
    eventually("a failure", has_failed).await;
    let server = TestStatsdServer::unix(&path, socket);
    node.grow(50);
    exporter.stop().await;
    assert_eq!(server.stop(), expected(&registry));
}
