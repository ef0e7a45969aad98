//! Server processes: their cores and their CPU time.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use tollgate_gateway::{Gateway, GatewaySettings, ListenSettings, settings::UpstreamSettings};
use tollgate_http::RateLimitLayer;
use tollgate_listen::{Framing, ListenerSetup, Protocols, ServeOptions};
use tollgate_telemetry::MetricRegistry;

/// A server process that is stopped when this value is dropped.
pub struct ServerProcess {
    child: Child,
    pub address: SocketAddr,
    /// Of its admin listener.
    pub admin: Option<SocketAddr>,
}

impl ServerProcess {
    /// Starts this program in another role of the gateway's bench.
    pub fn bench(role: &[&str]) -> Self {
        Self::start("gateway", role)
    }

    /// Starts this program in another role of `bench`; it prints its address, and that of its admin listener if it has one.
    pub fn start(bench: &str, role: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.arg(bench).args(role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be started again");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it prints its address");
        let mut addresses = line.split_whitespace().map(|text| text.parse().expect("it prints addresses"));
        let address = addresses.next().expect("it prints its address");
        Self { child, address, admin: addresses.next() }
    }

    pub fn new(child: Child, address: SocketAddr) -> Self {
        Self { child, address, admin: None }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Pins the process and its children.
    pub fn pin_all(&self, cores: &str) {
        self.family().into_iter().for_each(|pid| pin(pid, cores));
    }

    /// The CPU time of the process and its children so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.family().into_iter().map(cpu_seconds).sum()
    }

    fn family(&self) -> Vec<u32> {
        let pid = self.pid();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        std::iter::once(pid).chain(children).collect()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // SIGTERM, so that nginx stops its workers.
        let _ = Command::new("kill").arg(self.pid().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The CPU time of all threads, with a resolution of nanoseconds.
fn cpu_seconds(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let nanos = tasks.flatten().filter_map(|task| {
        let times = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        times.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}

/// The busy time and the total time of all cores, in the unit of `/proc/stat`.
pub fn machine_times() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let times: Vec<f64> = line.split_whitespace().skip(1).filter_map(|time| time.parse().ok()).collect();
    // The first eight fields are the total; the fourth and fifth of them are idle time.
    let all: f64 = times.iter().take(8).sum();
    (all - times.iter().skip(3).take(2).sum::<f64>(), all)
}

pub fn pin(pid: u32, cores: &str) {
    let pinned = Command::new("taskset").args(["-acp", cores, &pid.to_string()]).output();
    if !pinned.is_ok_and(|output| output.status.success()) {
        eprintln!("  (pinning failed: server and client share cores)");
    }
}

/// Gives all threads of a process real-time priority on their core; those that it starts later have none.
pub fn raise_priority(pid: u32) {
    let set = Command::new("chrt").args(["-R", "-f", "-a", "-p", "1", &pid.to_string()]).output();
    if !set.is_ok_and(|output| output.status.success()) {
        eprintln!("  (no real-time priority: latencies include scheduling delays)");
    }
}

/// Serves the gateway with the settings of the binary.
pub fn serve_gateway(threads: &str, upstream: &str, rules: &str) {
    let upstream = UpstreamSettings::new("upstream", vec![upstream.parse().expect("an address")]);
    let settings = GatewaySettings::to(upstream);
    let limiter = Arc::new(crate::workload::limiter(rules, 1 << 26));
    let listen = ListenSettings {
        address: ([127, 0, 0, 1], 0).into(),
        threads: threads.parse().expect("a number"),
        options: ServeOptions {
            protocols: Protocols::Http1And2,
            framing: Framing::Strict,
            ..ServeOptions::default()
        },
        setup: ListenerSetup::default(),
        log: None,
    };
    let gateway = Gateway::start(&settings, &RateLimitLayer::new(Arc::clone(&limiter)), &listen);
    let gateway = gateway.expect("a gateway");
    let registry = Arc::new(MetricRegistry::default());
    registry.register(Arc::clone(&limiter) as _);
    registry.register(gateway.metrics());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let admin = crate::admin::serve(registry, limiter).await;
        println!("{} {admin}", gateway.address());
        exit_with_parent();
        std::future::pending().await
    })
}

/// Ends this process when its standard input is closed.
pub fn exit_with_parent() {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}
