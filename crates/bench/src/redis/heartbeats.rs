//! The cost of the heartbeats of many nodes for one shard. Each node has its own connection.

use super::pinned::{PinnedRedis, connect, runtime};
use super::sharing;
use crate::measurement::{median, report_at_most};
use redis::{Cmd, Connection, Value};
use std::time::{Duration, Instant};
use tollgate_core::heartbeat;

const ROUNDS: usize = 9;
/// The number of heartbeats that arrive together while the server is busy.
const TOGETHER: usize = 32;
const SECOND: Duration = Duration::from_secs(1);
const TAG: &str = "0";
const DESCRIPTION: &str =
    r#"{"id":"00000000000000ff","address":"10.0.0.1:8080","rules":7,"started":1794885776}"#;
const RULES: &str = "rules: [{ id: plan, key: api_key, limit: 100/min }]";

pub fn run() {
    println!("redis: the heartbeats of a second, medians of {ROUNDS} rounds in turns with PINGs");
    let [few, many] = [200, 1_000].map(|nodes| {
        let cost = measure(nodes);
        println!(
            "  {nodes:>5} nodes: {} heartbeats a second, {:.1} ms of the server's CPU time, PINGs instead {:.1} ms; \
             {:.1} µs a heartbeat in the script",
            cost.count, cost.awake_ms, cost.pings_ms, cost.script_us
        );
        println!(
            "               {:.1} and {:.1} ms if the server is idle and sleeps in between",
            cost.asleep_ms, cost.pings_asleep_ms
        );
        cost
    });
    let worst_ms = many.awake_ms.max(many.asleep_ms);
    report_at_most("1,000 nodes: CPU time of the server, ms per second", worst_ms, 20.0);
    report_at_most("1,000 nodes: heartbeats × PINGs", many.awake_ms / many.pings_ms, 3.0);
    let growth = many.script_us / few.script_us;
    report_at_most("a heartbeat among 1,000 nodes × among 200, in the script", growth, 1.5);
    idle();
}

/// The server's CPU time in milliseconds, for one heartbeat of each node.
struct HeartbeatCost {
    /// Heartbeats per second.
    count: usize,
    /// Several arrive together, at a busy server.
    awake_ms: f64,
    pings_ms: f64,
    /// They are spread over a second, at an idle server that wakes up for each.
    asleep_ms: f64,
    pings_asleep_ms: f64,
    /// One heartbeat in the script, in microseconds.
    script_us: f64,
}

fn measure(nodes: u32) -> HeartbeatCost {
    let mut fleet = HeartbeatFleet::start(nodes);
    let describing: Vec<Cmd> = (0..nodes).map(|number| fleet.heartbeat(number, Some(DESCRIPTION))).collect();
    let heartbeats: Vec<Cmd> = (0..nodes).map(|number| fleet.heartbeat(number, None)).collect();
    let pings = vec![redis::cmd("PING"); nodes as usize];
    fleet.send_together(&describing);
    fleet.send_together(&heartbeats);
    // In a large fleet, the interval of a node is longer than a second.
    let count = heartbeats.len() * heartbeat::INTERVAL_US as usize / heartbeat::interval_us(nodes) as usize;
    let (heartbeats, pings) = (&heartbeats[..count], &pings[..count]);
    let (mut awake, mut pinged, mut script) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        fleet.reset_statistics();
        awake.push(fleet.cpu_ms(|fleet| fleet.send_together(heartbeats)));
        script.push(fleet.script_us());
        pinged.push(fleet.cpu_ms(|fleet| fleet.send_together(pings)));
    }
    fleet.assert_all_counted();
    let idle_ms = fleet.cpu_ms(|_| std::thread::sleep(SECOND));
    let asleep_ms = fleet.cpu_ms(|fleet| fleet.send_spread(heartbeats)) - idle_ms;
    let pings_asleep_ms = fleet.cpu_ms(|fleet| fleet.send_spread(pings)) - idle_ms;
    HeartbeatCost {
        count,
        awake_ms: median(&mut awake),
        pings_ms: median(&mut pinged),
        asleep_ms,
        pings_asleep_ms,
        script_us: median(&mut script),
    }
}

/// Nodes that only send heartbeats.
struct HeartbeatFleet {
    server: PinnedRedis,
    control: Connection,
    connections: Vec<Connection>,
    digest: String,
}

impl HeartbeatFleet {
    fn start(nodes: u32) -> Self {
        let server = PinnedRedis::alone();
        let mut control = connect(&server);
        let mut load = redis::cmd("SCRIPT");
        let digest = load.arg("LOAD").arg(heartbeat::SCRIPT).query(&mut control).expect("a valid script");
        let connections = (0..nodes).map(|_| connect(&server)).collect();
        Self { server, control, connections, digest }
    }

    fn heartbeat(&self, number: u32, description: Option<&str>) -> Cmd {
        let nodes = self.connections.len() as u32;
        let id = format!("{number:016x}");
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(5).arg(heartbeat::alive_key("tg:", TAG));
        command.arg(heartbeat::node_key("tg:", TAG, &id)).arg(heartbeat::votes_key("tg:", TAG));
        command.arg(heartbeat::correction_key("tg:", TAG)).arg(heartbeat::markers_key("tg:", TAG));
        command.arg(heartbeat::arguments(&id, nodes, None, description));
        command
    }

    /// Sends each node's command, many before the first reply is read.
    fn send_together(&mut self, commands: &[Cmd]) {
        for (connections, commands) in self.connections.chunks_mut(TOGETHER).zip(commands.chunks(TOGETHER)) {
            for (connection, command) in connections.iter_mut().zip(commands) {
                connection.send_packed_command(&command.get_packed_command()).expect("the server reads");
            }
            for connection in connections.iter_mut().take(commands.len()) {
                connection.recv_response().expect("the server answers");
            }
        }
    }

    /// Sends each node's command by itself, evenly over a second.
    fn send_spread(&mut self, commands: &[Cmd]) {
        let (start, count) = (Instant::now(), commands.len() as u32);
        for ((connection, command), number) in self.connections.iter_mut().zip(commands).zip(0..) {
            std::thread::sleep((SECOND * number / count).saturating_sub(start.elapsed()));
            let _: Value = command.query(connection).expect("the server answers");
        }
        std::thread::sleep(SECOND.saturating_sub(start.elapsed()));
    }

    fn cpu_ms(&mut self, body: impl FnOnce(&mut Self)) -> f64 {
        let before = self.server.cpu_seconds();
        body(self);
        (self.server.cpu_seconds() - before) * 1e3
    }

    fn reset_statistics(&mut self) {
        let _: () =
            redis::cmd("CONFIG").arg("RESETSTAT").query(&mut self.control).expect("the server answers");
    }

    fn script_us(&mut self) -> f64 {
        let mut info = redis::cmd("INFO");
        let stats: String = info.arg("commandstats").query(&mut self.control).expect("the server answers");
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let fields = line.into_iter().flat_map(|line| line.split(','));
        let field = fields.filter_map(|field| field.strip_prefix("usec_per_call=")).next();
        field.and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
    }

    fn assert_all_counted(&mut self) {
        let heartbeat = self.heartbeat(0, None);
        let (_, alive, _, _, _): (String, usize, u8, String, redis::Value) =
            heartbeat.query(&mut self.control).expect("the server answers");
        assert_eq!(alive, self.connections.len(), "every node is counted");
    }
}

/// The cost of idle nodes: they ping a shard after 100 ms without a call.
fn idle() {
    const NODES: u32 = 200;
    const SECONDS: u32 = 3;
    let server = PinnedRedis::alone();
    let cpu_ms = runtime().block_on(async {
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(sharing(&server.url(), RULES).await);
        }
        tokio::time::sleep(2 * SECOND).await;
        let before = server.cpu_seconds();
        tokio::time::sleep(SECONDS * SECOND).await;
        let cpu_ms = (server.cpu_seconds() - before) * 1e3 / f64::from(SECONDS);
        assert!(nodes.iter().all(|(_, store)| store.node_count() == NODES), "every node counts all nodes");
        cpu_ms
    });
    println!("  {NODES} idle nodes: {cpu_ms:.1} ms of CPU time per second, nearly all of it PINGs");
}
