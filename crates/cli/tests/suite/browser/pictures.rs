//! The pictures of the page in `docs/images`, drawn from a fleet under traffic.

use super::chrome::Chrome;
use crate::process::{TollgateProcess, tollgate};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_testbed::RedisServer;

const RULES: &str = include_str!("pictures.yaml");
/// The key that is looked up.
const KEY: &str = "sk_pro_7Qv8xT3mK2";
/// The pages with their names in files.
const PAGES: [(&str, &str); 9] = [
    ("overview", "#/overview"),
    ("rules", "#/rules"),
    ("diff", "#/rules/diff"),
    ("preview", "#/rules/preview"),
    ("history", "#/rules/history"),
    ("keys", "#/keys/api_key/sk_pro_7Qv8xT3mK2?endpoint=/v1/search"),
    ("top", "#/top"),
    ("nodes", "#/nodes"),
    ("audit", "#/audit"),
];

/// Requests of many clients, some of which ask for too much, until `stop`.
fn traffic(nodes: &[TollgateProcess], stop: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<()>> {
    let send = |(number, node): (usize, &TollgateProcess)| {
        let (mut client, stop) = (node.client(), Arc::clone(stop));
        thread::spawn(move || {
            let mut turn = number as u64;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let wave = 40.0 + 25.0 * (turn as f64 / 90.0).sin() + (turn % 7) as f64;
                let checks: Vec<String> =
                    (0..wave as u64).map(|index| request(turn * 31 + index * 7)).collect();
                client.check_batch(&checks);
                thread::sleep(Duration::from_millis(60));
            }
        })
    };
    nodes.iter().enumerate().map(send).collect()
}

/// The request with this number, as JSON.
fn request(number: u64) -> String {
    let client = (number % 97) * (number % 13) / 13;
    let tier = if client.is_multiple_of(3) { "free" } else { "pro" };
    match number % 20 {
        0 => format!(r#"{{"ip":"198.51.100.{}","endpoint":"/v1/login"}}"#, 7 + number / 20 % 5),
        1 => r#"{"ip":"203.0.113.9","endpoint":"/v1/search"}"#.to_owned(),
        2..=8 => format!(r#"{{"key":"sk_{tier}_{client}Qv8xT3mK2","endpoint":"/v1/search"}}"#),
        9 => format!(r#"{{"key":"{KEY}","endpoint":"/v1/search"}}"#),
        _ => format!(r#"{{"key":"sk_{tier}_{client}Qv8xT3mK2","endpoint":"/v1/orders/{number}"}}"#),
    }
}

/// `TOLLGATE_PICTURES=docs/images` draws them, after so many seconds of traffic as `TOLLGATE_PICTURES_SECONDS` says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_of_every_page() {
    let Ok(folder) = std::env::var("TOLLGATE_PICTURES") else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let seconds = std::env::var("TOLLGATE_PICTURES_SECONDS").map_or(310, |text| text.parse().unwrap());
    let redis = RedisServer::start(&[]);
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("rules.yaml"), RULES).unwrap();
    let node = |name: &str, address: &str| {
        let own = data.path().join(name);
        let mut command =
            tollgate(["serve", "--node-name", name, "--listen", address, "--store", &redis.url()]);
        command.current_dir(data.path()).args(["--rules", "rules.yaml", "--data"]).arg(own);
        TollgateProcess::from(&mut command)
    };
    let nodes = [
        node("edge-1", "127.0.0.11:8080"),
        node("edge-2", "127.0.0.12:8080"),
        node("edge-3", "127.0.0.13:8080"),
    ];
    let token = fs::read_to_string(data.path().join("edge-1/operate.token")).unwrap().trim().to_owned();
    let start = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let senders = traffic(&nodes, &stop);
    let chrome = Chrome::start().await;
    let admin = nodes[0].admin_address();
    chrome.emulate(1280, 860, "light");
    picture(&chrome, &folder, "login", admin, "").await;
    chrome.sign_in(admin, &token).await;
    // An operator's changes, a while before the pictures.
    for (from, to, message) in [
        ("limit: 1000/min", "limit: 1200/min", "pro: 1,200 a minute, as sold"),
        ("limit: 10/s", "limit: 12/s", "raise search to 12/s"),
    ] {
        tokio::time::sleep_until(start + Duration::from_secs(seconds / 3)).await;
        chrome.go("#/rules").await;
        chrome.wait("document.querySelector('textarea')?.value").await;
        let text = chrome.value("document.querySelector('textarea').value").await;
        chrome.fill("textarea", &text.as_str().unwrap().replace(from, to)).await;
        chrome.fill("[aria-label=Message]", message).await;
        chrome.click("#publish", "Publish").await;
        chrome.wait("document.querySelector('#why-not').textContent === 'No changes yet.'").await;
    }
    let mut calls = nodes[0].admin();
    for (method, path, body) in [
        ("DELETE", "/v1/keys/user/ann".to_owned(), ""),
        (
            "POST",
            format!("/v1/keys/api_key/{KEY}/grant"),
            r#"{"tokens":5000,"for":"1h","reason":"import of March, ticket 907"}"#,
        ),
        (
            "POST",
            "/v1/keys/ip/203.0.113.77/block".to_owned(),
            r#"{"for":"1h","reason":"credential stuffing"}"#,
        ),
    ] {
        let reply = calls.call(method, &path, &token, "Content-Type: application/json\r\n", body);
        assert!(reply.status < 300, "{method} {path}: {} {}", reply.status, reply.body);
    }
    tokio::time::sleep_until(start + Duration::from_secs(seconds)).await;
    chrome.go("#/overview").await;
    chrome.go("#/rules").await;
    chrome.wait("document.querySelector('textarea')?.value").await;
    let text = chrome.value("document.querySelector('textarea').value").await;
    let draft = text
        .as_str()
        .unwrap()
        .replace("limit: 100/min", "limit: 150/min")
        .replace("limit: 5/min", "limit: 8/min");
    chrome.fill("textarea", &draft.replace("send: 6, pass: 5", "send: 9, pass: 8")).await;
    chrome.wait("document.querySelector('.tests')").await;
    for (width, height, suffix) in [(1280, 860, ""), (390, 844, "-phone")] {
        for scheme in ["light", "dark"] {
            chrome.emulate(width, height, scheme);
            for (name, hash) in PAGES {
                chrome.go(hash).await;
                chrome
                    .wait("!document.querySelector('main .loading') && document.querySelector('main .card')")
                    .await;
                picture(&chrome, &folder, &format!("{name}-{scheme}{suffix}"), admin, hash).await;
            }
        }
    }
    chrome.emulate(1280, 860, "dark");
    chrome.go("#/rules").await;
    chrome.fill("textarea", &text.as_str().unwrap().replace("limit: 5/min", "limit: 0/min")).await;
    chrome.wait("document.querySelector('.ln.err')").await;
    picture(&chrome, &folder, "error-dark", admin, "#/rules").await;
    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.join().unwrap();
    }
}

/// Draws what the browser shows.
async fn picture(chrome: &Chrome, folder: &Path, name: &str, admin: std::net::SocketAddr, hash: &str) {
    if hash.is_empty() {
        chrome.page.goto(&format!("http://{admin}/")).await.unwrap();
        chrome.wait("document.querySelector('#token')").await;
    }
    // Fonts and charts are drawn with the next frames.
    let drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
    let evaluated = json!({ "expression": drawn, "awaitPromise": true });
    chrome.devtools("Runtime.evaluate", evaluated);
    let image = chrome.page.screenshot().await.unwrap();
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(format!("page-{name}.png")), image).unwrap();
}
