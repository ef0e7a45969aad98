//! Real servers and a faulty network, for tests and measurements.
//!
//! Everything here panics on failure: a test without its servers has failed.

#![expect(clippy::panic, reason = "a test without its servers has failed")]

mod balancers;
pub mod bypass;
mod certificates;
mod cpu_pressure;
pub mod judging;
mod network_proxy;
mod path_echo_server;
mod ports;
mod prometheus_server;
mod redis_cluster;
mod redis_server;
mod response_reader;
mod sentinel_group;
mod server_clock;
mod stall_monitor;
#[cfg(feature = "telemetry")]
pub mod telemetry;
mod test_upstream;
mod wait;

pub use balancers::{CaddyServer, EnvoyServer, NginxServer};
pub use certificates::TestCertificates;
pub use cpu_pressure::CpuPressureMonitor;
pub use network_proxy::{NetworkMode, NetworkProxy, UnsteadyLink, WordRewrites};
pub use path_echo_server::{PathEchoServer, WebServerProgram};
pub use prometheus_server::{PrometheusSample, PrometheusServer};
pub use redis_cluster::RedisCluster;
pub use redis_server::{RedisServer, is_redis_6};
pub use response_reader::{limit_headers, read_head, read_line};
pub use sentinel_group::{SentinelGroup, primary_state};
pub use stall_monitor::{StallMonitor, covered_length};
pub use test_upstream::{ReceivedRequest, TestUpstream};
pub use wait::{PATIENCE, eventually, wait_until};
