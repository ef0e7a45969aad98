//! A small HTTP client.

use crate::process::PATIENCE;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

pub struct HttpClient {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl HttpClient {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// Connects from another loopback address.
    pub fn connect_from(source: [u8; 4], address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from((source, 0))).unwrap();
            socket.connect(address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// Checks a request of `key` for `endpoint`.
    pub fn check(&mut self, key: &str, endpoint: &str) -> HttpReply {
        let body = format!(r#"{{"key":"{key}","endpoint":"{endpoint}"}}"#);
        self.post("/v1/check", &body)
    }

    /// Checks several requests at once, each as JSON.
    pub fn check_batch(&mut self, checks: &[String]) -> HttpReply {
        self.post("/v1/check/batch", &format!("[{}]", checks.join(",")))
    }

    fn post(&mut self, path: &str, body: &str) -> HttpReply {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        self.reply()
    }

    pub fn get(&mut self, path: &str) -> HttpReply {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.reply()
    }

    /// Sends a request with a token. `headers` are whole lines.
    pub fn call(&mut self, method: &str, path: &str, token: &str, headers: &str, body: &str) -> HttpReply {
        self.send_call(method, path, token, headers, body);
        self.reply()
    }

    /// The same without waiting for the reply.
    pub fn send_call(&mut self, method: &str, path: &str, token: &str, headers: &str, body: &str) {
        let length = body.len();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{headers}\
             Content-Length: {length}\r\n\r\n{body}"
        ));
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    pub fn reply(&mut self) -> HttpReply {
        let status_line = self.line();
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {status_line:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut reply = HttpReply { status, headers, body: String::new() };
        let mut body = vec![0; reply.header("content-length").parse().unwrap_or(0)];
        self.stream.read_exact(&mut body).unwrap();
        reply.body = String::from_utf8(body).unwrap();
        reply
    }

    /// Waits until the server closes the connection; what still comes until then.
    pub fn closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                panic!("the connection was not closed: {error}")
            }
            _ => rest,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl HttpReply {
    /// A header, or "" if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}
