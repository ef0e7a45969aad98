//! An engine on Redis for the conformance suite.

use crate::conformance::setting::{PLENTY, SECOND_US, START_US, Setting, StoreUnderTest};
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tollgate_limiter::{
    Clock, Decision, FailureSettings, InvalidRequest, Limiter, ManualClock, MemoryStore, Request,
};
use tollgate_redis::{RedisSettings, RedisStore};

/// A store, and this node's own clock.
struct OnRedis {
    store: RedisStore,
    clock: ManualClock,
    /// One thread: what is sent first arrives first.
    runtime: Runtime,
}

impl StoreUnderTest for OnRedis {
    /// This node's clock goes on so fast between two decisions that it holds and remembers nothing.
    fn decide(&self, limiter: &Limiter, request: &Request<'_>) -> Result<Decision, InvalidRequest> {
        self.clock.advance_us(10 * SECOND_US);
        self.runtime.block_on(async {
            let decision = limiter.check(request)?.decision().await;
            // What a refused request had taken elsewhere is back before the time goes on.
            self.store.settled().await;
            Ok(decision)
        })
    }

    fn wait(&self, operation: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        self.clock.advance_us(10 * SECOND_US);
        self.runtime.block_on(async {
            operation.await;
            self.store.settled().await;
        });
    }
}

/// An engine on the Redis at `url`, whose time is the test's as well; every rule is strict.
pub fn on_redis(url: &str, prefix: &str, text: &str) -> Setting {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (clock, own) = (ManualClock::new(START_US), ManualClock::new(START_US));
    let settings = RedisSettings {
        prefix: prefix.to_owned(),
        timeout: Duration::from_secs(5),
        ..RedisSettings::default()
    };
    let url = url.parse().unwrap();
    let opening = RedisStore::open_on_clock(&url, settings, own.clone(), clock.clone());
    let store = runtime.block_on(opening).unwrap();
    let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock.clone()))
        .sharing(store.shared_store(), FailureSettings::default());
    Setting::on_store(limiter, clock, Box::new(OnRedis { store, clock: own, runtime }), text)
}
