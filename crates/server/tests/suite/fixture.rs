//! A door under test, on its own port.

use crate::client::Client;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate_core::rules::load;
use tollgate_http::{ForwardAuthOptions, HeaderOptions};
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tollgate_server::{ForwardAuth, HttpDoor, Readiness};

/// 2027-01-15T08:00:00Z
pub const START_US: u64 = 1_800_000_000_000_000;

const RULES: &str = "
rules:
  - id: orders
    endpoint: /v1/orders
    algorithm: token_bucket
    params: { capacity: 100, refill_rate: 1.67, window: 60 }
  - id: logins
    endpoint: /v1/login
    methods: POST
    key: ip
    algorithm: fixed_window
    limit: 2/min
  - id: invoices
    endpoint: /v1/invoices
    key: invoice
    algorithm: fixed_window
    limit: 1/min
  - id: people
    endpoint: /v1/people
    key: [tenant, user]
    algorithm: fixed_window
    limit: 1/min
  - id: vip
    endpoint: /v1/vip
    tier: gold
    algorithm: fixed_window
    limit: 1/min
  - id: edge
    endpoint: /v1/edge
    domain: envoy
    algorithm: fixed_window
    limit: 1/min
  - id: captcha
    endpoint: /v1/captcha
    algorithm: fixed_window
    limit: 1/min
    on_exceed: { flag: { header: X-Captcha } }
tiers:
  gold: { keys: [unused] }
allow: [sk_internal_*, 192.0.2.0/24]
deny: [sk_bad, 198.51.100.0/24]
";

pub struct DoorFixture {
    pub address: SocketAddr,
    pub clock: ManualClock,
    pub door: Arc<HttpDoor>,
    pub stop: oneshot::Sender<()>,
    pub served: JoinHandle<usize>,
}

impl DoorFixture {
    /// A door with [`RULES`] and a manual clock.
    pub async fn start() -> Self {
        Self::start_with(RULES).await
    }

    /// With other rules.
    pub async fn start_with(rules: &str) -> Self {
        let clock = ManualClock::new(START_US);
        Self::serving(door_with(rules, Clock::Manual(clock.clone())), clock).await
    }

    async fn serving(door: Arc<HttpDoor>, clock: ManualClock) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async { stopped.await.unwrap_or_default() };
        let served = tokio::spawn(Arc::clone(&door).serve(listener, shutdown, HttpDoor::default_options()));
        Self { address, clock, door, stop, served }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }
}

/// A door for a limiter with its own clock.
pub async fn serve(limiter: Limiter) -> DoorFixture {
    DoorFixture::serving(door_of(limiter), ManualClock::new(START_US)).await
}

pub fn door(clock: Clock) -> Arc<HttpDoor> {
    door_with(RULES, clock)
}

fn door_with(rules: &str, clock: Clock) -> Arc<HttpDoor> {
    let limiter = Limiter::new(MemoryStore::new(1 << 24), clock);
    let loaded = load("test.yaml", rules).unwrap_or_else(|report| panic!("{report}"));
    limiter.install(loaded.rules, loaded.lists).unwrap();
    door_of(limiter)
}

fn door_of(limiter: Limiter) -> Arc<HttpDoor> {
    let readiness = Arc::new(Readiness::default());
    readiness.set_rules_installed();
    let (limiter, headers) = (Arc::new(limiter), HeaderOptions::default());
    let forward_auth =
        ForwardAuth::new(Arc::clone(&limiter), headers, Arc::default(), ForwardAuthOptions::default());
    Arc::new(HttpDoor { limiter, headers, forward_auth, readiness })
}
