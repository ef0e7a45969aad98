//! The RESP door while the shared store is unavailable: what each command replies, byte by byte.

use crate::resp_fixture::{RespFixture, checked, integers};
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{PATIENCE, RedisServer};

const UNAVAILABLE: &str = "-UNAVAILABLE the shared store is unavailable; try again in a second\r\n";

/// A door with this failure policy, for limits that commands state and for a rule.
async fn door(store: &str, settings: RedisSettings, policy: &str) -> RespFixture {
    let store = RedisStore::open(&store.parse().unwrap(), settings, Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(16 << 20), Clock::system())
        .sharing(store.shared_store(), FailureSettings::default());
    let rules = format!(
        "defaults: {{ on_store_failure: {policy} }}\n\
         rules: [{{ id: orders, endpoint: /v1/orders, key: api_key, limit: 3/min }}]"
    );
    RespFixture::of(limiter, &rules).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_decided_by_the_failure_policy() {
    let mut server = RedisServer::start(&[]);
    let mut doors = Vec::new();
    for policy in ["deny", "allow"] {
        // Nothing listens on this port.
        doors.push((policy, door("redis://127.0.0.1:1", RedisSettings::default(), policy).await));
        // This store is lost after it has answered. It is waited for, so that a slow machine is no outage.
        let patient = RedisSettings { timeout: PATIENCE, ..RedisSettings::default() };
        let lost = door(&server.url(), patient, policy).await;
        let before = ["CL.THROTTLE", policy, "1", "1", "3600"];
        lost.connect().await.ask(&before, &integers([0, 2, 1, -1, 3_600])).await;
        doors.push((policy, lost));
    }
    server.kill();
    let orders = Some("orders");
    for (policy, door) in &doors {
        let mut client = door.connect().await;
        let throttle = ["CL.THROTTLE", "user123", "1", "1", "3600"];
        let check = ["TOLLGATE.CHECK", "sk_1", "/v1/orders"];
        let (throttled, decided) = match *policy {
            "deny" => (UNAVAILABLE.to_owned(), UNAVAILABLE.to_owned()),
            _ => (integers([0, 2, -1, -1, 0]), checked([0, 3, -1, -1, 0], orders)),
        };
        for amount in ["1", "0"] {
            client.ask(&[&throttle[..], &[amount]].concat(), &throttled).await;
            client.ask(&[&check[..], &[amount]].concat(), &decided).await;
        }
        // What is given back is lost under every policy, and no limit has decided. Nothing is refused.
        client.ask(&[&throttle[..], &["-1"]].concat(), &integers([0, 2, -1, -1, 0])).await;
        client.ask(&[&check[..], &["-1"]].concat(), &checked([0, -1, -1, -1, 0], None)).await;
        // Both are 1 if they are left out.
        client.ask(&throttle, &throttled).await;
        client.ask(&check, &decided).await;
        // No limit applies here, so no store is needed.
        client.ask(&["TOLLGATE.CHECK", "sk_1", "/other"], &checked([0, -1, -1, -1, 0], None)).await;
        // The errors keep their places in a pipeline, and the connection goes on.
        client.send(b"PING a\r\nCL.THROTTLE user123 1 1 3600\r\nPING b\r\n").await;
        client.expect(&format!("$1\r\na\r\n{throttled}$1\r\nb\r\n")).await;
    }
}
