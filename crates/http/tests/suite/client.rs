//! A small HTTP client that sends and receives raw bytes.

use http::HeaderMap;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tollgate_testbed::{PATIENCE, limit_headers, read_head};

pub struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub async fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        self.post_with(path, "", body).await
    }

    /// `headers` are whole lines.
    pub async fn post_with(&mut self, path: &str, headers: &str, body: impl AsRef<[u8]>) -> Reply {
        self.send(post(path, headers, body)).await;
        self.reply().await
    }

    pub async fn get(&mut self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        self.reply().await
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The server may have responded and closed already, which the next read shows.
        let _ = self.stream.get_mut().write_all(bytes.as_ref()).await;
    }

    pub async fn reply(&mut self) -> Reply {
        tokio::time::timeout(PATIENCE, self.read_reply()).await.expect("no answer came")
    }

    async fn read_reply(&mut self) -> Reply {
        let (status, headers) = read_head(&mut self.stream).await;
        let length =
            headers.get("content-length").map_or(0, |length| length.to_str().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        Reply { status, headers, body: String::from_utf8(body).unwrap() }
    }

    /// Waits until the server closes the connection.
    pub async fn closed(&mut self) {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await;
        // A reset closes as well.
        let _ = read.expect("the connection was not closed");
        assert!(rest.is_empty(), "unexpected: {:?}", String::from_utf8_lossy(&rest));
    }

    /// Whether there is nothing to read.
    pub fn is_silent(&mut self) -> bool {
        self.stream.buffer().is_empty() && self.stream.get_mut().try_read(&mut [0]).is_err()
    }
}

impl Reply {
    /// A header, or "" if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The headers of limits, sorted, as lines.
    pub fn limit_headers(&self) -> Vec<String> {
        limit_headers(&self.headers)
    }
}

/// A request as bytes.
pub fn post(path: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
