//! A network that misbehaves when it is told to.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What the network does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    Pass,
    /// Everything passes, this much later in each direction.
    Delay(Duration),
    /// Everything is swallowed; connections stay open, and new ones are accepted.
    BlackHole,
    /// Everything passes, but a byte of every answer is another.
    Garble,
    /// The client is told that the server will send no more; what it sends still passes.
    HalfClose,
    /// Connections are reset, also new ones.
    Reset,
    /// Connections are closed, and nobody listens.
    Refuse,
}

/// Words that are replaced by others of the same length, in what a client sends and in what it is answered.
#[derive(Clone, Debug, Default)]
pub struct Rewrites {
    /// Words of the client.
    pub requests: Vec<(&'static str, &'static str)>,
    /// Words of the server.
    pub answers: Vec<(&'static str, &'static str)>,
}

impl Rewrites {
    fn apply(&self, direction: Direction, bytes: &mut [u8]) {
        let pairs = if direction == Direction::Up { &self.requests } else { &self.answers };
        for (from, to) in pairs {
            assert_eq!(from.len(), to.len(), "lengths are told before the words");
            let mut at = 0;
            while let Some(found) = bytes[at..].windows(from.len()).position(|part| part == from.as_bytes()) {
                at += found;
                bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
        }
    }
}

/// Stands in front of a server. Ends with this value.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy before the server at `target`, such as `127.0.0.1:6379`.
    pub async fn start(target: &str) -> Self {
        Self::start_rewriting(target, Rewrites::default()).await
    }

    /// One that also replaces words.
    pub async fn start_rewriting(target: &str, rewrites: Rewrites) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (mode, modes) = watch::channel(Mode::Pass);
        let task = tokio::spawn(accept(listener, address, target.to_owned(), modes, Arc::new(rewrites)));
        Self { address, mode, task }
    }

    /// Where a client finds the server now.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the network does from now on, to the connections that are open as well.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    first: TcpListener,
    address: SocketAddr,
    target: String,
    mut modes: watch::Receiver<Mode>,
    rewrites: Arc<Rewrites>,
) {
    let mut listener = Some(first);
    let mut connections = JoinSet::new();
    loop {
        if *modes.borrow_and_update() == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.expect("the port is still ours"));
        }
        tokio::select! {
            changed = modes.changed() => if changed.is_err() { return },
            Some(Ok((client, _))) = async { Some(listener.as_ref()?.accept().await) } => {
                connections.spawn(serve(client, target.clone(), modes.clone(), Arc::clone(&rewrites)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(
    mut client: TcpStream,
    target: String,
    mut modes: watch::Receiver<Mode>,
    rewrites: Arc<Rewrites>,
) {
    let Ok(mut server) = TcpStream::connect(&target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let broken = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = copy(from_client, to_server, modes.clone(), Direction::Up, &rewrites);
        let down = copy(from_server, to_client, modes.clone(), Direction::Down, &rewrites);
        tokio::select! {
            () = async { tokio::join!(up, down); } => false,
            _ = modes.wait_for(|mode| matches!(mode, Mode::Reset | Mode::Refuse)) => true,
        }
    };
    if broken {
        let _ = client.set_zero_linger();
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Up,
    Down,
}

async fn copy(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut modes: watch::Receiver<Mode>,
    direction: Direction,
    rewrites: &Rewrites,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mode = *modes.borrow_and_update();
        if mode == Mode::HalfClose && direction == Direction::Down {
            let _ = to.shutdown().await;
            return;
        }
        let count = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            changed = modes.changed() => if changed.is_ok() { continue } else { 0 },
        };
        if count == 0 {
            let _ = to.shutdown().await;
            return;
        }
        rewrites.apply(direction, &mut buffer[..count]);
        let mode = *modes.borrow();
        match mode {
            Mode::BlackHole => continue,
            Mode::Garble if direction == Direction::Down => {
                buffer[fastrand::usize(..count)] = fastrand::u8(..);
            }
            Mode::Delay(delay) => tokio::time::sleep(delay).await,
            _ => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
