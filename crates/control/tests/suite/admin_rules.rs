//! Rules over REST: reading, publishing, changing parts, history.

use crate::admin_fixture::{AdminFixture, RULES};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_testbed::PATIENCE;

fn revision(admin_reply: &crate::client::Reply) -> u64 {
    assert_eq!(admin_reply.status, 200, "{admin_reply:?}");
    admin_reply.json()["revision"].as_u64().unwrap()
}

async fn yaml(admin: &AdminFixture) -> String {
    admin.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "").await.body
}

#[tokio::test]
async fn rules_are_shown_as_json_and_yaml() {
    let admin = AdminFixture::start().await;
    let reply = admin.get("/v1/rules").await;
    assert_eq!((reply.status, reply.header("etag")), (200, "\"1\""));
    let rules = reply.json();
    assert_eq!(
        (&rules["revision"], &rules["origin"], &rules["author"]),
        (&json!(1), &json!("file"), &json!("file"))
    );
    assert_eq!(rules["yaml"], RULES);
    let api = &rules["rules"][1];
    assert_eq!(
        (&api["id"], &api["algorithm"], &api["line"]),
        (&json!("api"), &json!("token_bucket"), &json!(13))
    );
    assert_eq!(api["key"], json!(["api_key"]));
    assert_eq!(api["limits"][0]["limit"], 60, "{api}");
    let reply = admin.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "").await;
    assert_eq!((reply.header("content-type"), reply.body.as_str()), ("application/yaml", RULES));
    let known = admin.call("GET", "/v1/rules", "If-None-Match: \"1\"\r\n", "").await;
    assert_eq!((known.status, known.header("etag"), known.body.as_str()), (304, "\"1\"", ""));
    assert_eq!(admin.call("GET", "/v1/rules", "If-None-Match: \"2\"\r\n", "").await.status, 200);
    let digest = admin.get("/v1/revisions/1").await.json()["digest"].as_str().unwrap().to_owned();
    for (digest, status) in [(digest.as_str(), 304), ("another", 200)] {
        let path = format!("/v1/rules?digest={digest}");
        assert_eq!(admin.call("GET", &path, "If-None-Match: \"1\"\r\n", "").await.status, status);
    }
}

#[tokio::test]
async fn a_publish_names_the_revision_that_it_replaces() {
    let admin = AdminFixture::start().await;
    let new = RULES.replace("60/min", "70/min");
    let reply = admin.call("PUT", "/v1/rules", "", &new).await;
    assert_eq!((reply.status, reply.json()["code"].as_str()), (428, Some("PRECONDITION_REQUIRED")));
    let reply = admin.call("PUT", "/v1/rules", "If-Match: \"7\"\r\n", &new).await;
    assert_eq!((reply.status, &reply.json()["current"]), (412, &json!(1)));
    assert_eq!(admin.call("PUT", "/v1/rules", "If-Match: 1\r\n", &new).await.status, 400);
    let headers = "If-Match: \"1\"\r\nX-Message: more for the api\r\n";
    assert_eq!(revision(&admin.call("PUT", "/v1/rules", headers, &new).await), 2);
    assert_eq!(yaml(&admin).await, new);
    let again = admin.call("PUT", "/v1/rules", "If-Match: \"2\"\r\n", &new).await;
    assert_eq!(revision(&again), 2, "the same text again is no change");
    assert_eq!(
        admin.call("PUT", "/v1/rules", headers, RULES).await.status,
        412,
        "of two writers one is told"
    );
    let history = admin.get("/v1/revisions").await.json();
    let newest = &history["revisions"][0];
    assert_eq!((&newest["revision"], &newest["message"]), (&json!(2), &json!("more for the api")));
    assert_eq!((&newest["author"], &newest["origin"]), (&json!("operate.token"), &json!("published")));
    assert_eq!(admin.audited().await, [("rules.publish".to_owned(), "rules".to_owned())]);
}

#[tokio::test]
async fn rules_may_be_json() {
    let admin = AdminFixture::start().await;
    let json_type = "If-Match: \"1\"\r\nContent-Type: application/json\r\n";
    let body = json!({ "yaml": RULES.replace("60/min", "61/min") }).to_string();
    assert_eq!(revision(&admin.call("PUT", "/v1/rules", json_type, &body).await), 2);
    assert!(yaml(&admin).await.contains("limit: 61/min"));
    let body = json!({ "rules": [{ "id": "api", "key": "ip", "limit": "5/s" }] }).to_string();
    assert_eq!(revision(&admin.call("PUT", "/v1/rules", &json_type.replace('1', "2"), &body).await), 3);
    assert_eq!(admin.get("/v1/rules/api").await.json()["limit"], "5/s");
    for body in [r#"{"yaml":5}"#, r#"{"yaml":"rules: []","more":1}"#, "[]", "{", "\"text\""] {
        let reply = admin.call("PUT", "/v1/rules", &json_type.replace('1', "3"), body).await;
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
    }
}

#[tokio::test]
async fn bad_rules_are_refused_with_positions() {
    let admin = AdminFixture::start().await;
    for (text, line, expected) in [
        ("rules:\n  - { id: api, key: api_key, limit: 0/min }\n", 2, "reject every request"),
        ("rules:\n  - { id: api, key: api_key, limit: 5/min, colour: red }\n", 2, "colour"),
        ("rules:\n  - { id: a, limit: 5/s }\n  - { id: a, limit: 5/s }\n", 3, "a"),
        ("rules: [\n", 1, ""),
        ("", 1, ""),
        ("deny: ['*']\nrules:\n  - { id: api, key: api_key, limit: 5/min }\n", 1, ""),
    ] {
        let reply = admin.call("PUT", "/v1/rules", "If-Match: \"1\"\r\n", text).await;
        assert_eq!(reply.status, 422, "{text}: {reply:?}");
        let problem = reply.json();
        assert_eq!(problem["code"], "INVALID");
        let first = &problem["errors"][0];
        assert_eq!(first["line"], line, "{text}: {problem}");
        assert!(first["message"].as_str().unwrap().contains(expected), "{problem}");
        let verdict = admin.call("POST", "/v1/rules/validate", "", text).await.json();
        assert_eq!((&verdict["valid"], &verdict["errors"][0]), (&json!(false), first));
    }
    let failing = "rules:\n  - { id: api, key: api_key, limit: 5/min }\ntests:\n  - name: six pass\n    request: { key: a }\n    steps: [{ send: 6, pass: 6 }]\n";
    let reply = admin.call("PUT", "/v1/rules", "If-Match: \"1\"\r\n", failing).await;
    assert_eq!((reply.status, &reply.json()["errors"][0]["line"]), (422, &json!(4)), "{reply:?}");
    let verdict = admin.call("POST", "/v1/rules/validate", "", failing).await.json();
    assert_eq!((&verdict["valid"], &verdict["tests"][0]["passed"]), (&json!(false), &json!(false)));
    assert_eq!(yaml(&admin).await, RULES, "the old rules stay");
    assert!(admin.audited().await.is_empty());
}

#[tokio::test]
async fn the_numbers_of_a_tier_change_and_comments_stay() {
    let admin = AdminFixture::start().await;
    let reply = admin.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":500,"capacity":500}"#).await;
    assert_eq!(revision(&reply), 2);
    let text = yaml(&admin).await;
    let changed: Vec<(&str, &str)> =
        RULES.lines().zip(text.lines()).filter(|(old, new)| old != new).collect();
    assert_eq!(changed, [("    limit: 1000/min", "    limit: 500/min")], "{text}");
    assert!(text.contains("# paid") && text.contains("# for everybody"), "{text}");
    for (path, headers, body, status) in [
        ("/v1/rules/tier/gold", "", r#"{"limit":5}"#, 404),
        ("/v1/rules/tier/pro", "", r#"{"limit":0}"#, 422),
        ("/v1/rules/tier/pro", "", r#"{"limit":-5}"#, 400),
        ("/v1/rules/tier/pro", "", r#"{"limits":5}"#, 400),
        ("/v1/rules/tier/pro", "", "", 400),
        ("/v1/rules/tier/pro", "", "[5]", 400),
        ("/v1/rules/tier/pro", "If-Match: \"1\"\r\n", r#"{"limit":5}"#, 412),
    ] {
        let reply = admin.call("PUT", path, headers, body).await;
        assert_eq!(reply.status, status, "{path} {body}: {reply:?}");
    }
    let reply = admin.call("PUT", "/v1/rules/tier/pro", "If-Match: \"2\"\r\n", r#"{"limit":"5/s"}"#).await;
    assert_eq!(revision(&reply), 3);
}

#[tokio::test]
async fn one_rule_is_read_put_patched_and_removed() {
    let admin = AdminFixture::start().await;
    let reply = admin.get("/v1/rules/api").await;
    assert_eq!((reply.header("etag"), &reply.json()["limit"]), ("\"1\"", &json!("60/min")));
    assert_eq!(admin.get("/v1/rules/none").await.status, 404);
    let patch = |tag: u64, body: &'static str| {
        let headers = format!("If-Match: \"{tag}\"\r\n");
        let admin = &admin;
        async move { admin.call("PATCH", "/v1/rules/api", &headers, body).await }
    };
    assert_eq!(admin.call("PATCH", "/v1/rules/api", "", "{}").await.status, 428);
    assert_eq!(revision(&patch(1, r#"{"limit":"70/min"}"#).await), 2);
    assert!(yaml(&admin).await.contains("  - id: api        # all endpoints\n"), "comments stay");
    assert_eq!(patch(1, r#"{"limit":"80/min"}"#).await.status, 412);
    assert_eq!(patch(2, r#"{"limit":"0/min"}"#).await.status, 422);
    assert_eq!(patch(2, r#"{"nonsense":1}"#).await.status, 422);
    let new = r#"{"key":"ip","limit":"9/s"}"#;
    let put = admin.call("PUT", "/v1/rules/per-address", "If-Match: \"2\"\r\n", new).await;
    assert_eq!(revision(&put), 3);
    assert_eq!(admin.get("/v1/rules/per-address").await.json()["limit"], "9/s");
    let gone = admin.call("DELETE", "/v1/rules/per-address", "If-Match: \"3\"\r\n", "").await;
    assert_eq!(revision(&gone), 4);
    assert_eq!(admin.call("DELETE", "/v1/rules/per-address", "If-Match: \"4\"\r\n", "").await.status, 404);
    assert_eq!(yaml(&admin).await.trim_end(), RULES.replace("60/min", "70/min").trim_end());
    let names: Vec<String> = admin.audited().await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(names, ["rule.remove", "rule.put", "rule.patch"]);
}

#[tokio::test]
async fn numbers_of_a_tier_that_do_nothing_or_too_much_are_refused() {
    let admin = AdminFixture::start().await;
    let unused =
        "tiers: { pro: { keys: [k], limit: 9/s } }\nrules: [{ id: api, key: api_key, limit: 5/s }]\n";
    for (tier, body, status, expected) in [
        ("gold", r#"{"limit":500}"#, 404, "there is no tier `gold`; there are free, pro"),
        ("pro", r#"{"limit":0}"#, 422, "a limit of 0 rejects all traffic"),
        ("pro", r#"{"limit":"0/min"}"#, 422, "a limit of 0 rejects all traffic"),
        ("pro", r#"{"limit":500,"capacity":0}"#, 422, "a limit of 0 rejects all traffic"),
        ("gold", r#"{"limit":0}"#, 422, "a limit of 0 rejects all traffic"),
    ] {
        let reply = admin.call("PUT", &format!("/v1/rules/tier/{tier}"), "", body).await;
        assert_eq!(reply.status, status, "{tier} {body}: {reply:?}");
        assert!(reply.json()["detail"].as_str().unwrap().starts_with(expected), "{reply:?}");
    }
    assert_eq!(revision(&admin.call("PUT", "/v1/rules", "If-Match: \"1\"\r\n", unused).await), 2);
    let reply = admin.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":500}"#).await;
    assert_eq!(reply.status, 422, "{reply:?}");
    assert!(reply.json()["detail"].as_str().unwrap().contains("no rule takes the numbers of tier `pro`"));
    assert_eq!(yaml(&admin).await, unused);
}

#[tokio::test]
async fn lists_have_entries_with_an_end_and_a_reason() {
    let admin = AdminFixture::start().await;
    let body = r#"{"key":"10.0.0.0/8","for":"10m","reason":"scanner"}"#;
    assert_eq!(revision(&admin.call("POST", "/v1/lists/deny", "", body).await), 2);
    assert_eq!(revision(&admin.call("POST", "/v1/lists/allow", "", r#"{"key":"sk_internal_*"}"#).await), 3);
    let lists = admin.get("/v1/lists").await.json();
    let entry = &lists["deny"][0];
    assert_eq!(
        (&entry["key"], &entry["reason"], &entry["expired"]),
        (&json!("10.0.0.0/8"), &json!("scanner"), &json!(false))
    );
    assert!(entry["expires"].as_str().unwrap().ends_with('Z'), "{lists}");
    assert_eq!(
        (&lists["allow"][0]["key"], &lists["allow"][0]["expires"]),
        (&json!("sk_internal_*"), &Value::Null)
    );
    let replaced = r#"{"key":"10.0.0.0/8","expires":"2099-01-01T00:00:00Z"}"#;
    assert_eq!(revision(&admin.call("POST", "/v1/lists/deny", "", replaced).await), 4);
    let lists = admin.get("/v1/lists").await.json();
    assert_eq!(lists["deny"].as_array().unwrap().len(), 1, "the same key is replaced");
    let path = "/v1/lists/deny?key=10.0.0.0%2F8";
    assert_eq!(revision(&admin.call("DELETE", path, "", "").await), 5);
    assert_eq!(admin.call("DELETE", path, "", "").await.status, 404);
    for (path, body, status) in [
        ("/v1/lists/grey", r#"{"key":"a"}"#, 400),
        ("/v1/lists/deny", r#"{"key":""}"#, 422),
        ("/v1/lists/deny", r#"{"key":"a","expires":"2020-01-01T00:00:00Z"}"#, 422),
        ("/v1/lists/deny", r#"{"key":"a","for":"1m","expires":"2099-01-01T00:00:00Z"}"#, 422),
        ("/v1/lists/deny", r#"{"key":"*"}"#, 422),
        ("/v1/lists/deny", r#"{"key":"a","for":"long"}"#, 400),
        ("/v1/lists/deny", r#"{"key":7}"#, 400),
    ] {
        let reply = admin.call("POST", path, "", body).await;
        assert_eq!(reply.status, status, "{path} {body}: {reply:?}");
    }
    assert!(yaml(&admin).await.starts_with(RULES), "what was there stays as it was");
}

#[tokio::test]
async fn a_rollback_is_a_new_revision() {
    let admin = AdminFixture::start().await;
    admin.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":5}"#).await;
    let second = admin.get("/v1/revisions/2").await.json();
    assert_eq!((&second["revision"], second["yaml"] == RULES), (&json!(2), false));
    let reply = admin.call("POST", "/v1/revisions/1/rollback", "", r#"{"message":"too low"}"#).await;
    assert_eq!(revision(&reply), 3);
    assert_eq!(yaml(&admin).await, RULES);
    let history = admin.get("/v1/revisions?count=2").await.json();
    let messages: Vec<&Value> =
        history["revisions"].as_array().unwrap().iter().map(|one| &one["message"]).collect();
    assert_eq!(messages, [&json!("too low"), &json!("")]);
    let older = admin.get("/v1/revisions?before=2").await.json();
    assert_eq!(older["revisions"].as_array().unwrap().len(), 1);
    assert_eq!(
        revision(&admin.call("POST", "/v1/revisions/2/rollback", "", "").await),
        4,
        "no body is needed"
    );
    assert_eq!(admin.get("/v1/revisions").await.json()["revisions"][0]["message"], "rollback to revision 2");
    for (path, status) in [
        ("/v1/revisions/99/rollback", 404),
        ("/v1/revisions/x/rollback", 400),
        ("/v1/revisions/-1/rollback", 400),
    ] {
        assert_eq!(admin.call("POST", path, "", "").await.status, status, "{path}");
    }
    let stale = admin.call("POST", "/v1/revisions/1/rollback", "If-Match: \"3\"\r\n", "").await;
    assert_eq!(stale.status, 412);
    for query in ["count=0", "count=1001", "count=x", "before=-1", "after=1"] {
        assert_eq!(admin.get(&format!("/v1/revisions?{query}")).await.status, 400, "{query}");
        assert_eq!(admin.get(&format!("/v1/audit?{query}")).await.status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_node_without_a_repository_publishes_nothing() {
    let admin = AdminFixture::file_only().await;
    let tier = r#"{"limit":5}"#;
    for (path, body) in [("/v1/rules", RULES), ("/v1/rules/tier/pro", tier)] {
        let reply = admin.call("PUT", path, "If-Match: *\r\n", body).await;
        assert_eq!(reply.status, 409, "{path}: {reply:?}");
        assert!(reply.json()["detail"].as_str().unwrap().contains("`repository` is off"), "{reply:?}");
    }
    admin.create_token("dashboard", "read").await;
}

#[tokio::test]
async fn a_stream_tells_of_new_revisions_and_ends_with_the_node() {
    let admin = AdminFixture::start().await;
    let token = admin.create_token("follower", "read").await;
    let mut stream = TcpStream::connect(admin.address).await.unwrap();
    let head =
        format!("GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = String::new();
    read_until(&mut stream, &mut seen, "event: revision\ndata: 1\n").await;
    assert!(seen.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"), "{seen}");
    admin.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":5}"#).await;
    read_until(&mut stream, &mut seen, "event: revision\ndata: 2\n").await;
    admin.stop.send(()).unwrap();
    read_until(&mut stream, &mut seen, "0\r\n\r\n").await;
    assert_eq!(admin.served.await.unwrap(), 0, "an open stream does not delay the stop");
}

async fn read_until(stream: &mut TcpStream, seen: &mut String, expected: &str) {
    let mut buffer = [0; 4096];
    while !seen.contains(expected) {
        let read =
            tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("no event came").unwrap();
        assert_ne!(read, 0, "the stream ended: {seen}");
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
}

#[tokio::test]
async fn questions_about_rules_change_nothing() {
    let admin = AdminFixture::start().await;
    let new = RULES.replace("60/min", "70/min");
    let diff = admin.call("POST", "/v1/rules/diff", "", &new).await.json();
    assert_eq!((&diff["a"], &diff["b"]), (&json!(1), &Value::Null));
    assert!(diff["unified"].as_str().unwrap().contains("+    limit: 70/min"), "{diff}");
    admin.call("PUT", "/v1/rules", "If-Match: \"1\"\r\n", &new).await;
    let between = admin.get("/v1/revisions/1/diff/2").await.json();
    assert_eq!((&between["b"], &between["lines"]), (&json!(2), &diff["lines"]));
    assert_eq!(admin.get("/v1/revisions/1/diff/9").await.status, 404);
    let request = r#"{"key":"pro_1","endpoint":"/v1/orders"}"#;
    let explained = admin.call("POST", "/v1/rules/explain", "", request).await.json();
    assert_eq!((&explained["tier"], &explained["rules"][0]["id"]), (&json!("pro"), &json!("plan")));
    let other = json!({ "key": "pro_1", "yaml": "deny: [pro_1]\n".to_owned() + RULES }).to_string();
    let denied = admin.call("POST", "/v1/rules/explain", "", &other).await.json();
    assert_eq!(denied["verdict"]["outcome"], "denied", "{denied}");
    for body in [r#"{"nonsense":1}"#, r#"{"yaml":1}"#, "[]"] {
        assert_eq!(admin.call("POST", "/v1/rules/explain", "", body).await.status, 400, "{body}");
    }
    let preview = admin.call("POST", "/v1/rules/preview", "", &new).await;
    assert_eq!((preview.status, &preview.json()["requests"]), (200, &json!(0)), "{preview:?}");
    assert_eq!(admin.call("POST", "/v1/rules/preview", "", "rules: [").await.status, 422);
    assert_eq!(admin.get("/v1/revisions").await.json()["revisions"].as_array().unwrap().len(), 2);
}
