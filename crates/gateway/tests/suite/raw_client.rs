//! A client that sends raw bytes and parses responses.

use http::HeaderMap;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tollgate_testbed::{PATIENCE, read_head, read_line};

pub struct RawClient<S = TcpStream> {
    pub stream: BufReader<S>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
    /// The trailers of a chunked body.
    pub trailers: Vec<String>,
}

impl RawClient {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    /// Whether nothing is waiting to be read.
    pub fn is_silent(&mut self) -> bool {
        self.stream.buffer().is_empty() && self.stream.get_mut().try_read(&mut [0]).is_err()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RawClient<S> {
    pub fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub async fn get(&mut self, path: &str) -> Reply {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await
    }

    pub async fn ask(&mut self, request: &str) -> Reply {
        self.send(request).await;
        self.reply().await
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The server may already have responded and closed the connection, which the next read shows.
        let _ = self.stream.get_mut().write_all(bytes.as_ref()).await;
    }

    /// The next response. For a response to HEAD use [`RawClient::head`].
    pub async fn reply(&mut self) -> Reply {
        let mut reply = self.head().await;
        let body = async {
            if reply.header("transfer-encoding") == "chunked" {
                return self.chunks(&mut reply.trailers).await;
            }
            let length = reply.header("content-length").parse().unwrap_or(0);
            let mut body = vec![0; if matches!(reply.status, 204 | 304) { 0 } else { length }];
            self.stream.read_exact(&mut body).await.unwrap();
            body
        };
        let body = tokio::time::timeout(PATIENCE, body).await.expect("the body does not end");
        reply.body = String::from_utf8(body).unwrap();
        reply
    }

    /// The head of the next response.
    pub async fn head(&mut self) -> Reply {
        tokio::time::timeout(PATIENCE, self.read_head()).await.expect("no response")
    }

    async fn read_head(&mut self) -> Reply {
        let (status, headers) = read_head(&mut self.stream).await;
        Reply { status, headers, body: String::new(), trailers: Vec::new() }
    }

    async fn chunks(&mut self, trailers: &mut Vec<String>) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(&read_line(&mut self.stream).await, 16).unwrap();
            if size == 0 {
                break;
            }
            let start = body.len();
            body.resize(start + size, 0);
            self.stream.read_exact(&mut body[start..]).await.unwrap();
            read_line(&mut self.stream).await;
        }
        loop {
            let line = read_line(&mut self.stream).await;
            if line.is_empty() {
                return body;
            }
            trailers.push(line);
        }
    }

    /// Waits for a response or the end of the connection; true for a response.
    pub async fn closed_or_reply(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.fill_buf()).await;
        read.expect("neither a response nor the end").is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Waits until the server closes the connection. Returns what it sent before.
    pub async fn closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await;
        // A reset closes as well.
        let _ = read.expect("the connection was not closed");
        rest
    }
}

impl Reply {
    /// A header, or "" if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The error code in a body of the gateway.
    pub fn code(&self) -> &str {
        self.body.split("\"code\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default()
    }
}
