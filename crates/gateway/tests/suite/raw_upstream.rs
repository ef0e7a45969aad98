//! Upstreams that respond with raw bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What happens to a connection after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is closed; unread data resets it.
    Close,
    /// It is reset at once.
    Reset,
    /// It stays open for the next request.
    Stay,
}

/// The response to a request for a target, and what follows it.
pub type Script = fn(&str) -> (&'static str, End);

/// Responds as soon as it has read the head of a request.
pub struct RawUpstream {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl RawUpstream {
    pub async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(respond(stream, script, Arc::clone(&counted)));
            }
        });
        Self { address, requests, task }
    }

    /// The number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for RawUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn respond(stream: TcpStream, script: Script, requests: Arc<AtomicUsize>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut target, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            if target.is_empty() {
                target = line.split(' ').nth(1).unwrap_or_default().to_owned();
            }
            if let Some(text) = line.strip_prefix("content-length: ") {
                // As lenient servers do, it takes what is no length for none.
                length = text.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        requests.fetch_add(1, Ordering::Relaxed);
        let (bytes, end) = script(&target);
        if stream.write_all(bytes.as_bytes()).await.is_err() {
            return;
        }
        match end {
            End::Close => return,
            End::Reset => {
                let stream = stream.into_inner();
                return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
            End::Stay => {
                let mut body = (&mut stream).take(length);
                tokio::io::copy(&mut body, &mut tokio::io::sink()).await.unwrap();
            }
        }
    }
}

/// Responds to every request with events at intervals.
pub struct EventUpstream {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl EventUpstream {
    pub async fn start(every: Duration, events: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let _ = stream.read(&mut [0; 4096]).await;
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
                    let mut written = stream.write_all(head.as_bytes()).await;
                    for _ in 0..events {
                        tokio::time::sleep(every).await;
                        written = written.and(stream.write_all(b"6\r\nevent;\r\n").await);
                    }
                    written.and(stream.write_all(b"0\r\n\r\n").await).unwrap();
                });
            }
        });
        Self { address, task }
    }
}

impl Drop for EventUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}
