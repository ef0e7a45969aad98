//! Debian's Chromium without a window, driven through chromedriver.

use crate::http_client::HttpClient;
use crate::process::PATIENCE;
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// How often a condition in the page is examined.
const POLL: Duration = Duration::from_millis(25);
const DRIVER_ATTEMPTS: usize = 5;
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--window-size=1280,800",
];

/// A browser with a profile of its own. It ends with its test.
pub struct Chrome {
    pub page: Client,
    session: ChromeSession,
    _profile: TempDir,
}

/// The processes of a browser.
struct ChromeSession {
    driver: Child,
    address: SocketAddr,
    id: String,
}

impl Drop for ChromeSession {
    /// The end of the session ends Chromium; chromedriver is killed.
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let end = format!(
                "DELETE /session/{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
                self.id
            );
            let _ = stream.set_read_timeout(Some(PATIENCE));
            // The response comes when Chromium has ended. A test that has failed must not fail here again.
            let _ = stream.write_all(end.as_bytes()).and_then(|()| stream.read(&mut [0; 64]));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Starts chromedriver. It takes a free port of IPv6 and needs the same one of IPv4, which another process may have: then it ends,
/// and is started again.
fn start_driver() -> (Child, SocketAddr) {
    let mut said = String::new();
    for _ in 0..DRIVER_ATTEMPTS {
        let mut driver = Command::new("chromedriver")
            .args(["--port=0", "--log-level=SEVERE"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver cannot be started ({error}); ./check installs it"));
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.by_ref().map(Result::unwrap).find_map(|line| {
            said += &format!("{line}\n");
            let (_, port) = line.split_once("started successfully on port ")?;
            Some(port.trim_end_matches('.').parse().unwrap())
        });
        match port {
            Some(port) => return (driver, SocketAddr::from(([127, 0, 0, 1], port))),
            None => drop(driver.wait()),
        }
    }
    panic!("chromedriver did not start {DRIVER_ATTEMPTS} times:\n{said}");
}

impl Chrome {
    pub async fn start() -> Self {
        let (driver, address) = start_driver();
        let mut session = ChromeSession { driver, address, id: String::new() };
        let profile = tempfile::tempdir().unwrap();
        let mut flags = FLAGS.map(str::to_owned).to_vec();
        flags.push(format!("--user-data-dir={}", profile.path().display()));
        let capabilities = json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": "/usr/bin/chromium", "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
            "unhandledPromptBehavior": "accept",
        });
        let Value::Object(capabilities) = capabilities else { unreachable!() };
        let page = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://{address}"))
            .await
            .unwrap();
        session.id = page.session_id().await.unwrap().unwrap();
        Self { page, session, _profile: profile }
    }

    /// Runs a command of chromedriver that WebDriver does not have.
    fn driver_command(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let path = format!("/session/{}/{path}", self.session.id);
        let mut client = HttpClient::connect(self.session.address);
        client.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.body);
        reply.json()["value"].clone()
    }

    /// Runs a command of the DevTools protocol.
    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.driver_command("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// What the console has shown since the last call: errors and warnings, also of the content security policy.
    pub fn console(&self) -> Vec<String> {
        let entries = self.driver_command("se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().unwrap().iter();
        let severe =
            entries.filter(|entry| ["SEVERE", "WARNING"].contains(&entry["level"].as_str().unwrap()));
        severe.map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Sets the size of the page and the scheme of colours.
    pub fn emulate(&self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme },
                              { "name": "prefers-reduced-motion", "value": "reduce" }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// The value of a JavaScript expression.
    pub async fn value(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        self.page.execute(&script, Vec::new()).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Waits until a JavaScript expression is true, and returns its value.
    pub async fn wait(&self, expression: &str) -> Value {
        let start = Instant::now();
        loop {
            let value = self.value(expression).await;
            if !matches!(&value, Value::Null | Value::Bool(false)) && value != json!("") && value != json!(0)
            {
                return value;
            }
            if start.elapsed() > PATIENCE {
                let text = self.value("document.body.innerText").await;
                panic!(
                    "never true: {expression}\n{}\nconsole: {:?}",
                    text.as_str().unwrap_or(""),
                    self.console()
                );
            }
            sleep(POLL).await;
        }
    }

    /// Waits until the page shows a text.
    pub async fn wait_for_text(&self, text: &str) {
        self.wait(&format!("document.body.innerText.includes({})", json!(text))).await;
    }

    /// Clicks on the first enabled element with this selector that has this text; waits for it.
    pub async fn click(&self, selector: &str, text: &str) {
        let find = format!(
            "[...document.querySelectorAll({})].find((each) => !each.disabled && each.offsetParent !== null && each.textContent.includes({}))",
            json!(selector),
            json!(text)
        );
        self.wait(&format!("Boolean({find})")).await;
        self.value(&format!("{find}.click()")).await;
    }

    /// Types into the element that has the focus, as an operator does.
    pub async fn keys(&self, text: &str) {
        self.page.active_element().await.unwrap().send_keys(text).await.unwrap();
    }

    pub async fn key(&self, key: Key) {
        self.keys(&char::from(key).to_string()).await;
    }

    /// Replaces the content of a field, as typing does.
    pub async fn fill(&self, selector: &str, text: &str) {
        self.wait(&format!("document.querySelector({})", json!(selector))).await;
        let script =
            "const field = document.querySelector(arguments[0]); field.focus(); field.value = arguments[1];
                      field.dispatchEvent(new Event('input', { bubbles: true }));";
        self.page.execute(script, vec![json!(selector), json!(text)]).await.unwrap();
    }

    /// Opens the page, and signs in with a token.
    pub async fn sign_in(&self, admin: SocketAddr, token: &str) {
        self.page.goto(&format!("http://{admin}/")).await.unwrap();
        self.wait("document.querySelector('#token')").await;
        self.page.find(Locator::Css("#token")).await.unwrap().send_keys(token).await.unwrap();
        self.key(Key::Enter).await;
        self.wait("document.querySelector('#connection.good')").await;
    }

    /// Goes to a page of the page, such as `#/rules`.
    pub async fn go(&self, hash: &str) {
        self.value(&format!("void (location.hash = {})", json!(hash))).await;
    }
}
