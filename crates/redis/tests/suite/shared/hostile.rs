//! A server with replies that no server would send: the connection is closed before the reply is held, the error is counted
//! and named, and decisions are degraded until the server replies properly again.

use super::fleet::Node;
use crate::log::logged;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_limiter::Request;
use tollgate_redis::{RedisSettings, StoreErrorKind};
use tollgate_testbed::{PATIENCE, RedisServer, eventually};
use tracing::Level;

const RULES: &str = "
defaults: { consistency: strict }
rules:
  - { id: deny, limit: 1000/h, on_store_failure: deny }
";
/// What may be in the buffers of two sockets when one of them is closed, and what one reply may hold.
const MOST_TAKEN: u64 = 24 << 20;

/// What is answered: a beginning, and what follows again and again.
type Attack = (&'static [u8], &'static [u8]);

/// A proxy in front of a server that replies itself when it is told to.
struct Middleman {
    address: SocketAddr,
    attack: watch::Sender<Option<Attack>>,
    /// How many bytes of attacks were taken on one connection at most.
    most_taken: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Middleman {
    async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (attack, attacks) = watch::channel(None);
        let most_taken = Arc::new(AtomicU64::new(0));
        let most = Arc::clone(&most_taken);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                tokio::spawn(stand_between(client, server, attacks.clone(), Arc::clone(&most)));
            }
        });
        Self { address, attack, most_taken, task }
    }
}

impl Drop for Middleman {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn stand_between(
    client: TcpStream,
    server: TcpStream,
    mut attacks: watch::Receiver<Option<Attack>>,
    most_taken: Arc<AtomicU64>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut bytes = vec![0; 1 << 16];
    loop {
        let attack = *attacks.borrow_and_update();
        if let Some((start, again)) = attack {
            let mut taken = start.len() as u64;
            let mut is_open = to_client.write_all(start).await.is_ok();
            while is_open && !again.is_empty() {
                is_open = to_client.write_all(again).await.is_ok();
                taken += again.len() as u64;
                most_taken.fetch_max(taken, Ordering::Relaxed);
            }
            break;
        }
        tokio::select! {
            _ = attacks.changed() => {}
            read = from_server.read(&mut bytes) => match read {
                Ok(length) if length > 0 && to_client.write_all(&bytes[..length]).await.is_ok() => {}
                _ => break,
            },
        }
    }
    // A client that was not disconnected would be waited for here.
    let _ = up.await;
}

#[test]
fn what_is_beyond_all_replies_is_refused_before_it_is_held() {
    const BLOCK: &[u8] = &[b'x'; 1 << 16];
    let table: [(Attack, &str); 7] = [
        ((b"$200000000\r\n", BLOCK), "a longer text than any reply has"),
        ((b"*2000000000\r\n", b"_\r\n_\r\n_\r\n_\r\n"), "more elements than any reply has"),
        ((b"+", BLOCK), "a line without an end"),
        ((b"$", BLOCK), "a length that is no number"),
        ((b"*1\r\n", b"*1\r\n*1\r\n*1\r\n*1\r\n"), "nested too deeply"),
        ((b"+OK\r\n", b"+OK\r\n+OK\r\n+OK\r\n+OK\r\n"), "a reply to nothing that was asked"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n", b""), "not in the protocol of Redis"),
    ];
    let server = RedisServer::start(&[]);
    for (attack, reason) in table {
        logged(async |log| {
            let middle = Middleman::start(server.address()).await;
            let settings =
                RedisSettings { timeout: PATIENCE / 10, expected_nodes: Some(1), ..RedisSettings::default() };
            let node = Node::start_with(&format!("redis://{}", middle.address), RULES, settings).await;
            let request = Request { api_key: Some("a"), endpoint: "/", ..Request::default() };
            assert_eq!(node.check(&request).await, (true, false), "{reason}");

            middle.attack.send_replace(Some(attack));
            eventually("it is degraded", async || node.check(&request).await == (false, true)).await;
            let errors = || node.store.errors(StoreErrorKind::InvalidAnswer);
            eventually("it is counted", async || errors() > 0).await;
            let named = format!("invalid answer: {reason}");
            let lines = log.lines(Level::ERROR, &[&named, "shard=0", &middle.address.to_string()]);
            assert_eq!(lines.len(), 1, "{:?}", log.errors());
            let taken = middle.most_taken.load(Ordering::Relaxed);
            assert!(taken <= MOST_TAKEN, "{reason}: {taken} bytes were taken");

            middle.attack.send_replace(None);
            eventually("all is well again", async || node.check(&request).await == (true, false)).await;
        });
    }
}
