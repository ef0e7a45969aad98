//! The clients of the demo: each has a plan and a habit.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::f64::consts::TAU;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// How often a client looks what is due.
const TICK: Duration = Duration::from_millis(50);
/// After a connection was lost.
const PAUSE: Duration = Duration::from_millis(500);

/// How many requests a client sends, over time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Habit {
    /// So many a second.
    Steady(f64),
    /// So many within a second, once in so many seconds.
    Bursts { requests: f64, every_seconds: f64 },
    /// Between two rates, up and down within a minute.
    Waves { least: f64, most: f64 },
}

impl Habit {
    /// Requests a second, so many seconds after the start.
    fn rate(self, seconds: f64) -> f64 {
        match self {
            Self::Steady(rate) => rate,
            Self::Bursts { requests, every_seconds } => {
                if seconds % every_seconds < 1.0 {
                    requests
                } else {
                    0.0
                }
            }
            Self::Waves { least, most } => {
                least + (most - least) * (0.5 - 0.5 * (seconds / 60.0 * TAU).cos())
            }
        }
    }
}

/// A client.
#[derive(Clone, Debug)]
struct DemoClient {
    key: Option<String>,
    address: String,
    path: &'static str,
    habit: Habit,
}

/// All clients: some that keep their limits, some that do not, one that guesses passwords, one with a stolen key.
fn clients() -> Vec<DemoClient> {
    let client = |key: &str, address: &str, path, habit| DemoClient {
        key: (!key.is_empty()).then(|| key.to_owned()),
        address: address.to_owned(),
        path,
        habit,
    };
    let waves = |least, most| Habit::Waves { least, most };
    let bursts = |requests, every_seconds| Habit::Bursts { requests, every_seconds };
    let mut clients = vec![
        client("sk_ent_acme", "192.0.2.10", "/v1/orders", waves(20.0, 90.0)),
        client("sk_ent_globex", "192.0.2.11", "/v1/invoices", waves(10.0, 40.0)),
        client("sk_pro_initech", "192.0.2.20", "/v1/orders", Habit::Steady(12.0)),
        client("sk_pro_umbrella", "192.0.2.21", "/v1/reports", waves(5.0, 45.0)),
        client("sk_pro_hooli", "192.0.2.22", "/v1/search", bursts(40.0, 8.0)),
        client("sk_free_stolen", "198.51.100.7", "/v1/orders", Habit::Steady(1.0)),
        client("", "203.0.113.66", "/login", bursts(25.0, 4.0)),
    ];
    for number in 1..=6 {
        let address = format!("198.51.100.{}", 20 + number);
        let habit = waves(0.5, 1.0 + f64::from(number));
        clients.push(client(&format!("sk_free_{number:02}"), &address, "/v1/orders", habit));
    }
    for number in 1..=4 {
        let habit = Habit::Steady(0.4 * f64::from(number));
        clients.push(client("", &format!("203.0.113.{number}"), "/", habit));
    }
    clients
}

/// Sends the requests of all clients to the gateway, until it is dropped.
pub async fn run_all(gateway: SocketAddr) {
    let start = Instant::now();
    let tasks: JoinSet<()> = clients().into_iter().map(|client| client.run(gateway, start)).collect();
    tasks.join_all().await;
}

impl DemoClient {
    async fn run(self, gateway: SocketAddr, start: Instant) {
        loop {
            if let Err(error) = self.send_requests(gateway, start).await {
                tracing::debug!(%error, "client of the demo connects again");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends what is due, on one connection, until that is closed.
    async fn send_requests(
        &self,
        gateway: SocketAddr,
        start: Instant,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let stream = TcpStream::connect(gateway).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut due = 0.0;
        loop {
            let now = ticks.tick().await;
            due += self.habit.rate(now.duration_since(start).as_secs_f64()) * TICK.as_secs_f64();
            while due >= 1.0 {
                due -= 1.0;
                if let Err(error) = self.send(&mut sender, gateway).await {
                    connection.abort();
                    return Err(error);
                }
            }
        }
    }

    async fn send(
        &self,
        sender: &mut SendRequest<Empty<Bytes>>,
        gateway: SocketAddr,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut request = Request::get(self.path)
            .header("host", gateway.to_string())
            .header("x-forwarded-for", &self.address);
        if let Some(key) = &self.key {
            request = request.header("x-api-key", key);
        }
        sender.ready().await?;
        let response = sender.send_request(request.body(Empty::new())?).await?;
        response.into_body().collect().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_change_over_time() {
        let bursts = Habit::Bursts { requests: 40.0, every_seconds: 10.0 };
        let waves = Habit::Waves { least: 10.0, most: 20.0 };
        for (habit, seconds, expected) in [
            (Habit::Steady(3.0), 7.0, 3.0),
            (bursts, 0.5, 40.0),
            (bursts, 5.0, 0.0),
            (bursts, 30.0, 40.0),
            (waves, 0.0, 10.0),
            (waves, 10.0, 12.5),
            (waves, 30.0, 20.0),
        ] {
            let rate = habit.rate(seconds);
            assert!((rate - expected).abs() < 1e-6, "{habit:?} {seconds}: {rate}");
        }
    }
}
