//! Shutdown while the shared store is slow: what was read before is answered, by the store.

use crate::resp_fixture::{RespFixture, integers};
use crate::rls_fixture::{RlsFixture, descriptor, request, statuses};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_limiter::metrics::{MetricSamples, catalog};
use tollgate_limiter::{Clock, FailureSettings, Limiter, ManualClock, MemoryStore};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_server::rls_door::proto::Code;
use tollgate_testbed::{PATIENCE, RedisServer, eventually};

const RULES: &str = "rules: [{ id: users, match: { exactly: [user] }, key: user, limit: 6/day }]";

/// A limiter whose decisions wait for the store as long as it is frozen.
async fn patient_limiter(server: &RedisServer) -> (Limiter, RedisStore) {
    let settings = RedisSettings { timeout: PATIENCE, ..RedisSettings::default() };
    let store = RedisStore::open(&server.url().parse().unwrap(), settings, Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(16 << 20), Clock::system())
        .sharing(store.shared_store(), FailureSettings::default());
    (limiter, store)
}

/// Waits until so many calls were sent to the store. They are counted as they are sent, not as they are answered.
async fn calls_are_sent(store: &RedisStore, least: u64) {
    eventually("the store is asked", async || {
        let samples = MetricSamples::of([store.metrics().as_ref()]);
        let calls = samples.of_metric(&catalog::STORE_CALLS).iter().filter_map(|sample| sample.as_count());
        calls.sum::<u64>() >= least
    })
    .await;
}

/// The door no longer listens: it drains.
async fn is_closed(address: SocketAddr) {
    eventually("the door drains", async || TcpStream::connect(address).await.is_err()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_were_read_are_answered() {
    let server = RedisServer::start(&[]);
    let (limiter, store) = patient_limiter(&server).await;
    let mut door = RespFixture::of(limiter, RULES).await;
    let mut client = door.connect().await;
    server.freeze();
    client.send(b"CL.THROTTLE ann 1 1 3600\r\nECHO end\r\n").await;
    calls_are_sent(&store, 1).await;
    door.stop.take().unwrap().send(()).unwrap();
    is_closed(door.address).await;
    server.thaw();
    assert_eq!(client.rest().await, integers([0, 2, 1, -1, 3_600]) + "$3\r\nend\r\n");
    assert_eq!(timeout(PATIENCE, door.served).await.unwrap().unwrap(), 0, "no connection was cut");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_are_answered() {
    let server = RedisServer::start(&[]);
    let (limiter, store) = patient_limiter(&server).await;
    let mut fixture = RlsFixture::of(limiter, ManualClock::new(0), RULES).await;
    let mut client = fixture.client().await;
    server.freeze();
    let call = tokio::spawn(async move { client.ask(&request(&[descriptor(&[("user", "ann")])])).await });
    calls_are_sent(&store, 1).await;
    fixture.stop.take().unwrap().send(()).unwrap();
    is_closed(fixture.address).await;
    server.thaw();
    assert_eq!(statuses(&call.await.unwrap()), [(Code::Ok, 5)]);
    assert_eq!(timeout(PATIENCE, fixture.served).await.unwrap().unwrap(), 0, "no connection was cut");
    store.close().await;
}
