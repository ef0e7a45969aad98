//! A node that follows the control plane of another, as two processes.

use crate::http_client::HttpClient;
use crate::process::{TollgateProcess, run, tollgate};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use tollgate_testbed::wait_until;

const RULES: &str = "rules:\n  - { id: api, key: api_key, limit: 5/h }\n";

struct FollowedPlane {
    server: TollgateProcess,
    token: String,
    folder: TempDir,
}

impl FollowedPlane {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let mut command =
            tollgate(["serve", "--listen", "127.0.0.1:0", "--data", "data", "--rules", "rules.yaml"]);
        let server = TollgateProcess::from(command.current_dir(folder.path()));
        let token = server.operate_token();
        Self { server, token, folder }
    }

    fn url(&self) -> String {
        format!("http://{}", self.server.admin_address())
    }

    /// A token that `tollgate token create` makes.
    fn create_token(&self, role: &str) -> String {
        let mut command = tollgate(["token", "create", "edge", "--role", role, "--to", &self.url()]);
        let output = run(command.env("TOLLGATE_TOKEN", &self.token));
        assert_eq!(output.code, Some(0), "{output:?}");
        output.stdout.trim().to_owned()
    }

    fn follower(&self, token: &str, data: &Path) -> TollgateProcess {
        let url = self.url();
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--control-plane", &url, "--data"]);
        TollgateProcess::from(command.arg(data).env("TOLLGATE_CONTROL_TOKEN", token))
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Value {
        let reply = self.server.admin().call(method, path, &self.token, "", body);
        assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
        reply.json()
    }
}

fn admitted(client: &mut HttpClient, key: &str, requests: usize) -> usize {
    (0..requests).filter(|_| client.check(key, "/v1/orders").status == 200).count()
}

#[test]
fn a_follower_applies_what_operators_do_at_its_control_plane() {
    let plane = FollowedPlane::start();
    let token = plane.create_token("follow");
    let data = plane.folder.path().join("follower");
    let follower = plane.follower(&token, &data);
    assert!(follower.start_message.contains("revision 1 of the control plane http://127.0.0.1:"));
    let mut checks = follower.client();
    assert_eq!(admitted(&mut checks, "sk_1", 9), 5);
    wait_until("it is listed", || plane.call("GET", "/v1/nodes", "")["nodes"].as_array().unwrap().len() == 2);
    // Both have the name of this host, in any order.
    let nodes = plane.call("GET", "/v1/nodes", "")["nodes"].clone();
    let listed =
        nodes.as_array().unwrap().iter().find(|node| node["follower"] == true).expect("the follower");
    assert_eq!((&listed["revision"], &listed["behind"]), (&json!(1), &json!(0)));
    assert_eq!(listed["admin"], format!("http://{}", follower.admin_address()));

    plane.call("POST", "/v1/keys/api_key/sk_1/grant", r#"{"tokens":2,"for":"1h"}"#);
    wait_until("the grant is in force", || checks.check("sk_1", "/v1/orders").status == 200);
    assert_eq!(admitted(&mut checks, "sk_1", 9), 1);
    plane.call("POST", "/v1/keys/api_key/sk_2/block", r#"{"for":"1h"}"#);
    wait_until("the block is in force", || checks.check("sk_2", "/v1/orders").status == 403);
    plane.call("PUT", "/v1/emergency", r#"{"mode":"on"}"#);
    let mut address = 0;
    wait_until("the emergency limit is in force", || {
        address += 1;
        (0..11).any(|key| {
            let body = format!(
                r#"{{"key":"k{address}-{key}","ip":"10.0.{}.{}","endpoint":"/"}}"#,
                address / 250,
                address % 250
            );
            let length = body.len();
            checks.send(&format!(
                "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
            // Each key has one request: no rule refuses it.
            checks.reply().status == 429
        })
    });

    // Its own admin listener shows what it runs, and names the place to change it.
    let own = follower.operate_token();
    let rules = follower.admin().call("GET", "/v1/rules", &own, "", "");
    assert_eq!((rules.status, rules.header("etag")), (200, "\"2\""));
    let refused = follower.admin().call("PUT", "/v1/rules", &own, "", RULES);
    assert_eq!(refused.status, 409);
    assert!(refused.json()["detail"].as_str().unwrap().contains(&plane.url()), "{refused:?}");
    follower.signal("TERM");
    let log = follower.rest_of_log();
    assert!(!log.contains(&token) && !log.contains("WARN"), "{log}");
}

#[test]
fn a_follower_without_the_role_says_what_it_needs() {
    let plane = FollowedPlane::start();
    let token = plane.create_token("read");
    let follower = plane.follower(&token, &plane.folder.path().join("follower"));
    for what in ["control state cannot be read", "status of this node cannot be posted"] {
        let line = follower.wait_for_log(what);
        assert!(line.contains("WARN") && line.contains("--role follow"), "{line}");
    }
    assert_eq!(admitted(&mut follower.client(), "sk_1", 9), 5, "it has the rules");
}
