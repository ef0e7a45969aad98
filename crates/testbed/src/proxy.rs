//! A network that misbehaves when it is told to.

use parking_lot::Mutex;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// What the network does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    Pass,
    /// Everything passes, this much later in each direction.
    Delay(Duration),
    /// Everything passes later, and some of it much later or not at all.
    Unsteady(Unsteady),
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

/// A slow link that stalls and breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsteady {
    /// How much later everything passes in each direction.
    pub delay: Duration,
    /// A stall takes up to so long; what comes behind it on its connection waits.
    pub longest_stall: Duration,
    /// One in so many packets stalls; 0 is none.
    pub stalled_one_in: u32,
    /// One in so many packets of the server is lost, and its connection is reset; 0 is none.
    pub lost_one_in: u32,
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
    target: Arc<Mutex<String>>,
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
        let target = Arc::new(Mutex::new(target.to_owned()));
        let task = tokio::spawn(accept(listener, address, Arc::clone(&target), modes, Arc::new(rewrites)));
        Self { address, mode, target, task }
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

    /// New connections lead to the server at `target` from now on.
    pub fn lead_to(&self, target: &str) {
        target.clone_into(&mut self.target.lock());
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
    target: Arc<Mutex<String>>,
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
                let target = target.lock().clone();
                connections.spawn(serve(client, target, modes.clone(), Arc::clone(&rewrites)));
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
            copied = async { tokio::try_join!(up, down) } => copied.is_err(),
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

/// A packet was lost, and its connection is to be reset.
struct Lost;

/// Bytes, and when they are due at the other end.
type Packet = (Instant, Vec<u8>);

async fn copy(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    modes: watch::Receiver<Mode>,
    direction: Direction,
    rewrites: &Rewrites,
) -> Result<(), Lost> {
    let (packets, queue) = mpsc::unbounded_channel();
    let (read, ()) = tokio::join!(receive(from, packets, modes, direction, rewrites), deliver(to, queue));
    read
}

/// Reads until the end, and dates each packet.
async fn receive(
    mut from: ReadHalf<'_>,
    packets: mpsc::UnboundedSender<Packet>,
    mut modes: watch::Receiver<Mode>,
    direction: Direction,
    rewrites: &Rewrites,
) -> Result<(), Lost> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mode = *modes.borrow_and_update();
        if mode == Mode::HalfClose && direction == Direction::Down {
            return Ok(());
        }
        let count = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            changed = modes.changed() => if changed.is_ok() { continue } else { 0 },
        };
        if count == 0 {
            return Ok(());
        }
        rewrites.apply(direction, &mut buffer[..count]);
        let mut due = Instant::now();
        let mode = *modes.borrow();
        match mode {
            Mode::BlackHole => continue,
            Mode::Garble if direction == Direction::Down => {
                buffer[fastrand::usize(..count)] = fastrand::u8(..);
            }
            Mode::Delay(delay) => due += delay,
            Mode::Unsteady(link) => {
                if direction == Direction::Down && is_one_in(link.lost_one_in) {
                    return Err(Lost);
                }
                due += link.delay;
                if is_one_in(link.stalled_one_in) {
                    due += link.longest_stall.mul_f64(fastrand::f64());
                }
            }
            _ => {}
        }
        if packets.send((due, buffer[..count].to_vec())).is_err() {
            return Ok(());
        }
    }
}

fn is_one_in(count: u32) -> bool {
    count > 0 && fastrand::u32(..count) == 0
}

/// Writes each packet when it is due, in order.
async fn deliver(mut to: WriteHalf<'_>, mut packets: mpsc::UnboundedReceiver<Packet>) {
    while let Some((due, bytes)) = packets.recv().await {
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
