//! The admin page in a real browser.

mod appearance;
mod chrome;
mod editing;
mod keys_and_figures;
mod pictures;
mod states;

use crate::process::TollgateProcess;
use chrome::Chrome;
use std::fs;
use std::net::SocketAddr;
use tempfile::TempDir;
use tollgate_testbed::wait_until;

/// Names and messages in these rules are HTML, which must be shown as text.
const MARKUP: &str = "<img src=x onerror=document.title=`broken`>";

const RULES: &str = "rules:
  - id: orders
    endpoint: /v1/orders/{id}
    key: user
    limit: 3/h
  - id: per-address
    key: ip
    limit: 1000/s

tests:
  - name: three orders an hour
    request: { user: ann, endpoint: /v1/orders/7 }
    steps:
      - { send: 4, pass: 3 }
";

/// A node with an empty repository in a folder of its own, and a browser that is signed in at its page.
struct SignedIn {
    chrome: Chrome,
    server: TollgateProcess,
    admin: SocketAddr,
    token: String,
    _folder: TempDir,
}

impl SignedIn {
    async fn start() -> Self {
        Self::with(RULES).await
    }

    async fn with(rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, data) = (folder.path().join("rules.yaml"), folder.path().join("data"));
        fs::write(&file, rules).unwrap();
        let server =
            TollgateProcess::start(["--rules", file.to_str().unwrap(), "--data", data.to_str().unwrap()]);
        let token = fs::read_to_string(data.join("operate.token")).unwrap().trim().to_owned();
        let (chrome, admin) = (Chrome::start().await, server.admin_address());
        chrome.sign_in(admin, &token).await;
        Self { chrome, server, admin, token, _folder: folder }
    }

    /// The status of a check of `user` for an order.
    fn check(&self, user: &str) -> u16 {
        let body = format!(r#"{{"user":"{user}","endpoint":"/v1/orders/7"}}"#);
        let mut client = self.server.client();
        client.send(&format!(
            "POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        client.reply().status
    }

    /// Waits until the node has this revision in force.
    fn wait_for_revision(&self, number: u64) {
        let mut admin = self.server.admin();
        wait_until("the revision is in force", || {
            let metrics = admin.get("/metrics").body;
            let line = metrics.lines().find_map(|line| line.strip_prefix("tollgate_rules_revision "));
            line.is_some_and(|value| value.parse::<f64>().unwrap() as u64 == number)
        });
    }

    /// Calls the REST API with the token of the operator.
    fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> crate::http_client::HttpReply {
        let mut client = self.server.admin();
        client.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            self.admin,
            self.token,
            body.len()
        ));
        client.reply()
    }

    /// Publishes rules as another operator does.
    fn publish(&self, rules: &str, base: u64, message: &str) {
        let headers =
            format!("Content-Type: application/yaml\r\nIf-Match: \"{base}\"\r\nX-Message: {message}\r\n");
        let reply = self.call("PUT", "/v1/rules", &headers, rules);
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    /// Opens the editor.
    async fn edit_rules(&self) {
        self.chrome.go("#/rules").await;
        self.chrome.wait("document.querySelector('textarea')?.value").await;
    }

    /// Writes into the message and publishes.
    async fn publish_draft(&self, message: &str) {
        self.chrome.fill("[aria-label=Message]", message).await;
        self.chrome.click("#publish", "Publish").await;
    }

    /// The console has shown no error, and no violation of the content security policy.
    fn assert_clean_console(&self) {
        // The first question of a page without a session is answered with 401, which browsers report.
        let rest = self.chrome.console().into_iter().filter(|line| !line.contains("401"));
        assert_eq!(rest.collect::<Vec<_>>(), Vec::<String>::new());
    }
}
