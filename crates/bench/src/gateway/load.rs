//! A closed-loop client: each connection sends its next request as soon as it has a response.

use memchr::memmem;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The duration of a run that is not compared.
const RUN_TIME: Duration = Duration::from_secs(1);

/// The API key of the client.
pub const KEY: &str = "sk_prod_0000000001";

/// The responses of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOutcome {
    pub per_second: f64,
    /// Responses with 200.
    pub passed: u64,
    /// All other responses.
    pub refused: u64,
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct ClosedLoopLoad {
    pub key: &'static str,
    /// The number of connections, each with one request at a time.
    pub connections: usize,
    /// The number of client threads; with too few, the client is the bottleneck.
    pub threads: usize,
    /// The targets of the requests of one connection.
    pub targets: RequestTargets,
}

/// The targets of the requests of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTargets {
    Same,
    Varied,
}

impl Default for ClosedLoopLoad {
    fn default() -> Self {
        Self { key: KEY, connections: 64, threads: 1, targets: RequestTargets::Same }
    }
}

impl ClosedLoopLoad {
    /// Runs the load against `address`.
    pub fn run(self, address: SocketAddr) -> LoadOutcome {
        LoadClients::open(self, address).run_for(RUN_TIME)
    }

    async fn send_until(self, mut stream: TcpStream, until: Instant) -> (TcpStream, LoadOutcome) {
        let mut request = request(self.key);
        let page = request.find('2').filter(|_| self.targets == RequestTargets::Varied);
        let mut buffer = vec![0; 16 << 10];
        let mut outcome = LoadOutcome::default();
        while Instant::now() < until {
            if let Some(page) = page {
                let digit = char::from(b'0' + (outcome.refused % 10) as u8);
                request.replace_range(page..=page, digit.encode_utf8(&mut [0; 4]));
            }
            if send(&mut stream, &request, &mut buffer).await {
                outcome.passed += 1;
            } else {
                outcome.refused += 1;
            }
        }
        (stream, outcome)
    }
}

/// Connected clients that run on demand.
pub struct LoadClients(Vec<(Sender<Duration>, Receiver<LoadOutcome>)>);

impl LoadClients {
    pub fn open(load: ClosedLoopLoad, address: SocketAddr) -> Self {
        let open = |_| {
            let (start, starts) = channel();
            let (outcome, outcomes) = channel();
            thread::spawn(move || run_thread(load, address, &starts, &outcome));
            (start, outcomes)
        };
        Self((0..load.threads).map(open).collect())
    }

    /// Runs all clients for `time`.
    pub fn run_for(&self, time: Duration) -> LoadOutcome {
        for (start, _) in &self.0 {
            start.send(time).expect("a client thread runs");
        }
        let mut sum = LoadOutcome::default();
        for (_, outcomes) in &self.0 {
            let outcome = outcomes.recv().expect("a client thread runs");
            sum.passed += outcome.passed;
            sum.refused += outcome.refused;
            sum.per_second += outcome.per_second;
        }
        sum
    }
}

/// The clients of one thread.
fn run_thread(
    load: ClosedLoopLoad,
    address: SocketAddr,
    starts: &Receiver<Duration>,
    outcomes: &Sender<LoadOutcome>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut streams: Vec<TcpStream> = runtime.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..load.connections / load.threads {
            let stream = TcpStream::connect(address).await.expect("the server listens");
            stream.set_nodelay(true).expect("a connected socket takes options");
            streams.push(stream);
        }
        streams
    });
    while let Ok(time) = starts.recv() {
        let outcome = runtime.block_on(async {
            let start = Instant::now();
            let mut tasks = JoinSet::new();
            for stream in streams.drain(..) {
                tasks.spawn(load.send_until(stream, start + time));
            }
            let mut sum = LoadOutcome::default();
            while let Some(ended) = tasks.join_next().await {
                let (stream, outcome) = ended.expect("a client task ends");
                streams.push(stream);
                sum.passed += outcome.passed;
                sum.refused += outcome.refused;
            }
            sum.per_second = (sum.passed + sum.refused) as f64 / start.elapsed().as_secs_f64();
            sum
        });
        if outcomes.send(outcome).is_err() {
            return;
        }
    }
}

/// The text of a request.
pub fn request(key: &str) -> String {
    format!(
        "GET /v1/orders/17?page=2 HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench/1.0\r\nAccept: application/json\r\nX-Api-Key: {key}\r\n\r\n"
    )
}

/// Sends a request, reads its response, and returns whether that is 200.
async fn send(stream: &mut TcpStream, request: &str, buffer: &mut [u8]) -> bool {
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut filled = 0;
    while !is_complete(&buffer[..filled]) {
        let count = stream.read(&mut buffer[filled..]).await.expect("the server answers");
        assert!(
            count > 0,
            "the server closed the connection: {}",
            String::from_utf8_lossy(&buffer[..filled])
        );
        filled += count;
    }
    buffer.starts_with(b"HTTP/1.1 200")
}

/// Whether a response with a content length is complete.
pub fn is_complete(response: &[u8]) -> bool {
    let Some(head) = memmem::find(response, b"\r\n\r\n") else { return false };
    // The spellings of hyper and of nginx.
    let find = |name: &[u8]| memmem::find(&response[..head], name).map(|start| start + name.len());
    let found = find(b"content-length: ").or_else(|| find(b"Content-Length: "));
    let digits = found.map_or(&b"0"[..], |start| &response[start..head]);
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let length = length.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
    response.len() >= head + 4 + length
}
