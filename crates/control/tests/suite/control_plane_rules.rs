//! A node that follows a control plane over HTTP.

use crate::fleet_node::NO_POLL;
use crate::followed_file::{limiter, quota, rules};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_control::{
    ControlPlaneRules, FollowedRules, HttpClient, InstallSettings, RuleSourceError, RuleStatus, SourceHealth,
    text_digest,
};
use tollgate_limiter::Limiter;
use tollgate_testbed::{PATIENCE, eventually, wait_until};

const POLL: Duration = Duration::from_millis(200);
const TOKEN: &str = "tg_read";

/// A control plane with one revision and a stream of events.
struct TestControlPlane {
    url: String,
    revision: watch::Sender<(u64, String)>,
    requests: Arc<Mutex<Vec<String>>>,
    has_events: bool,
    serving: Option<JoinHandle<()>>,
}

impl TestControlPlane {
    async fn start(has_events: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut plane = Self {
            url,
            revision: watch::Sender::new((1, rules(5))),
            requests: Arc::default(),
            has_events,
            serving: None,
        };
        plane.serve(listener);
        plane
    }

    fn serve(&mut self, listener: TcpListener) {
        let (revision, requests, has_events) =
            (self.revision.clone(), Arc::clone(&self.requests), self.has_events);
        self.serving = Some(tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(respond(stream, revision.subscribe(), Arc::clone(&requests), has_events));
            }
        }));
    }

    async fn stop(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.abort();
        let _ = serving.await;
    }

    async fn start_again(&mut self) {
        let address = self.url.strip_prefix("http://").unwrap();
        let listener = TcpListener::bind(address).await.unwrap();
        self.serve(listener);
    }

    fn publish(&self, number: u64, capacity: u32) {
        self.revision.send_replace((number, rules(capacity)));
    }
}

async fn respond(
    stream: TcpStream,
    mut revision: watch::Receiver<(u64, String)>,
    requests: Arc<Mutex<Vec<String>>>,
    has_events: bool,
) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    requests.lock().push(head.clone());
    let head = head.to_lowercase();
    let (number, yaml) = revision.borrow_and_update().clone();
    let reply = if !head.contains("authorization: bearer tg_read\r\n") {
        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".to_owned()
    } else if head.starts_with("get /v1/events/stream?only=changes ") && has_events {
        let start = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: live\ndata: {}\n\n";
        stream.write_all(start.as_bytes()).await.unwrap();
        while revision.changed().await.is_ok() {
            let number = revision.borrow_and_update().0;
            let event = format!("event: revision\ndata: {number}\n\n");
            if stream.write_all(event.as_bytes()).await.is_err() {
                return;
            }
        }
        return;
    } else if head.starts_with("get /v1/rules ") || head.starts_with("get /v1/rules?digest=") {
        let has_text = head.starts_with(&format!("get /v1/rules?digest={} ", text_digest(&yaml)));
        if has_text && head.contains(&format!("if-none-match: \"{number}\"\r\n")) {
            "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
        } else {
            let body = serde_json::json!({
                "revision": number, "digest": "", "author": "ana", "time": "2026-11-18T02:00:00Z", "message": "",
                "origin": "published", "yaml": yaml,
            });
            let body = body.to_string();
            format!("HTTP/1.1 200 OK\r\netag: \"{number}\"\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        }
    } else {
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned()
    };
    let _ = stream.write_all(reply.as_bytes()).await;
}

/// A node that follows the control plane.
struct FollowerNode {
    limiter: Arc<Limiter>,
    status: watch::Receiver<RuleStatus>,
    health: SourceHealth,
    _followed: FollowedRules,
}

impl FollowerNode {
    async fn start(url: &str, poll: Duration, data: Option<&Path>) -> Result<Self, RuleSourceError> {
        let limiter = limiter();
        let client = HttpClient::new(url, Some(TOKEN), None).unwrap();
        let settings = InstallSettings { data: data.map(Path::to_owned), ..InstallSettings::default() };
        let rules = ControlPlaneRules::open(client, poll, settings, Arc::clone(&limiter)).await?;
        let (status, health) = (rules.status(), rules.health());
        Ok(Self { limiter, status, health, _followed: rules.follow().unwrap() })
    }

    async fn until(&self, number: u64, capacity: u32) {
        let mut status = self.status.clone();
        let reached = status.wait_for(|status| status.revision == number && status.error.is_none());
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{number}")).unwrap();
        assert_eq!(quota(&self.limiter, "a"), Some(capacity));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_new_revisions() {
    let plane = TestControlPlane::start(true).await;
    let node = FollowerNode::start(&plane.url, NO_POLL, None).await.unwrap();
    node.until(1, 5).await;
    // The stream must be open before the change, because nothing polls.
    eventually("the stream is open", async || {
        plane.requests.lock().iter().any(|request| request.starts_with("GET /v1/events/stream"))
    })
    .await;
    for number in 2..=5 {
        plane.publish(number, 10 + number as u32);
        node.until(number, 10 + number as u32).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_events_the_control_plane_is_polled() {
    let plane = TestControlPlane::start(false).await;
    let node = FollowerNode::start(&plane.url, POLL, None).await.unwrap();
    plane.publish(2, 12);
    node.until(2, 12).await;
    eventually("a poll is conditional", async || {
        plane.requests.lock().iter().any(|request| request.contains("if-none-match: \"2\""))
    })
    .await;
    // Another text of the same number is used: the control plane was restored from a backup.
    plane.publish(2, 14);
    eventually("the other text is in force", async || quota(&node.limiter, "a") == Some(14)).await;
    // Older revisions are not used.
    plane.publish(1, 99);
    let polls =
        || plane.requests.lock().iter().filter(|request| request.starts_with("GET /v1/rules")).count();
    let before = polls();
    eventually("it is polled again", async || polls() >= before + 2).await;
    assert_eq!((node.status.borrow().revision, quota(&node.limiter, "a")), (2, Some(14)));
    plane.publish(3, 13);
    node.until(3, 13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_good_rules_are_used_while_the_control_plane_is_down() {
    let mut plane = TestControlPlane::start(true).await;
    let data = tempfile::tempdir().unwrap();
    let node = FollowerNode::start(&plane.url, POLL, Some(data.path())).await.unwrap();
    plane.publish(7, 12);
    node.until(7, 12).await;
    let kept = data.path().join("last-good-rules.yaml");
    wait_until("the rules are kept", || {
        std::fs::read_to_string(&kept).is_ok_and(|text| text.ends_with(&rules(12)))
    });
    plane.stop().await;
    eventually("failed polls are counted", async || node.health.failed_polls() >= 3).await;
    assert_eq!(quota(&node.limiter, "a"), Some(12));
    let restarted = FollowerNode::start(&plane.url, POLL, Some(data.path())).await.unwrap();
    assert_eq!((restarted.status.borrow().revision, quota(&restarted.limiter, "a")), (7, Some(12)));
    assert!(restarted.status.borrow().error.is_some());
    let error = FollowerNode::start(&plane.url, POLL, None).await.err().unwrap().to_string();
    assert!(error.contains("cannot read http://127.0.0.1:"), "{error}");
    plane.publish(8, 13);
    plane.start_again().await;
    for node in [&node, &restarted] {
        node.until(8, 13).await;
        eventually("polls are answered", async || node.health.failed_polls() == 0).await;
    }
}

#[tokio::test]
async fn a_wrong_token_is_an_error_that_does_not_show_it() {
    let plane = TestControlPlane::start(true).await;
    let client = HttpClient::new(&plane.url, Some("tg_wrong"), None).unwrap();
    let opened = ControlPlaneRules::open(client, POLL, InstallSettings::default(), limiter()).await;
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("it answered 401 Unauthorized") && !error.contains("tg_wrong"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_takes_the_older_revision_of_a_control_plane_without_its_data() {
    let plane = TestControlPlane::start(true).await;
    let data = tempfile::tempdir().unwrap();
    plane.publish(7, 12);
    drop(FollowerNode::start(&plane.url, POLL, Some(data.path())).await.unwrap());
    plane.publish(1, 5);
    FollowerNode::start(&plane.url, POLL, Some(data.path())).await.unwrap().until(1, 5).await;
}
