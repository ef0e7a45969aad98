//! Access to the admin API: tokens, sessions, hosts and origins.

use crate::admin_fixture::AdminFixture;
use serde_json::{Value, json};
use tollgate_control::openapi_document;

/// Every endpoint of the description, with values for the variable parts of its path.
fn endpoints() -> Vec<(String, String)> {
    let document = openapi_document();
    let mut endpoints = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path
            .replace("{revision}", "1")
            .replace("{a}", "1")
            .replace("{b}", "1")
            .replace("{list}", "deny")
            .replace("{kind}", "api_key")
            .replace(['{', '}'], "");
        endpoints
            .extend(item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())));
    }
    assert!(endpoints.len() > 15, "{endpoints:?}");
    endpoints
}

fn is_open(method: &str, path: &str) -> bool {
    ["/healthz", "/readyz", "/metrics", "/openapi.json"].contains(&path)
        || (method, path) == ("POST", "/v1/session")
}

/// Changes, and nothing else, need the role `operate`.
fn is_change(method: &str, path: &str) -> bool {
    const READING_POSTS: [&str; 4] =
        ["/v1/rules/validate", "/v1/rules/preview", "/v1/rules/explain", "/v1/rules/diff"];
    method != "GET" && path != "/v1/session" && !READING_POSTS.contains(&path)
}

/// What nodes that follow need, and readers do not get.
fn is_for_followers(path: &str) -> bool {
    path == "/v1/control-state" || path.ends_with("/status")
}

#[tokio::test]
async fn everything_but_the_open_endpoints_needs_a_token() {
    let admin = AdminFixture::start().await;
    admin.readiness.set_rules_installed();
    for (method, path) in endpoints() {
        let reply = admin.send(&method, &path, "", "").await;
        if is_open(&method, &path) {
            assert_ne!(reply.status, 401, "{method} {path}");
            continue;
        }
        assert_eq!(reply.status, 401, "{method} {path}: {reply:?}");
        assert_eq!(reply.json()["code"], "UNAUTHORIZED");
        assert!(reply.header("www-authenticate").starts_with("Bearer"));
        for forged in [
            "Authorization: Bearer tollgate_0000\r\n",
            "Authorization: Basic YTpi\r\n",
            "Authorization: Bearer\r\n",
            "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
            "Cookie: tollgate_session=0000\r\n",
        ] {
            assert_eq!(admin.send(&method, &path, forged, "").await.status, 401, "{method} {path} {forged}");
        }
    }
}

#[tokio::test]
async fn a_read_token_reads_and_changes_nothing() {
    let admin = AdminFixture::start().await;
    let token = admin.create_token("dashboard", "read").await;
    let header = format!("Authorization: Bearer {token}\r\n");
    for (method, path) in endpoints() {
        let reply = admin.send(&method, &path, &header, "").await;
        if is_for_followers(&path) {
            assert_eq!(reply.status, 403, "{method} {path}: {reply:?}");
            assert!(reply.json()["detail"].as_str().unwrap().contains("needs `follow`"), "{reply:?}");
        } else if is_change(&method, &path) {
            assert_eq!(reply.status, 403, "{method} {path}: {reply:?}");
            assert!(reply.json()["detail"].as_str().unwrap().contains("needs `operate`"), "{reply:?}");
        } else {
            assert!(![401, 403].contains(&reply.status), "{method} {path}: {reply:?}");
        }
    }
    assert_eq!(admin.get("/v1/revisions").await.json()["revisions"].as_array().unwrap().len(), 1);
    let session = admin.send("GET", "/v1/session", &header, "").await.json();
    assert_eq!((&session["name"], &session["role"]), (&json!("dashboard"), &json!("read")));
}

#[tokio::test]
async fn a_token_of_a_follower_allows_nothing_else() {
    let admin = AdminFixture::start().await;
    let token = admin.create_token("edge", "follow").await;
    let header = format!("Authorization: Bearer {token}\r\n");
    for (method, path) in endpoints() {
        let reply = admin.send(&method, &path, &header, "").await;
        let is_needed = is_for_followers(&path)
            || method == "GET" && ["/v1/rules", "/v1/events/stream"].contains(&path.as_str());
        let is_forbidden = reply.status == 403;
        assert_eq!(is_forbidden, !is_needed && !is_open(&method, &path), "{method} {path}: {reply:?}");
    }
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    let admin = AdminFixture::start().await;
    let authorization = format!("Authorization: Bearer {}\r\n", admin.token);
    for (host, origin, expected) in [
        ("localhost", "", 200),
        ("127.0.0.1:9090", "", 200),
        ("admin.example", "", 200),
        ("admin.example", "http://admin.example", 200),
        ("admin.example", "http://other.example", 403),
        ("evil.example", "", 403),
        ("evil.example", "http://evil.example", 403),
        ("localhost", "http://evil.example", 403),
        ("localhost", "null", 403),
    ] {
        let origin = if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
        for path in ["/v1/rules", "/metrics", "/healthz", "/openapi.json"] {
            let mut client = admin.client().await;
            client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}{origin}\r\n")).await;
            let reply = client.reply().await;
            assert_eq!(reply.status, expected, "{path} {host} {origin}");
            assert!(!reply.headers.contains_key("access-control-allow-origin"));
        }
    }
    let preflight = "Origin: http://evil.example\r\nAccess-Control-Request-Method: PUT\r\n";
    assert_eq!(admin.send("OPTIONS", "/v1/rules", preflight, "").await.status, 403);
}

#[tokio::test]
async fn a_session_is_opened_and_ends() {
    let admin = AdminFixture::start().await;
    let login = json!({ "token": admin.token }).to_string();
    let reply = admin.send("POST", "/v1/session", "", &login).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["role"], "operate");
    let cookie = reply.header("set-cookie");
    let (cookie, attributes) = cookie.split_once(';').unwrap();
    assert!(cookie.starts_with("tollgate_session="), "{cookie}");
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(attributes.contains(attribute), "{attributes}");
    }
    assert!(!reply.body.contains(&admin.token) && !cookie.contains(&admin.token), "the token stays secret");
    let cookie = format!("Cookie: {cookie}\r\n");
    let origin = "Origin: http://localhost\r\n";
    assert_eq!(admin.send("GET", "/v1/session", &cookie, "").await.json()["name"], "operate.token");
    // A change needs the origin of the page: a form of another site cannot send it.
    let tier = |headers: String| {
        admin.send("PUT", "/v1/rules/tier/pro", Box::leak(headers.into_boxed_str()), r#"{"limit":5}"#)
    };
    assert_eq!(tier(cookie.clone()).await.status, 403);
    assert_eq!(tier(format!("{cookie}Origin: http://evil.example\r\n")).await.status, 403);
    assert_eq!(tier(format!("{cookie}{origin}")).await.status, 200);
    let out = admin.send("DELETE", "/v1/session", &format!("{cookie}{origin}"), "").await;
    assert!(out.status == 200 && out.header("set-cookie").contains("Max-Age=0"), "{out:?}");
    assert_eq!(admin.send("GET", "/v1/session", &cookie, "").await.status, 401, "it has ended");
}

#[tokio::test]
async fn login_attempts_are_limited() {
    let admin = AdminFixture::start().await;
    let mut statuses = Vec::new();
    for attempt in 0..25 {
        let reply = admin.send("POST", "/v1/session", "", &format!(r#"{{"token":"guess{attempt}"}}"#)).await;
        if reply.status == 429 {
            assert!(reply.header("retry-after").parse::<u32>().unwrap() > 0, "{reply:?}");
        }
        statuses.push(reply.status);
    }
    assert_eq!(statuses[0], 401);
    assert!(statuses[20..].iter().filter(|status| **status == 429).count() >= 4, "{statuses:?}");
    let login = json!({ "token": admin.token }).to_string();
    assert_eq!(admin.send("POST", "/v1/session", "", &login).await.status, 429, "also with a good token");
    assert_eq!(admin.get("/v1/session").await.status, 200, "a token in the header is not a login");
}

#[tokio::test]
async fn tokens_are_created_and_revoked_at_once() {
    let admin = AdminFixture::start().await;
    let token = admin.create_token("ci", "operate").await;
    let header = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(admin.send("GET", "/v1/session", &header, "").await.json()["role"], "operate");
    let login = admin.send("POST", "/v1/session", "", &json!({ "token": token }).to_string()).await;
    let cookie = format!("Cookie: {}\r\n", login.header("set-cookie").split(';').next().unwrap());
    assert_eq!(admin.send("GET", "/v1/session", &cookie, "").await.status, 200);
    let list = admin.get("/v1/tokens").await;
    let tokens = list.json()["tokens"].as_array().unwrap().clone();
    let names: Vec<&Value> = tokens.iter().map(|token| &token["name"]).collect();
    assert_eq!(names, [&json!("operate.token"), &json!("ci")]);
    assert!(!list.body.contains(&token) && !list.body.contains("hash"), "{list:?}");
    let id = tokens[1]["id"].as_str().unwrap();
    let path = format!("/v1/tokens/{id}");
    assert_eq!(admin.call("DELETE", &path, "", "").await.json()["revoked"], id);
    assert_eq!(admin.send("GET", "/v1/session", &header, "").await.status, 401, "at once");
    assert_eq!(admin.send("GET", "/v1/session", &cookie, "").await.status, 401, "its sessions too");
    assert_eq!(admin.call("DELETE", &path, "", "").await.status, 404);
    for (body, status) in [
        (r#"{"name":"","role":"read"}"#, 422),
        (r#"{"name":"operate.token","role":"read"}"#, 422),
        (r#"{"name":"x","role":"admin"}"#, 400),
        (r#"{"name":"x"}"#, 400),
        (r#"{"name":"x","role":"read","expires":"2020-01-01T00:00:00Z"}"#, 422),
        (r#"{"name":"x","role":"read","expires":"soon"}"#, 400),
    ] {
        assert_eq!(admin.call("POST", "/v1/tokens", "", body).await.status, status, "{body}");
    }
    let audit = admin.get("/v1/audit").await;
    let actions: Vec<String> = audit.json()["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(actions, ["token.revoke", "token.create"], "newest first");
    assert!(!audit.body.contains(&token) && !audit.body.contains(&admin.token), "{audit:?}");
}

#[tokio::test]
async fn the_operate_token_can_be_revoked() {
    let admin = AdminFixture::start().await;
    let other = admin.create_token("ci", "operate").await;
    assert_eq!(admin.call("DELETE", "/v1/tokens/operate.token", "", "").await.status, 200);
    assert_eq!(admin.get("/v1/session").await.status, 401);
    let header = format!("Authorization: Bearer {other}\r\n");
    let tokens = admin.send("GET", "/v1/tokens", &header, "").await.json();
    assert_eq!(tokens["tokens"].as_array().unwrap().len(), 1, "{tokens}");
}
