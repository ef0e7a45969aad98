//! A rule file that changes under load.

use crate::process::TollgateProcess;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;

const RELOADS: u32 = 50;
const LIVE_WITHIN: Duration = Duration::from_secs(2);

struct WatchedServer {
    _folder: TempDir,
    path: PathBuf,
    server: TollgateProcess,
}

impl WatchedServer {
    fn start(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, text).unwrap();
        let server = TollgateProcess::start(["--rules".as_ref(), path.as_os_str()]);
        server.wait_for_log("revision=1");
        Self { _folder: folder, path, server }
    }

    fn replace(&self, text: &str) {
        let beside = self.path.with_extension("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &self.path).unwrap();
    }
}

/// Stops the load when it is dropped, even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Refills so slowly that no token comes back during a test; 366 days is the longest time to full.
fn rules(capacity: u32) -> String {
    format!("rules:\n  - {{ id: one, params: {{ capacity: {capacity}, refill_rate: {capacity}/360day }} }}\n")
}

#[test]
fn a_change_is_in_force_and_a_broken_one_is_not() {
    let watched = WatchedServer::start(&rules(100));
    let mut client = watched.server.client();
    let mut ask = || {
        let reply = client.check("a", "/").json();
        (reply["limit"].as_u64().unwrap(), reply["remaining"].as_u64().unwrap())
    };
    assert_eq!(ask(), (100, 99));
    watched.replace(&rules(1_000));
    watched.server.wait_for_log("revision=2");
    assert_eq!(ask(), (1_000, 98), "tokens are kept");
    watched.replace("rules:\n  - id: one\n    limt: 5/min\n");
    watched.server.wait_for_log("rule reload failed");
    watched.server.wait_for_log("rules.yaml:3:5: error: unknown field `limt`");
    assert_eq!(ask(), (1_000, 97));
    watched.replace(&rules(10));
    watched.server.wait_for_log("revision=3");
    assert_eq!(ask(), (10, 9));
}

#[test]
fn fifty_changes_under_load() {
    let many = |capacity| rules(100_000 + capacity);
    let watched = WatchedServer::start(&many(0));
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Without it, a failed test would never end.
        let stopped = StopOnDrop(stop);
        let mut client = watched.server.client();
        let load = scope.spawn(move || {
            let mut checks = 0;
            while !stop.load(Ordering::Relaxed) {
                let reply = client.check("load", "/");
                assert_eq!(reply.status, 200, "{reply:?}");
                assert!(reply.json()["limit"].as_u64().unwrap() >= 100_000, "{reply:?}");
                checks += 1;
            }
            checks
        });
        let mut client = watched.server.client();
        for reload in 1..=RELOADS {
            let changed = Instant::now();
            watched.replace(&many(reload));
            watched.server.wait_for_log(&format!("revision={} ", reload + 1));
            assert_eq!(client.check("a", "/").json()["limit"], 100_000 + reload);
            let took = changed.elapsed();
            assert!(took < LIVE_WITHIN, "change {reload} was in force after {took:?}");
        }
        drop(stopped);
        assert!(load.join().unwrap() > RELOADS, "there was a load");
        let left = client.check("a", "/").json()["remaining"].as_u64().unwrap();
        assert_eq!(left, 100_001 - u64::from(RELOADS) - 1, "tokens are kept");
    });
}
