//! A gateway under test.

use crate::raw_client::RawClient;
use parking_lot::Mutex;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_gateway::settings::{AccessLogSettings, GatewaySettings, UpstreamSettings};
use tollgate_gateway::{AccessLog, Gateway, ListenSettings};
use tollgate_http::RateLimitLayer;
use tollgate_limiter::line_log::LogDestination;
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_listen::{Framing, ListenerSetup, Protocols, ServeOptions};
use tollgate_testbed as testbed;

/// The settings of the binary, with two threads.
pub fn listen() -> ListenSettings {
    ListenSettings {
        address: ([127, 0, 0, 1], 0).into(),
        threads: 2,
        options: ServeOptions {
            protocols: Protocols::Http1And2,
            framing: Framing::Strict,
            ..ServeOptions::default()
        },
        setup: ListenerSetup::default(),
        log: None,
    }
}

/// An upstream of servers under test.
pub fn upstream(servers: &[&testbed::TestUpstream]) -> UpstreamSettings {
    at(servers.iter().map(|server| server.address()))
}

pub fn at(addresses: impl IntoIterator<Item = SocketAddr>) -> UpstreamSettings {
    UpstreamSettings::new(
        "servers",
        addresses.into_iter().map(|address| address.to_string().parse().unwrap()).collect(),
    )
}

pub fn start(settings: &GatewaySettings) -> Gateway {
    Gateway::start(settings, &limits("allow_empty: true"), &listen()).unwrap()
}

/// The limits of a rule file.
pub fn limits(rules: &str) -> RateLimitLayer {
    let loaded = tollgate_core::rules::load("rules.yaml", rules).unwrap();
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    limiter.install(loaded.rules, loaded.lists).unwrap();
    RateLimitLayer::new(Arc::new(limiter))
}

/// The lines of an access log.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An access log that writes to `lines`, with changed settings. Values of the query parameter `key` are hidden.
pub fn access_log(lines: &Lines, change: impl FnOnce(&mut AccessLogSettings)) -> AccessLog {
    let mut settings = AccessLogSettings::new(LogDestination::Stdout);
    change(&mut settings);
    AccessLog::to_stream(lines.clone(), &settings, Clock::system(), vec!["key".to_owned()]).unwrap()
}

/// A server, and a gateway in front of it.
pub struct Pair {
    pub server: testbed::TestUpstream,
    pub gateway: Gateway,
}

impl Pair {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// With changed settings.
    pub async fn with(change: impl FnOnce(&mut GatewaySettings)) -> Self {
        let server = testbed::TestUpstream::start("one").await;
        let mut settings = GatewaySettings::to(upstream(&[&server]));
        change(&mut settings);
        Self { gateway: start(&settings), server }
    }

    /// With changed listener settings.
    pub async fn listening(change: impl FnOnce(&mut ListenSettings)) -> Self {
        let server = testbed::TestUpstream::start("one").await;
        let mut listen = listen();
        change(&mut listen);
        let gateway =
            Gateway::start(&GatewaySettings::to(upstream(&[&server])), &limits("allow_empty: true"), &listen)
                .unwrap();
        Self { server, gateway }
    }

    pub async fn client(&self) -> RawClient {
        RawClient::connect(self.gateway.address()).await
    }
}
