//! An admin listener with a repository in memory, and requests to it.

use crate::client::{Client, Reply};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tollgate_control::live::{LiveMonitor, LiveParts, LiveSettings, NodeProfile};
use tollgate_control::{
    AdminListener, MetricsSource, OperateTokenFile, RenderedMetrics, RevisionDraft, RevisionOrigin,
    RuleOwner, RuleRepository, RuleStatus,
};
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_listen::{ListenerSetup, Readiness};

/// Rules with comments that must survive changes.
pub const RULES: &str = "# The limits of the shop.
tiers:
  free: { api_key_pattern: 'free_*', limit: 100/min }   # for everybody
  pro:
    # paid
    api_key_pattern: 'pro_*'
    limit: 1000/min

rules:
  - id: plan       # the limit of the tier
    key: api_key

  - id: api        # all endpoints
    key: api_key
    limit: 60/min
";

/// Metrics that are the `Accept` header. With `panic` in the header, rendering panics.
pub struct EchoMetrics;

impl MetricsSource for EchoMetrics {
    fn render(&self, accept: &str) -> RenderedMetrics {
        assert!(!accept.contains("panic"), "as the test wants");
        RenderedMetrics {
            content_type: "text/plain; version=0.0.4",
            body: format!("[{accept}]\n").into_bytes(),
        }
    }
}

pub struct AdminFixture {
    pub address: SocketAddr,
    pub readiness: Arc<Readiness>,
    pub limiter: Arc<Limiter>,
    /// The operate token.
    pub token: String,
    pub stop: oneshot::Sender<()>,
    pub served: JoinHandle<usize>,
    pub live: LiveMonitor,
    _data: TempDir,
}

/// The parts of a node that its admin listener shows and changes.
pub struct AdministeredNode {
    pub rule_owner: RuleOwner,
    pub repository: RuleRepository,
    pub limiter: Arc<Limiter>,
    pub rules: watch::Receiver<RuleStatus>,
}

impl AdminFixture {
    pub async fn start() -> Self {
        Self::with_metrics(EchoMetrics).await
    }

    pub async fn with_metrics(metrics: impl MetricsSource + 'static) -> Self {
        let repository = RuleRepository::open_embedded(None, Clock::system()).unwrap();
        let draft = RevisionDraft {
            text: RULES.to_owned(),
            author: "file".to_owned(),
            message: String::new(),
            origin: RevisionOrigin::File,
        };
        repository.publish(None, draft).await.unwrap();
        Self::owned_by(metrics, RuleOwner::Repository, repository).await
    }

    /// A node without a repository.
    pub async fn file_only() -> Self {
        let repository = RuleRepository::open_embedded(None, Clock::system()).unwrap();
        Self::owned_by(EchoMetrics, RuleOwner::File, repository).await
    }

    async fn owned_by(
        metrics: impl MetricsSource + 'static,
        rule_owner: RuleOwner,
        repository: RuleRepository,
    ) -> Self {
        let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 20), Clock::system()));
        let rules = watch::channel(RuleStatus::default()).1;
        Self::of_node(metrics, AdministeredNode { rule_owner, repository, limiter, rules }).await
    }

    /// The admin listener of a node.
    pub async fn of_node(metrics: impl MetricsSource + 'static, node: AdministeredNode) -> Self {
        let AdministeredNode { rule_owner, repository, limiter, rules } = node;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Arc::new(Readiness::default());
        let data = tempfile::tempdir().unwrap();
        let operate_token = OperateTokenFile::open(Some(data.path())).unwrap();
        let token = std::fs::read_to_string(operate_token.path()).unwrap().trim().to_owned();
        let live = LiveParts {
            profile: NodeProfile::default(),
            limiter: Arc::clone(&limiter),
            store: None,
            rules,
            gateway: Arc::default(),
        };
        let live = LiveMonitor::start(live, LiveSettings::default()).unwrap();
        let admin = AdminListener {
            readiness: Arc::clone(&readiness),
            metrics: Arc::new(metrics),
            limiter: Arc::clone(&limiter),
            live: live.view(),
            repository,
            rule_owner,
            doors: Vec::new(),
            operate_token,
            hosts: vec!["admin.example".to_owned()],
            setup: ListenerSetup::default(),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            tokio::spawn(async move { admin.serve(listener, async { drop(stopped.await) }).await.unwrap() });
        Self { address, readiness, limiter, token, stop, served, live, _data: data }
    }

    /// The URL of the listener.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The actions in the audit log and their targets, the newest first.
    pub async fn audited(&self) -> Vec<(String, String)> {
        let audit = self.get("/v1/audit").await.json();
        let text = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
        let entries = audit["entries"].as_array().unwrap().iter();
        entries.map(|entry| (text(entry, "action"), text(entry, "target"))).collect()
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Sends a request on a connection of its own. `headers` are whole lines.
    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let mut client = self.client().await;
        client.send(request(method, path, headers, body)).await;
        client.reply().await
    }

    /// The same with the operate token.
    pub async fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let headers = format!("Authorization: Bearer {}\r\n{headers}", self.token);
        self.send(method, path, &headers, body).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "", "").await
    }

    /// A new token.
    pub async fn create_token(&self, name: &str, role: &str) -> String {
        let body = format!(r#"{{"name":"{name}","role":"{role}"}}"#);
        let reply = self.call("POST", "/v1/tokens", "", &body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["token"].as_str().unwrap().to_owned()
    }
}

/// A request as text.
pub fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
