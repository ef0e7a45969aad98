//! The client: connections that ask again as soon as they are answered.

use memchr::memmem;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long clients ask who are not compared.
const WHILE: Duration = Duration::from_secs(1);

/// Who asks.
pub const KEY: &str = "sk_prod_0000000001";

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub per_second: f64,
    /// Answers of 200.
    pub passed: u64,
    /// All others.
    pub refused: u64,
}

/// What a load consists of.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub key: &'static str,
    /// Connections, over which requests go one after the other.
    pub connections: usize,
    /// Threads that these are served by: too few, and it is the client that is measured.
    pub threads: usize,
    /// Whether each request of a connection is for something else.
    pub varied: bool,
}

impl Default for Load {
    fn default() -> Self {
        Self { key: KEY, connections: 64, threads: 1, varied: false }
    }
}

impl Load {
    /// Asks `address` for a while.
    pub fn run(self, address: SocketAddr) -> Outcome {
        Clients::open(self, address).ask(WHILE)
    }

    async fn ask(self, mut stream: TcpStream, until: Instant) -> (TcpStream, Outcome) {
        let mut request = request(self.key);
        let page = request.find('2').filter(|_| self.varied);
        let mut buffer = vec![0; 16 << 10];
        let mut outcome = Outcome::default();
        while Instant::now() < until {
            if let Some(page) = page {
                let digit = char::from(b'0' + (outcome.refused % 10) as u8);
                request.replace_range(page..=page, digit.encode_utf8(&mut [0; 4]));
            }
            if answer(&mut stream, &request, &mut buffer).await {
                outcome.passed += 1;
            } else {
                outcome.refused += 1;
            }
        }
        (stream, outcome)
    }
}

/// Clients that are connected, and ask whenever they are told to.
pub struct Clients(Vec<(Sender<Duration>, Receiver<Outcome>)>);

impl Clients {
    pub fn open(load: Load, address: SocketAddr) -> Self {
        let open = |_| {
            let (tell, told) = channel();
            let (say, said) = channel();
            thread::spawn(move || serve(load, address, &told, &say));
            (tell, said)
        };
        Self((0..load.threads).map(open).collect())
    }

    /// All of them, for so long.
    pub fn ask(&self, time: Duration) -> Outcome {
        for (tell, _) in &self.0 {
            tell.send(time).expect("a client listens");
        }
        let mut sum = Outcome::default();
        for (_, said) in &self.0 {
            let outcome = said.recv().expect("a client ends well");
            sum.passed += outcome.passed;
            sum.refused += outcome.refused;
            sum.per_second += outcome.per_second;
        }
        sum
    }
}

/// One thread's clients.
fn serve(load: Load, address: SocketAddr, told: &Receiver<Duration>, say: &Sender<Outcome>) {
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
    while let Ok(time) = told.recv() {
        let outcome = runtime.block_on(async {
            let start = Instant::now();
            let mut tasks = JoinSet::new();
            for stream in streams.drain(..) {
                tasks.spawn(load.ask(stream, start + time));
            }
            let mut sum = Outcome::default();
            while let Some(asked) = tasks.join_next().await {
                let (stream, outcome) = asked.expect("a client ends well");
                streams.push(stream);
                sum.passed += outcome.passed;
                sum.refused += outcome.refused;
            }
            sum.per_second = (sum.passed + sum.refused) as f64 / start.elapsed().as_secs_f64();
            sum
        });
        if say.send(outcome).is_err() {
            return;
        }
    }
}

/// A request as clients send it.
pub fn request(key: &str) -> String {
    format!(
        "GET /v1/orders/17?page=2 HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench/1.0\r\nAccept: application/json\r\nX-Api-Key: {key}\r\n\r\n"
    )
}

/// Sends a request and reads its answer; tells whether that is 200.
async fn answer(stream: &mut TcpStream, request: &str, buffer: &mut [u8]) -> bool {
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut filled = 0;
    while !is_whole(&buffer[..filled]) {
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

/// Whether an answer with a length has come to its end.
pub fn is_whole(answer: &[u8]) -> bool {
    let Some(head) = memmem::find(answer, b"\r\n\r\n") else { return false };
    // As hyper writes it, or as nginx does.
    let find = |name: &[u8]| memmem::find(&answer[..head], name).map(|start| start + name.len());
    let found = find(b"content-length: ").or_else(|| find(b"Content-Length: "));
    let digits = found.map_or(&b"0"[..], |start| &answer[start..head]);
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let length = length.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
    answer.len() >= head + 4 + length
}
