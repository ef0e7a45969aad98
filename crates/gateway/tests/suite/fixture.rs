//! A gateway under test.

use crate::raw_client::RawClient;
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_gateway::settings::{GatewaySettings, UpstreamSettings};
use tollgate_gateway::{Gateway, ListenSettings};
use tollgate_http::RateLimitLayer;
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
