//! A node on the embedded repository that is killed right after an acknowledged publish: the revision is there.

use crate::process::{TollgateProcess, tollgate};
use std::path::Path;
use tokio::time::Instant;

const KILLS: u32 = 100;

fn start(folder: &Path) -> TollgateProcess {
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--data", "data"]);
    TollgateProcess::from(command.current_dir(folder))
}

fn rules(limit: u32) -> String {
    format!("rules: [{{ id: api, key: api_key, limit: {limit}/h }}]\n")
}

#[test]
fn an_acknowledged_publish_survives_the_kill_of_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let mut node = start(folder.path());
    let token = node.operate_token();
    for kill in 1..=KILLS {
        // The built-in example is the first revision.
        let (base, limit) = (format!("If-Match: \"{kill}\"\r\n"), 100 + kill);
        let reply = node.admin().call("PUT", "/v1/rules", &token, &base, &rules(limit));
        assert_eq!(reply.body, format!("{{\"revision\":{}}}", kill + 1), "{reply:?}");
        node.signal("KILL");
        assert_eq!(node.wait().code(), None);

        node = start(folder.path());
        let accept = "Accept: application/yaml\r\n";
        let stored = node.admin().call("GET", "/v1/rules", &token, accept, "");
        assert_eq!(stored.header("etag"), format!("\"{}\"", kill + 1));
        assert_eq!(stored.body, rules(limit));
        let checked = node.client().check("alice", "/");
        assert_eq!(checked.header("x-ratelimit-limit"), limit.to_string(), "in force from the first check");
    }
    let history = node.admin().call("GET", "/v1/revisions?count=1000", &token, "", "").json();
    assert_eq!(history["revisions"].as_array().unwrap().len() as u32, KILLS + 1, "no number is missing");
    println!("{KILLS} kills in {:?}", begin.elapsed());
}
