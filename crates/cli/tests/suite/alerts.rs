//! A real Prometheus scrapes a fleet under load and evaluates the shipped alerts. Each fault fires its alerts and no
//! others, and they resolve after it.

mod scaled_rules;
mod traffic;

use crate::process::{TollgateProcess, tollgate};
use scaled_rules::scaled_rules;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tollgate_testbed::{NetworkMode, NetworkProxy, PrometheusServer, RedisServer};
use traffic::Traffic;

const SHIPPED_RULES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/tollgate.rules.yml");
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// The timeout is so long that a machine which is busy with other tests causes no degraded decisions.
const SETTINGS: &str = "abuse: { hot_per_second: 1000 }\nredis: { timeout: 2s }\n";

/// Alerts about latency, which is that of the machine. They are right on a machine that is busy with other tests.
const LATENCY_ALERTS: [&str; 2] = ["TollgateDecisionsSlow", "TollgateStoreSlow"];

/// Most rules look back 5 minutes, which are seconds here. After this time nothing old is left in them.
const WINDOW_MS: u64 = 6_000;
/// For so long no alert may be pending or firing before a fault is over.
const QUIET_MS: u64 = 2_000;
/// Only a failing test waits this long for alerts to fire or to resolve.
const ALERT_PATIENCE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Three nodes on one Redis, under load, and the Prometheus that scrapes them.
struct MonitoredFleet {
    traffic: Traffic,
    prometheus: PrometheusServer,
    nodes: Vec<TollgateProcess>,
    folders: Vec<TempDir>,
    redis: RedisServer,
    /// Between Prometheus and the admin listener of the last node.
    scrape_proxy: NetworkProxy,
    _proxy_runtime: Runtime,
}

impl MonitoredFleet {
    fn start() -> Self {
        let redis = RedisServer::start_with_clock(&[]);
        let folders: Vec<TempDir> = NODES.iter().map(|_| node_folder()).collect();
        let nodes: Vec<_> = folders.iter().map(|folder| node(&redis, folder.path())).collect();
        let mut addresses: Vec<_> = nodes.iter().map(TollgateProcess::admin_address).collect();
        let runtime = Runtime::new().unwrap();
        let scrape_proxy = runtime.block_on(NetworkProxy::start(&addresses[2].to_string()));
        addresses[2] = scrape_proxy.address();
        let targets: Vec<_> = NODES.into_iter().zip(addresses).collect();
        let rules = scaled_rules(&std::fs::read_to_string(SHIPPED_RULES).unwrap());
        let prometheus = PrometheusServer::start(&rules, &targets);
        let traffic = Traffic::start(nodes.iter().map(|node| node.address));
        Self { traffic, prometheus, nodes, folders, redis, scrape_proxy, _proxy_runtime: runtime }
    }

    /// The values of a metric on the nodes.
    fn values(&self, metric: &str) -> BTreeMap<String, f64> {
        let samples = self.prometheus.query(metric);
        samples.into_iter().map(|sample| (sample.labels["instance"].clone(), sample.value)).collect()
    }

    /// The alerts that are pending or firing, or were in the last so many milliseconds.
    fn active_within(&self, ms: u64) -> BTreeSet<String> {
        let past = self.prometheus.query(&format!("count_over_time(ALERTS[{ms}ms])"));
        let past = past.into_iter().map(|sample| sample.labels);
        past.chain(self.prometheus.active_alerts()).filter_map(|labels| alert_name(&labels)).collect()
    }

    /// The alerts that have fired since `start`, also those that have resolved.
    fn fired_since(&self, start: Instant) -> BTreeSet<String> {
        let ms = start.elapsed().as_millis().max(1);
        let samples =
            self.prometheus.query(&format!("max_over_time(ALERTS{{alertstate=\"firing\"}}[{ms}ms])"));
        samples.iter().filter_map(|sample| alert_name(&sample.labels)).collect()
    }

    /// Causes a fault, waits until `expected` have fired, repairs it, and waits until all have resolved. From the fault to
    /// the end no other alert may fire.
    fn fault(&self, expected: &[String], cause: impl FnOnce(&Self), repair: impl FnOnce(&Self)) {
        self.fault_with(expected, &[], cause, repair);
    }

    /// The same if `possible` alerts depend on when the fault falls between two scrapes.
    fn fault_with(
        &self,
        expected: &[String],
        possible: &[&str],
        cause: impl FnOnce(&Self),
        repair: impl FnOnce(&Self),
    ) {
        let expected: BTreeSet<String> = expected.iter().cloned().collect();
        let start = Instant::now();
        cause(self);
        poll(|| {
            let fired = self.fired_since(start);
            let missing: Vec<_> = expected.difference(&fired).collect();
            if missing.is_empty() {
                Ok(())
            } else {
                Err(format!("not fired: {missing:#?}, fired: {fired:#?}"))
            }
        });
        repair(self);
        poll(|| {
            let active = self.active_within(QUIET_MS);
            if active.is_empty() { Ok(()) } else { Err(format!("not resolved: {active:#?}")) }
        });
        let mut fired = self.fired_since(start);
        fired.retain(|alert| !possible.contains(&alert.as_str()));
        assert_eq!(fired, expected, "exactly these fire");
    }
}

fn node_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), traffic::RULES).unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), SETTINGS).unwrap();
    folder
}

fn node(redis: &RedisServer, folder: &Path) -> TollgateProcess {
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--store", &redis.url()]);
    command.current_dir(folder).args(["--config", "tollgate.yaml", "--rules", "rules.yaml"]);
    TollgateProcess::from(&mut command)
}

/// An alert with what it is about, such as `TollgateRulesStale instance=node-2`; none for those about latency.
fn alert_name(labels: &BTreeMap<String, String>) -> Option<String> {
    let mut name = labels["alertname"].clone();
    if LATENCY_ALERTS.contains(&name.as_str()) {
        return None;
    }
    for (label, value) in labels {
        if !["__name__", "alertname", "alertstate", "job", "severity"].contains(&label.as_str()) {
            name += &format!(" {label}={value}");
        }
    }
    Some(name)
}

/// Polls until `holds` returns no error; panics with the last one.
fn poll(mut holds: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(error) = holds() {
        assert!(start.elapsed() < ALERT_PATIENCE, "{error}");
        std::thread::sleep(POLL_EVERY);
    }
}

/// The same alert of each of the nodes.
fn on_all_nodes(alert: &str, more: &str) -> Vec<String> {
    NODES.iter().map(|node| format!("{alert} instance={node}{more}")).collect()
}

#[test]
fn faults_fire_their_alerts_and_no_others() {
    let fleet = MonitoredFleet::start();
    a_healthy_fleet_has_no_alerts(&fleet);
    all_rules_are_evaluated(&fleet);
    metrics_are_well_formed(&fleet);
    a_rejecting_rule_a_hot_key_and_a_bad_rule_file(&fleet);
    a_clock_that_runs_ahead(&fleet);
    a_store_that_does_not_respond(&fleet);
    a_store_that_refuses_writes(&fleet);
    a_node_that_cannot_be_scraped(&fleet);
    all_rules_are_evaluated(&fleet);
}

fn a_healthy_fleet_has_no_alerts(fleet: &MonitoredFleet) {
    let start = Instant::now();
    poll(|| {
        let (up, nodes) = (fleet.values("up"), fleet.values("tollgate_nodes"));
        let is_complete = up.values().eq(&[1.0; 3]) && nodes.values().eq(&[3.0; 3]);
        if is_complete { Ok(()) } else { Err(format!("not up: {up:?}, not three nodes: {nodes:?}")) }
    });
    poll(|| {
        let scrapes = fleet.values(&format!("count_over_time(up[{WINDOW_MS}ms])"));
        let active = fleet.active_within(WINDOW_MS);
        let is_quiet = active.is_empty() && scrapes.values().all(|scrapes| *scrapes >= 10.0);
        if is_quiet { Ok(()) } else { Err(format!("pending or firing: {active:#?}, scrapes: {scrapes:?}")) }
    });
    let mut fired = fleet.fired_since(start);
    // Prometheus takes up to 5 seconds to begin with its targets, so there are no metrics at first.
    fired.remove("TollgateAbsent");
    assert_eq!(fired, BTreeSet::new());
    recorded_series_have_values(fleet);
}

/// An alert about a series that does not exist would be quiet too.
fn recorded_series_have_values(fleet: &MonitoredFleet) {
    for (series, count) in [
        // Two rules, and requests without a rule.
        (r#"job_rule_outcome:tollgate_decisions:rate5m{outcome="allowed"}"#, 3),
        ("job_rule:tollgate_rejected:ratio_rate5m", 2),
        ("job:tollgate_rejected:ratio_rate5m", 1),
        (r#"job_instance_path:tollgate_decision_duration_seconds:p99_rate5m{path="local"}"#, 3),
        (r#"job_instance_path:tollgate_decision_duration_seconds:p99_rate5m{path="remote"}"#, 3),
        ("job_shard:tollgate_store_call_duration_seconds:p99_rate5m", 1),
    ] {
        poll(|| {
            let values: Vec<_> = fleet.prometheus.query(series).iter().map(|sample| sample.value).collect();
            let is_complete = values.len() == count && values.iter().all(|value| value.is_finite());
            if is_complete { Ok(()) } else { Err(format!("{series}: {values:?}")) }
        });
    }
}

/// All rules of the file are loaded, and none has an error such as two series with the same labels.
fn all_rules_are_evaluated(fleet: &MonitoredFleet) {
    let shipped = std::fs::read_to_string(SHIPPED_RULES).unwrap();
    let shipped = shipped.matches("- alert: ").count() + shipped.matches("- record: ").count();
    let groups = fleet.prometheus.api("rules");
    let rules =
        groups["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let rules: Vec<_> =
        rules.map(|rule| (rule["name"].as_str().unwrap(), rule["health"].as_str().unwrap())).collect();
    assert_eq!(rules.len(), shipped);
    assert!(rules.iter().all(|(_, health)| *health == "ok"), "{rules:#?}");
}

fn metrics_are_well_formed(fleet: &MonitoredFleet) {
    let metrics = fleet.nodes[0].admin().get("/metrics");
    assert!(metrics.header("content-type").starts_with("text/plain"), "{:?}", metrics.headers);
    let mut linter = Command::new("promtool");
    linter.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut linter = linter.spawn().expect("promtool is installed");
    linter.stdin.take().unwrap().write_all(metrics.body.as_bytes()).unwrap();
    let output = linter.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.is_empty(), "promtool check metrics: {text}");
    // Prometheus asks for OpenMetrics first. In that format the family of a counter is named without `_total`.
    let families = fleet.prometheus.api("metadata");
    assert_eq!(families["tollgate_decisions"][0]["type"], "counter", "{families}");
    assert!(families["tollgate_decisions_total"].is_null(), "scraped as OpenMetrics only");
}

/// Three faults that do not disturb each other. The labels show which alert is of which.
fn a_rejecting_rule_a_hot_key_and_a_bad_rule_file(fleet: &MonitoredFleet) {
    let expected = [
        "TollgateRejectionRateHigh rule=quota",
        "TollgateHotKey",
        "TollgateRulesReloadFailed instance=node-2",
        "TollgateRulesStale instance=node-2",
    ];
    let kind = &fleet.traffic.kind;
    let rules = fleet.folders[1].path().join("rules.yaml");
    fleet.fault(
        &expected.map(str::to_owned),
        |_| {
            kind.is_quota_exceeded.store(true, Ordering::Relaxed);
            kind.is_key_hot.store(true, Ordering::Relaxed);
            std::fs::write(&rules, "rules: [{ id: api, limit: many }]").unwrap();
        },
        |_| {
            kind.is_quota_exceeded.store(false, Ordering::Relaxed);
            kind.is_key_hot.store(false, Ordering::Relaxed);
            std::fs::write(&rules, traffic::RULES).unwrap();
        },
    );
}

/// The clock of Redis is moved in two steps that are too small to count as steps of a clock.
fn a_clock_that_runs_ahead(fleet: &MonitoredFleet) {
    let all_nodes_see = |is_expected: fn(f64) -> bool| {
        poll(|| {
            let drift = fleet.values("tollgate_store_clock_drift_seconds");
            let is_seen = drift.len() == 3 && drift.values().all(|drift| is_expected(*drift));
            if is_seen { Ok(()) } else { Err(format!("{drift:?}")) }
        });
    };
    fleet.fault(
        &on_all_nodes("TollgateClockDrift", " shard=0"),
        |fleet| {
            fleet.redis.step_clock(400);
            all_nodes_see(|drift| drift > 0.3);
            fleet.redis.step_clock(800);
        },
        |fleet| {
            fleet.redis.step_clock(400);
            all_nodes_see(|drift| drift < 0.5);
            fleet.redis.step_clock(0);
        },
    );
}

/// Connections stay open, and calls get no reply.
fn a_store_that_does_not_respond(fleet: &MonitoredFleet) {
    let mut expected = on_all_nodes("TollgateStoreUnavailable", " shard=0");
    expected.extend(degraded_on_all_nodes());
    // The calls that were in flight time out. The alert about it needs them in as many evaluations as its range is long.
    let possible = ["TollgateStoreTimeouts shard=0"];
    fleet.fault_with(&expected, &possible, |fleet| fleet.redis.freeze(), |fleet| fleet.redis.thaw());
}

/// The disk of Redis is full: it answers, but changes nothing.
fn a_store_that_refuses_writes(fleet: &MonitoredFleet) {
    let mut expected = degraded_on_all_nodes();
    expected.push("TollgateStoreRefusesCommands kind=misconf shard=0".to_owned());
    fleet.fault(&expected, |fleet| fleet.redis.fail_to_save(), |fleet| fleet.redis.save_again());
}

/// Prometheus does not reach a node for longer than the range of the rules. The node works meanwhile, and its counters of
/// errors from earlier faults are above zero when its series are back: nothing but its absence may fire.
fn a_node_that_cannot_be_scraped(fleet: &MonitoredFleet) {
    let expected = ["TollgateNodeDown instance=node-3".to_owned()];
    fleet.fault(
        &expected,
        |fleet| fleet.scrape_proxy.set(NetworkMode::Refuse),
        |fleet| {
            poll(|| {
                let scrapes = fleet.values(&format!("sum_over_time(up[{WINDOW_MS}ms])"));
                if scrapes["node-3"] == 0.0 { Ok(()) } else { Err(format!("{scrapes:?}")) }
            });
            fleet.scrape_proxy.set(NetworkMode::Pass);
        },
    );
}

fn degraded_on_all_nodes() -> Vec<String> {
    let of_rule = |rule| on_all_nodes("TollgateDegradedDecisions", &format!(" rule={rule}"));
    ["api", "quota"].into_iter().flat_map(of_rule).collect()
}
