//! The admin listener of a measured server, and a client that scrapes it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tollgate_control::live::{LiveMonitor, LiveParts, LiveSettings, NodeProfile};
use tollgate_control::{
    AdminListener, MetricsSource, OperateTokenFile, RenderedMetrics, RuleOwner, RuleRepository, RuleStatus,
};
use tollgate_limiter::Limiter;
use tollgate_listen::{ListenerSetup, Readiness};
use tollgate_telemetry::{MetricRegistry, TextFormat};

struct BenchMetrics(Arc<MetricRegistry>);

impl MetricsSource for BenchMetrics {
    fn render(&self, accept: &str) -> RenderedMetrics {
        let format = TextFormat::accepted(Some(accept));
        let body = format.render(&self.0.collect()).into_bytes();
        RenderedMetrics { content_type: format.content_type(), body }
    }
}

/// Serves `/metrics` in the runtime of the caller.
pub async fn serve(registry: Arc<MetricRegistry>, limiter: Arc<Limiter>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    let readiness = Arc::new(Readiness::default());
    let (_, rules) = watch::channel(RuleStatus::default());
    let profile = NodeProfile::default();
    let parts =
        LiveParts { profile, limiter: Arc::clone(&limiter), store: None, rules, gateway: Arc::default() };
    let live = LiveMonitor::start(parts, LiveSettings::default()).expect("a thread starts");
    let clock = limiter.clock().clone();
    let admin = AdminListener {
        readiness,
        metrics: Arc::new(BenchMetrics(registry)),
        limiter,
        repository: RuleRepository::open_embedded(None, clock).expect("a repository in memory opens"),
        rule_owner: RuleOwner::Repository,
        doors: Vec::new(),
        live: live.view(),
        operate_token: OperateTokenFile::open(None).expect("the temporary folder is writable"),
        hosts: Vec::new(),
        setup: ListenerSetup::default(),
    };
    tokio::spawn(async move {
        let _live = live;
        admin.serve(listener, std::future::pending()).await
    });
    address
}

/// The text of `/metrics`.
pub fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("the admin listener listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("the admin listener reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the admin listener answers");
    text
}

/// A histogram as it is scraped: the bounds of its buckets, and the cumulative counts.
#[derive(Clone, Debug, Default)]
pub struct ScrapedHistogram(Vec<(f64, f64)>);

impl ScrapedHistogram {
    /// The series in `text` whose name and labels begin with `series`, up to the label `le`.
    pub fn find(text: &str, series: &str) -> Self {
        let buckets = text.lines().filter_map(|line| {
            let (bound, count) = line.strip_prefix(series)?.split_once("le=\"")?.1.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.parse().ok()?))
        });
        Self(buckets.collect())
    }

    /// Adds what was observed between two scrapes.
    pub fn add_growth(&mut self, before: &Self, after: &Self) {
        if self.0.is_empty() {
            self.0 = after.0.iter().map(|(bound, _)| (*bound, 0.0)).collect();
        }
        for ((sum, old), new) in self.0.iter_mut().zip(&before.0).zip(&after.0) {
            sum.1 += new.1 - old.1;
        }
    }

    /// The median, by the method of PromQL's `histogram_quantile`: linear within a bucket.
    pub fn median(&self) -> f64 {
        let rank = self.0.last().map_or(0.0, |(_, count)| count / 2.0);
        let mut below = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= rank {
                return below.0 + (bound - below.0) * (rank - below.1) / (count - below.1);
            }
            below = (*bound, *count);
        }
        f64::NAN
    }
}
