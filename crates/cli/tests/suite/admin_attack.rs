//! An attack on the admin listener does not touch decisions.

use crate::process::TollgateProcess;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::time::Instant;

/// The connections that are attempted. Fewer are open: the listener has a bound, and so has the process.
const ATTEMPTS: usize = 10_000;
/// After so many refused attempts the listener is as busy as it gets.
const MOST_REFUSED: usize = 20;
const CHECKS: usize = 3_000;
/// A check takes well under a millisecond; a busy machine may delay one.
const LATEST: Duration = Duration::from_secs(2);

/// Opens connections that are idle, that send heads byte by byte, or bodies that never end.
fn occupy(address: SocketAddr, token: &str, stop: &AtomicBool) -> Vec<TcpStream> {
    let (mut open, mut refused) = (Vec::new(), 0);
    for attempt in 0..ATTEMPTS {
        if refused >= MOST_REFUSED || stop.load(Ordering::Relaxed) {
            break;
        }
        match TcpStream::connect_timeout(&address, Duration::from_millis(20)) {
            Err(_) => refused += 1,
            Ok(mut stream) => {
                let start = match attempt % 3 {
                    0 => String::new(),
                    1 => "GET /v1/rules HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".to_owned(),
                    _ => format!(
                        "PUT /v1/rules HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
                         If-Match: *\r\nContent-Length: 1000000\r\n\r\nrules:"
                    ),
                };
                let _ = stream.write_all(start.as_bytes());
                open.push(stream);
            }
        }
    }
    open
}

#[test]
fn an_attack_on_the_admin_listener_delays_no_decision() {
    let server = TollgateProcess::start([""; 0]);
    let stop = AtomicBool::new(false);
    let mut client = server.client();
    let (address, token) = (server.admin_address(), server.operate_token());
    thread::scope(|scope| {
        let attack = scope.spawn(|| {
            let mut open = occupy(address, &token, &stop);
            let count = open.len();
            while !stop.load(Ordering::Relaxed) {
                // A byte now and then keeps the slow ones going.
                open.iter_mut().for_each(|stream| drop(stream.write_all(b"x")));
                thread::sleep(Duration::from_millis(20));
            }
            count
        });
        let mut slowest = Duration::ZERO;
        for number in 0..CHECKS {
            let start = Instant::now();
            let reply = client.check(&format!("key{}", number % 100), "/v1/orders");
            assert!([200, 429].contains(&reply.status), "{reply:?}");
            slowest = slowest.max(start.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        let open = attack.join().unwrap();
        assert!(open >= 100, "the attack opened only {open} connections");
        assert!(slowest < LATEST, "the slowest check took {slowest:?} beside {open} connections");
    });
    // The listener recovers when the connections are closed.
    assert_eq!(server.admin().get("/healthz").status, 200);
}
