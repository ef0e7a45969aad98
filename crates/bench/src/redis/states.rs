//! Ten million states of a million clients in Redis.

use super::pinned::{PinnedRedis, runtime};
use crate::measurement::report_at_most;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
use std::io::{IsTerminal, Write};
use tollgate_core::lending::Prefetch;
use tollgate_core::request::Request;
use tollgate_core::rules;
use tollgate_core::script::{self, ChargeCall, RequestRun, ScriptCall};
use tollgate_core::state_address::{FleetSecret, StateAddresses, StateField};

const CLIENTS: usize = 1_000_000;
const ENDPOINTS: u64 = 10;
const IN_ONE_CALL: usize = 64;
const RULES: &str = "
rules:
  - { id: plan, key: [api_key, route], limit: 100/min }
";

pub fn run() {
    println!("redis: {CLIENTS} clients × {ENDPOINTS} endpoints");
    let server = PinnedRedis::alone();
    let before = used_memory(&server);
    let loaded = rules::load("bench.yaml", RULES).expect("valid rules");
    let (rule, limit) = loaded.rules.limits().next().expect("a limit");
    let addresses = StateAddresses::new("tg:", FleetSecret([7; 16]));
    runtime().block_on(async {
        let info =
            format!("redis://{}", server.server().address()).into_connection_info().expect("an address");
        let client = Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)));
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = client.expect("an address");
        let mut connection =
            client.get_multiplexed_async_connection_with_config(&config).await.expect("the server answers");
        let charges = (1..=ENDPOINTS).map(|route| ChargeCall {
            meter: *limit.meter(),
            // Routes are known by hashes; any that differ will do.
            field: StateField::new(limit.state_id, Some(route.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
            enforced: true,
            as_lent: false,
            prefetch: Prefetch::NONE,
            reports: Default::default(),
        });
        let runs = [RequestRun { repeats: 1, cost: 1 }].into_iter().collect();
        let call = ScriptCall { runs, charges: charges.collect() };
        for first in (0..CLIENTS).step_by(IN_ONE_CALL) {
            let mut command = redis::cmd("EVAL");
            let batch = first..(first + IN_ONE_CALL).min(CLIENTS);
            command.arg(script::source()).arg(batch.len());
            for client in batch.clone() {
                let key = format!("sk_prod_{client:010}");
                let request = Request { api_key: Some(&key), ..Request::default() };
                command.arg(addresses.locate(rule, limit, &request, 1).key);
            }
            command.arg(script::arguments(script::CallTime::Server, false, batch.map(|_| &call)));
            let _: redis::Value = command.query_async(&mut connection).await.expect("the server answers");
            if first % (IN_ONE_CALL * 256) == 0 && std::io::stderr().is_terminal() {
                eprint!("\r  {:>3} %", first * 100 / CLIENTS);
                let _ = std::io::stderr().flush();
            }
        }
    });
    let used = used_memory(&server) - before;
    let states = CLIENTS as f64 * ENDPOINTS as f64;
    println!("\r  {:.0} MB, {:.1} bytes a state", used / 1e6, used / states);
    report_at_most("10 M states in Redis: used_memory, MB", used / 1e6, 500.0);
}

fn used_memory(server: &PinnedRedis) -> f64 {
    let info = server.server().cli(&["INFO", "memory"]);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(f64::NAN)
}
