//! The client: connections that ask again as soon as they are answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long one measurement takes.
pub const ROUND: Duration = Duration::from_secs(1);

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

/// Asks `address` for a while.
pub fn run(address: SocketAddr, connections: usize) -> Outcome {
    run_as(KEY, ROUND, address, connections)
}

/// The same, for another while and as the client with this key.
pub fn run_as(key: &str, time: Duration, address: SocketAddr, connections: usize) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let request = request(key);
        let mut streams = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(address).await.expect("the server listens");
            stream.set_nodelay(true).expect("a connected socket takes options");
            streams.push(stream);
        }
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for stream in streams {
            tasks.spawn(ask(stream, request.clone(), start + time));
        }
        let mut sum = Outcome::default();
        while let Some(outcome) = tasks.join_next().await {
            let outcome = outcome.expect("a client ends well");
            sum.passed += outcome.passed;
            sum.refused += outcome.refused;
        }
        sum.per_second = (sum.passed + sum.refused) as f64 / start.elapsed().as_secs_f64();
        sum
    })
}

/// A request as clients send it.
pub fn request(key: &str) -> String {
    format!(
        "GET /v1/orders/17?page=2 HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench/1.0\r\nAccept: application/json\r\nX-Api-Key: {key}\r\n\r\n"
    )
}

async fn ask(mut stream: TcpStream, request: String, until: Instant) -> Outcome {
    let mut buffer = vec![0; 16 << 10];
    let mut outcome = Outcome::default();
    while Instant::now() < until {
        if answer(&mut stream, &request, &mut buffer).await {
            outcome.passed += 1;
        } else {
            outcome.refused += 1;
        }
    }
    outcome
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
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let name = b"content-length: ";
    let found = answer[..head].windows(name.len()).position(|part| part.eq_ignore_ascii_case(name));
    let digits = found.map_or(&b"0"[..], |start| &answer[start + name.len()..head]);
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let length = length.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
    answer.len() >= head + 4 + length
}
