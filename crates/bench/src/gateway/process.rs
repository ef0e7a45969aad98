//! Servers as processes of their own: their cores, and what they use of them.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use tollgate_gateway::{Gateway, GatewaySettings, ListenSettings, settings::UpstreamSettings};
use tollgate_http::RateLimitLayer;
use tollgate_listen::{Framing, ListenerSetup, Protocols, ServeOptions};

/// A server that ends with this value.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    /// This program in another role; it says where it listens.
    pub fn bench(role: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.arg("gateway").args(role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be started again");
        let mut line = String::new();
        let said = child.stdout.take().expect("it is piped");
        BufReader::new(said).read_line(&mut line).expect("it says where it listens");
        let address = line.trim().parse().expect("it says where it listens");
        Self { child, address }
    }

    pub fn new(child: Child, address: SocketAddr) -> Self {
        Self { child, address }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Pins it and its children.
    pub fn pin_all(&self, cores: &str) {
        self.family().into_iter().for_each(|pid| pin(pid, cores));
    }

    /// What it and its children have used so far.
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

impl Drop for Process {
    fn drop(&mut self) {
        // TERM, so that nginx takes its workers along.
        let _ = Command::new("kill").arg(self.pid().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The processor time of all threads, to the nanosecond.
fn cpu_seconds(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let nanos = tasks.flatten().filter_map(|task| {
        let times = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        times.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}

/// How long all cores together were busy, and how long they were there, in a unit of the system's.
pub fn machine_times() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let times: Vec<f64> = line.split_whitespace().skip(1).filter_map(|time| time.parse().ok()).collect();
    // The first eight are all; the fourth and fifth of them are idle time.
    let all: f64 = times.iter().take(8).sum();
    (all - times.iter().skip(3).take(2).sum::<f64>(), all)
}

pub fn pin(pid: u32, cores: &str) {
    let pinned = Command::new("taskset").args(["-acp", cores, &pid.to_string()]).output();
    if !pinned.is_ok_and(|output| output.status.success()) {
        eprintln!("  (no core could be set apart: the numbers mix server and client)");
    }
}

/// The gateway, as the binary runs it.
pub fn serve_gateway(threads: &str, upstream: &str, rules: &str) {
    let upstream = UpstreamSettings::new("upstream", vec![upstream.parse().expect("an address")]);
    let settings = GatewaySettings::to(upstream);
    let limiter = crate::setting::limiter(rules, 1 << 26);
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
    let gateway =
        Gateway::start(&settings, &RateLimitLayer::new(Arc::new(limiter)), &listen).expect("a gateway");
    println!("{}", gateway.address());
    end_with_parent();
    loop {
        thread::park();
    }
}

/// Ends this process when its input does.
pub fn end_with_parent() {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}
