//! A TCP proxy that simulates network faults.

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

/// How the network behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// Everything passes.
    Pass,
    /// Everything passes, delayed by this much in each direction.
    Delay(Duration),
    /// Everything is delayed; some packets stall and some are lost.
    Unsteady(UnsteadyLink),
    /// Everything is dropped, also the end of a connection: all stay open, and new ones are accepted.
    BlackHole,
    /// Everything passes, but one byte of every reply is corrupted.
    Garble,
    /// The server's direction is closed; what the client sends still passes.
    HalfClose,
    /// Connections are reset, including new ones.
    Reset,
    /// Connections are closed, and the port does not listen.
    Refuse,
}

/// A slow link with stalls and packet loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsteadyLink {
    /// The delay in each direction.
    pub delay: Duration,
    /// The longest stall; later packets of the connection wait behind a stalled one.
    pub longest_stall: Duration,
    /// One in so many packets stalls; 0 for none.
    pub stalled_one_in: u32,
    /// One in so many packets of the server is lost, and its connection is reset; 0 for none.
    pub lost_one_in: u32,
}

/// Words to replace with others of the same length, in requests and in replies.
#[derive(Clone, Debug, Default)]
pub struct WordRewrites {
    /// Replacements in what the client sends: (from, to).
    pub requests: Vec<(String, String)>,
    /// Replacements in what the server sends: (from, to).
    pub answers: Vec<(String, String)>,
}

impl WordRewrites {
    fn apply(&self, direction: ProxyDirection, bytes: &mut [u8]) {
        let pairs = if direction == ProxyDirection::Up { &self.requests } else { &self.answers };
        for (from, to) in pairs {
            assert_eq!(from.len(), to.len(), "the protocol sends lengths before the words");
            let mut at = 0;
            while let Some(found) = bytes[at..].windows(from.len()).position(|part| part == from.as_bytes()) {
                at += found;
                bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
        }
    }
}

/// A proxy in front of a server. It stops when this value is dropped.
#[derive(Debug)]
pub struct NetworkProxy {
    address: SocketAddr,
    state: watch::Sender<NetworkState>,
    target: Arc<Mutex<String>>,
    task: JoinHandle<()>,
}

/// The mode, and how often connections were broken: a watcher that misses a short `Reset` still finds it counted.
#[derive(Clone, Copy, Debug)]
struct NetworkState {
    mode: NetworkMode,
    resets: u64,
}

impl NetworkState {
    fn breaks_connections(self) -> bool {
        matches!(self.mode, NetworkMode::Reset | NetworkMode::Refuse)
    }
}

impl NetworkProxy {
    /// Starts a proxy for the server at `target`, such as `127.0.0.1:6379`.
    pub async fn start(target: &str) -> Self {
        Self::start_rewriting(target, WordRewrites::default()).await
    }

    /// Starts a proxy that also replaces words.
    pub async fn start_rewriting(target: &str, rewrites: WordRewrites) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        Self::serve(listener, target, rewrites)
    }

    /// Starts a proxy for each of `targets` that also replaces words, and in replies the port of each target by that of its
    /// proxy: clients of a Cluster find the proxies only.
    pub async fn start_cluster(targets: &[String], rewrites: &WordRewrites) -> Vec<Self> {
        let mut listeners = Vec::new();
        let mut rewrites = rewrites.clone();
        for target in targets {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let port = target.rsplit_once(':').expect("an address with a port").1;
            rewrites.answers.push((format!(":{port}\r\n"), format!(":{}\r\n", address.port())));
            listeners.push(listener);
        }
        let proxies = listeners.into_iter().zip(targets);
        proxies.map(|(listener, target)| Self::serve(listener, target, rewrites.clone())).collect()
    }

    fn serve(listener: TcpListener, target: &str, rewrites: WordRewrites) -> Self {
        let address = listener.local_addr().expect("an address");
        let (state, states) = watch::channel(NetworkState { mode: NetworkMode::Pass, resets: 0 });
        let target = Arc::new(Mutex::new(target.to_owned()));
        let task = tokio::spawn(accept(listener, address, Arc::clone(&target), states, Arc::new(rewrites)));
        Self { address, state, target, task }
    }

    /// The Redis URL of the proxy.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the mode for new and for open connections.
    pub fn set(&self, mode: NetworkMode) {
        self.state.send_modify(|state| {
            state.mode = mode;
            state.resets += u64::from(state.breaks_connections());
        });
    }

    /// Sets the server for new connections.
    pub fn set_target(&self, target: &str) {
        target.clone_into(&mut self.target.lock());
    }
}

impl Drop for NetworkProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    first: TcpListener,
    address: SocketAddr,
    target: Arc<Mutex<String>>,
    mut states: watch::Receiver<NetworkState>,
    rewrites: Arc<WordRewrites>,
) {
    let mut listener = Some(first);
    let mut connections = JoinSet::new();
    loop {
        if states.borrow_and_update().mode == NetworkMode::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.expect("the port is still free"));
        }
        tokio::select! {
            changed = states.changed() => if changed.is_err() { return },
            Some(Ok((client, _))) = async { Some(listener.as_ref()?.accept().await) } => {
                // Read before the target: a connection to an old target is broken by the reset that follows the change.
                let resets = states.borrow().resets;
                let target = target.lock().clone();
                connections.spawn(serve(client, target, states.clone(), resets, Arc::clone(&rewrites)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(
    mut client: TcpStream,
    target: String,
    mut states: watch::Receiver<NetworkState>,
    resets: u64,
    rewrites: Arc<WordRewrites>,
) {
    let Ok(mut server) = TcpStream::connect(&target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let broken = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = copy(from_client, to_server, states.clone(), ProxyDirection::Up, &rewrites);
        let down = copy(from_server, to_client, states.clone(), ProxyDirection::Down, &rewrites);
        tokio::select! {
            copied = async { tokio::try_join!(up, down) } => copied.is_err(),
            _ = states.wait_for(|state| state.breaks_connections() || state.resets != resets) => true,
        }
    };
    if broken {
        let _ = client.set_zero_linger();
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ProxyDirection {
    Up,
    Down,
}

/// A packet was lost; its connection must be reset.
struct PacketLost;

/// Bytes, and when they are delivered.
type Packet = (Instant, Vec<u8>);

async fn copy(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    states: watch::Receiver<NetworkState>,
    direction: ProxyDirection,
    rewrites: &WordRewrites,
) -> Result<(), PacketLost> {
    let (packets, queue) = mpsc::unbounded_channel();
    let (read, ()) = tokio::join!(receive(from, packets, states, direction, rewrites), deliver(to, queue));
    read
}

/// Reads until the end, and sets the delivery time of each packet.
async fn receive(
    mut from: ReadHalf<'_>,
    packets: mpsc::UnboundedSender<Packet>,
    mut states: watch::Receiver<NetworkState>,
    direction: ProxyDirection,
    rewrites: &WordRewrites,
) -> Result<(), PacketLost> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mode = states.borrow_and_update().mode;
        if mode == NetworkMode::HalfClose && direction == ProxyDirection::Down {
            return Ok(());
        }
        let count = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            changed = states.changed() => if changed.is_ok() { continue } else { 0 },
        };
        if count == 0 {
            // The other side does not hear of it before the network is back.
            let _ = states.wait_for(|state| state.mode != NetworkMode::BlackHole).await;
            return Ok(());
        }
        rewrites.apply(direction, &mut buffer[..count]);
        let mut due = Instant::now();
        let mode = states.borrow().mode;
        match mode {
            NetworkMode::BlackHole => continue,
            NetworkMode::Garble if direction == ProxyDirection::Down => {
                buffer[fastrand::usize(..count)] = fastrand::u8(..);
            }
            NetworkMode::Delay(delay) => due += delay,
            NetworkMode::Unsteady(link) => {
                if direction == ProxyDirection::Down && is_one_in(link.lost_one_in) {
                    return Err(PacketLost);
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
