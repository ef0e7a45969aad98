//! A running RESP door, and its client.

use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tollgate_core::rules::load;
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tollgate_listen::{ListenerSetup, ServeOptions};
use tollgate_server::RespDoor;
use tollgate_testbed::PATIENCE;

pub const START_US: u64 = 1_800_000_000_000_000;
pub const RULES: &str = "
rules:
  - { id: orders, endpoint: /v1/orders, key: api_key, limit: 3/min }
  - { id: slots, endpoint: /v1/slots, key: api_key, algorithm: concurrency, limit: 2 }
allow: [sk_internal_*]
deny: [sk_bad]
";

pub struct RespFixture {
    pub address: SocketAddr,
    pub clock: ManualClock,
    pub stop: Option<oneshot::Sender<()>>,
    pub served: JoinHandle<usize>,
}

impl RespFixture {
    /// A door with [`RULES`] and a manual clock.
    pub async fn plain() -> Self {
        Self::open(None, RespDoor::default_options()).await
    }

    pub async fn open(password: Option<&str>, options: ServeOptions) -> Self {
        let clock = ManualClock::new(START_US);
        let limiter = Limiter::new(MemoryStore::new(16 << 20), Clock::Manual(clock.clone()));
        Self::serve(limiter, clock, RULES, password, options).await
    }

    /// Of a limiter with its own clock, in which it installs `rules`.
    pub async fn of(limiter: Limiter, rules: &str) -> Self {
        Self::serve(limiter, ManualClock::new(START_US), rules, None, RespDoor::default_options()).await
    }

    async fn serve(
        limiter: Limiter,
        clock: ManualClock,
        rules: &str,
        password: Option<&str>,
        options: ServeOptions,
    ) -> Self {
        let loaded = load("rules.yaml", rules).unwrap_or_else(|report| panic!("{report}"));
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let door = RespDoor { limiter: Arc::new(limiter), password: password.map(str::to_owned) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        let serving = Arc::new(door).serve(listener, ListenerSetup::default(), shutdown, options);
        Self { address, clock, stop: Some(stop), served: tokio::spawn(serving) }
    }

    pub async fn connect(&self) -> RespClient {
        RespClient(TcpStream::connect(self.address).await.unwrap())
    }
}

/// A client that sends and compares bytes.
pub struct RespClient(pub TcpStream);

impl RespClient {
    pub async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Sends a command, and compares so many bytes of its reply.
    pub async fn ask(&mut self, words: &[&str], expected: &str) {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.send(bytes.as_bytes()).await;
        self.expect(expected).await;
    }

    pub async fn expect(&mut self, expected: &str) {
        let mut reply = vec![0; expected.len()];
        let read = timeout(PATIENCE, self.0.read_exact(&mut reply)).await.expect("it replies");
        let reply = String::from_utf8_lossy(&reply).into_owned();
        read.unwrap_or_else(|error| panic!("{error}: {reply:?} instead of {expected:?}"));
        assert_eq!(reply, expected);
    }

    /// All bytes until the connection is closed.
    pub async fn rest(mut self) -> String {
        let mut rest = Vec::new();
        let _ = timeout(PATIENCE, self.0.read_to_end(&mut rest)).await.expect("it is closed");
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// The reply to `CL.THROTTLE` with these values.
pub fn integers(values: [i64; 5]) -> String {
    format!("*5\r\n{}", values.map(|value| format!(":{value}\r\n")).concat())
}

/// The reply to `TOLLGATE.CHECK` with these values, and this rule or none.
pub fn checked(values: [i64; 5], rule: Option<&str>) -> String {
    let rule = rule.map_or("$-1\r\n".to_owned(), |rule| format!("${}\r\n{rule}\r\n", rule.len()));
    format!("*6\r\n{}{rule}", values.map(|value| format!(":{value}\r\n")).concat())
}
