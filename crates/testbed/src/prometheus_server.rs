//! One Prometheus in a process of its own.

use crate::ports;
use crate::wait::wait_until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How many ports are tried: another process may take a free port first.
const ATTEMPTS: usize = 3;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A `prometheus` with its own port and folder, which scrapes and evaluates its rules every 500 ms. A sample is valid for
/// 5 s, where the default is 5 minutes. It is killed when this value is dropped.
#[derive(Debug)]
pub struct PrometheusServer {
    address: SocketAddr,
    child: Child,
    _folder: TempDir,
}

/// One series of the result of an instant query.
#[derive(Clone, Debug, PartialEq)]
pub struct PrometheusSample {
    /// The labels of the series, with its name as `__name__`.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl PrometheusServer {
    /// Starts a server that loads `rules`, the text of a rule file, and scrapes `targets` under the job `tollgate`. A
    /// target is the value of its label `instance` and its address.
    pub fn start(rules: &str, targets: &[(&str, SocketAddr)]) -> Self {
        (0..ATTEMPTS)
            .find_map(|_| Self::try_start(rules, targets))
            .unwrap_or_else(|| panic!("prometheus did not start on any of {ATTEMPTS} ports"))
    }

    fn try_start(rules: &str, targets: &[(&str, SocketAddr)]) -> Option<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let folder = TempDir::new().expect("a temporary folder");
        let write =
            |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file is written");
        write("tollgate.rules.yml", rules);
        write("prometheus.yml", &configuration(targets));
        let data = folder.path().join("data");
        let mut command = Command::new("prometheus");
        command.current_dir(folder.path()).arg("--config.file=prometheus.yml");
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=warn");
        command.arg("--query.lookback-delta=5s");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(folder.path().join("log")).expect("the log is created"));
        let child = command.spawn().unwrap_or_else(|error| panic!("prometheus is not installed: {error}"));
        let log = folder.path().join("log");
        let mut server = Self { address, child, _folder: folder };
        let mut is_up = false;
        wait_until("prometheus is ready or exits", || {
            is_up = server.is_ready(&data);
            is_up || server.child.try_wait().expect("a child can be waited for").is_some()
        });
        if !is_up {
            let log = fs::read_to_string(log).unwrap_or_default();
            assert!(log.contains("address already in use"), "prometheus did not start:\n{log}");
        }
        is_up.then_some(server)
    }

    /// Whether it is ready, and not a server of another process that took the port.
    fn is_ready(&self, data: &Path) -> bool {
        let flags = || self.get("/api/v1/status/flags").ok().map(|(_, body)| body);
        self.get("/-/ready").is_ok_and(|(status, _)| status == 200)
            && flags().is_some_and(|flags| flags.contains(&data.display().to_string()))
    }

    /// Runs an instant query.
    pub fn query(&self, expression: &str) -> Vec<PrometheusSample> {
        let data = self.api(&format!("query?query={}", percent_encoded(expression)));
        let series = data["result"].as_array().expect("a vector");
        series.iter().map(|series| sample(&series["metric"], &series["value"][1])).collect()
    }

    /// The labels of the alerts that are pending or firing now. The label `alertstate` says which.
    pub fn active_alerts(&self) -> Vec<BTreeMap<String, String>> {
        let data = self.api("alerts");
        let alerts = data["alerts"].as_array().expect("a list of alerts");
        let labels = alerts.iter().map(|alert| {
            let mut labels = texts(&alert["labels"]);
            labels.insert("alertstate".to_owned(), text(&alert["state"]));
            labels
        });
        labels.collect()
    }

    /// The field `data` of the response to `/api/v1/PATH`.
    pub fn api(&self, path: &str) -> Value {
        let (status, body) = self.get(&format!("/api/v1/{path}")).expect("prometheus responds");
        assert_eq!(status, 200, "{path}: {body}");
        let mut body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        body["data"].take()
    }

    /// The status and the body of a response. With HTTP/1.0 the body ends with the connection.
    fn get(&self, path: &str) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: test\r\n\r\n").as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        status.zip(body).ok_or_else(|| io::Error::other("not a response"))
    }
}

impl Drop for PrometheusServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(targets: &[(&str, SocketAddr)]) -> String {
    let mut text = "global: { scrape_interval: 500ms, evaluation_interval: 500ms }\n\
                    rule_files: [tollgate.rules.yml]\n\
                    scrape_configs:\n  - job_name: tollgate\n    static_configs:\n"
        .to_owned();
    for (instance, address) in targets {
        let _ = writeln!(text, "      - {{ targets: ['{address}'], labels: {{ instance: {instance} }} }}");
    }
    text
}

fn sample(labels: &Value, value: &Value) -> PrometheusSample {
    let value = text(value);
    let value = value.parse().unwrap_or_else(|error| panic!("{error}: {value}"));
    PrometheusSample { labels: texts(labels), value }
}

fn texts(object: &Value) -> BTreeMap<String, String> {
    let fields = object.as_object().expect("an object");
    fields.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// A text as a value in a query string.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
