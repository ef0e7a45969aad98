//! A running RLS door, and its client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tollgate_core::rules::load;
use tollgate_http::HeaderOptions;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tollgate_listen::ListenerSetup;
use tollgate_server::rls_door::DescriptorCharging;
use tollgate_server::rls_door::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
};
use tollgate_server::{Readiness, RlsDoor};
use tollgate_testbed::PATIENCE;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub const START_US: u64 = 1_800_000_000_000_000;
pub const RULES: &str = "
rules:
  - { id: users, match: { exactly: [user] }, key: user, limit: 3/min }
  - { id: tenants, match: { exactly: [tenant] }, key: tenant, limit: 2/min }
  - { id: orders, domain: shop, endpoint: /v1/orders, key: api_key, limit: 1/min }
  - { id: slots, match: { exactly: [slots] }, key: slots, algorithm: concurrency, limit: 2 }
  - { id: flagged, match: { exactly: [flagged] }, key: flagged, limit: 1/min, on_exceed: { flag: { header: x-over-limit } } }
  - { id: shadowed, match: { exactly: [shadowed] }, key: shadowed, limit: 1/min, on_exceed: shadow }
allow: [sk_internal_*]
deny: [sk_bad]
";

pub struct RlsFixture {
    pub address: SocketAddr,
    pub clock: ManualClock,
    pub readiness: Arc<Readiness>,
    pub stop: Option<oneshot::Sender<()>>,
    pub served: JoinHandle<usize>,
    limiter: Arc<Limiter>,
}

impl RlsFixture {
    pub async fn start() -> Self {
        Self::with(RULES).await
    }

    pub async fn with(rules: &str) -> Self {
        let clock = ManualClock::new(START_US);
        let limiter = Limiter::new(MemoryStore::new(16 << 20), Clock::Manual(clock.clone()));
        Self::of(limiter, clock, rules).await
    }

    /// Of a limiter, in which it installs `rules`.
    pub async fn of(limiter: Limiter, clock: ManualClock, rules: &str) -> Self {
        let loaded = load("rules.yaml", rules).unwrap_or_else(|report| panic!("{report}"));
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let readiness = Arc::new(Readiness::default());
        readiness.set_rules_installed();
        let limiter = Arc::new(limiter);
        let (headers, descriptors) = (HeaderOptions::default(), DescriptorCharging::default());
        Self::serve(RlsDoor { limiter, headers, descriptors, readiness }, clock).await
    }

    async fn serve(door: RlsDoor, clock: ManualClock) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        let (readiness, limiter) = (Arc::clone(&door.readiness), Arc::clone(&door.limiter));
        let options = RlsDoor::default_options();
        let serving = Arc::new(door).serve(listener, ListenerSetup::default(), shutdown, options);
        Self { address, clock, readiness, stop: Some(stop), served: tokio::spawn(serving), limiter }
    }

    async fn again(self, headers: HeaderOptions, descriptors: DescriptorCharging) -> Self {
        let (limiter, readiness) = (Arc::clone(&self.limiter), Arc::clone(&self.readiness));
        Self::serve(RlsDoor { limiter, headers, descriptors, readiness }, self.clock.clone()).await
    }

    /// The same limiter at a door that charges descriptors in this way.
    pub async fn charging(self, descriptors: DescriptorCharging) -> Self {
        self.again(HeaderOptions::default(), descriptors).await
    }

    /// The same limiter at a door that sends these headers.
    pub async fn sending(self, headers: HeaderOptions) -> Self {
        self.again(headers, DescriptorCharging::default()).await
    }

    /// The same limiter at a door of a node that is not ready.
    pub async fn not_ready(self) -> Self {
        let (limiter, readiness) = (Arc::clone(&self.limiter), Arc::new(Readiness::default()));
        let (headers, descriptors) = (HeaderOptions::default(), DescriptorCharging::default());
        Self::serve(RlsDoor { limiter, headers, descriptors, readiness }, self.clock.clone()).await
    }

    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::try_from(format!("http://{}", self.address)).unwrap();
        timeout(PATIENCE, endpoint.connect()).await.unwrap().unwrap()
    }

    pub async fn client(&self) -> RlsClient {
        RlsClient(RateLimitServiceClient::new(self.channel().await))
    }

    /// The decisions of a rule with this outcome at this door.
    pub fn counted(&self, rule: &str, outcome: &str) -> u64 {
        let samples = MetricSamples::of([self.limiter.as_ref() as &dyn MetricSource]);
        let counts = samples.of_metric(&catalog::DECISIONS).iter().filter_map(|sample| {
            let [of_rule, _, _, _, door, found] = &sample.labels[..] else { panic!("six labels") };
            let is_asked = (&**of_rule, &**door, &**found) == (rule, "rls", outcome);
            sample.as_count().filter(|_| is_asked)
        });
        counts.sum()
    }
}

pub struct RlsClient(pub RateLimitServiceClient<Channel>);

impl RlsClient {
    /// The answer; every status has a code, and there is one for each descriptor.
    pub async fn ask(&mut self, request: &RateLimitRequest) -> RateLimitResponse {
        self.try_ask(request).await.unwrap_or_else(|error| panic!("{error}: {request:?}"))
    }

    pub async fn try_ask(&mut self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let answer =
            timeout(PATIENCE, self.0.should_rate_limit(request.clone())).await.unwrap()?.into_inner();
        assert_eq!(answer.statuses.len(), request.descriptors.len());
        assert!(answer.statuses.iter().all(|status| status.code() != Code::Unknown), "{answer:?}");
        assert_ne!(answer.overall_code(), Code::Unknown);
        Ok(answer)
    }
}

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

pub fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".to_owned(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

/// The code and what remains of each descriptor.
pub fn statuses(answer: &RateLimitResponse) -> Vec<(Code, u32)> {
    answer.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect()
}

pub fn over(remaining: u32) -> (Code, u32) {
    (Code::OverLimit, remaining)
}

/// The headers that the proxy adds to the response.
pub fn headers(response: &RateLimitResponse) -> BTreeMap<&str, &str> {
    response.response_headers_to_add.iter().map(|header| (&*header.key, &*header.value)).collect()
}

/// A field of the dynamic metadata.
pub fn metadata(response: &RateLimitResponse, name: &str) -> Option<String> {
    use prost_types::value::Kind;
    match response.dynamic_metadata.as_ref()?.fields.get(name)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.clone()),
        other => panic!("{other:?}"),
    }
}
