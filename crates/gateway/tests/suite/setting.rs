//! A gateway under test.

use crate::wire::Wire;
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_gateway::settings::{Settings, Upstream};
use tollgate_gateway::{Gateway, Listen};
use tollgate_http::RateLimitLayer;
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_listen::{Framing, ListenerSetup, Protocols, ServeOptions};
use tollgate_testbed as testbed;

/// A gateway as the binary runs it, on two threads.
pub fn listen() -> Listen {
    Listen {
        address: ([127, 0, 0, 1], 0).into(),
        threads: 2,
        options: ServeOptions {
            protocols: Protocols::Http1And2,
            framing: Framing::Strict,
            ..ServeOptions::default()
        },
        entrance: ListenerSetup::default(),
        log: None,
    }
}

/// An upstream of servers under test.
pub fn upstream(servers: &[&testbed::TestUpstream]) -> Upstream {
    at(servers.iter().map(|server| server.address()))
}

pub fn at(addresses: impl IntoIterator<Item = SocketAddr>) -> Upstream {
    Upstream::new(
        "servers",
        addresses.into_iter().map(|address| address.to_string().parse().unwrap()).collect(),
    )
}

pub fn start(settings: &Settings) -> Gateway {
    Gateway::start(settings, &limits("allow_empty: true"), &listen()).unwrap()
}

/// The limits of a rule file.
pub fn limits(rules: &str) -> RateLimitLayer {
    let loaded = tollgate_core::rules::load("rules.yaml", rules).unwrap();
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    limiter.install(loaded.rules, loaded.lists);
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

    /// With settings that differ.
    pub async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let server = testbed::TestUpstream::start("one").await;
        let mut settings = Settings::to(upstream(&[&server]));
        change(&mut settings);
        Self { gateway: start(&settings), server }
    }

    /// With bounds that differ.
    pub async fn listening(change: impl FnOnce(&mut Listen)) -> Self {
        let server = testbed::TestUpstream::start("one").await;
        let mut listen = listen();
        change(&mut listen);
        let gateway =
            Gateway::start(&Settings::to(upstream(&[&server])), &limits("allow_empty: true"), &listen)
                .unwrap();
        Self { server, gateway }
    }

    pub async fn client(&self) -> Wire {
        Wire::connect(self.gateway.address()).await
    }
}
