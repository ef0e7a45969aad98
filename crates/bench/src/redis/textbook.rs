//! A textbook script, through the same client library.

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
use tollgate_testbed::RedisServer;

const SCRIPT: &str = r"
local state = redis.call('HMGET', KEYS[1], 'tokens', 'time')
local capacity, rate, now, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local tokens = tonumber(state[1]) or capacity
local time = tonumber(state[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - time) * rate)
local allowed = tokens >= cost
if allowed then tokens = tokens - cost end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'time', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 2))
return { allowed and 1 or 0, math.floor(tokens) }
";

#[derive(Clone)]
pub struct TextbookScript {
    connection: MultiplexedConnection,
    digest: String,
}

impl TextbookScript {
    pub async fn open(server: &RedisServer) -> Self {
        let info = server.address().as_str().into_connection_info();
        let info = info.or_else(|_| server_url(server).into_connection_info()).expect("an address");
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(4096).set_response_timeout(None);
        let client = Client::open(info).expect("an address");
        let mut connection =
            client.get_multiplexed_async_connection_with_config(&config).await.expect("the server answers");
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        let digest = load.query_async(&mut connection).await.expect("a valid script");
        Self { connection, digest }
    }

    pub async fn check(&self, key: &str) {
        let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(1).arg(key).arg(1_000_000).arg(16.67);
        command.arg(now_ms.as_millis() as u64).arg(1);
        let (allowed, _): (u8, i64) =
            command.query_async(&mut self.connection.clone()).await.expect("the server answers");
        assert_eq!(allowed, 1, "every check passes");
    }

    pub async fn ping(&self) {
        let _: String =
            redis::cmd("PING").query_async(&mut self.connection.clone()).await.expect("the server answers");
    }
}

fn server_url(server: &RedisServer) -> String {
    format!("redis://{}", server.address())
}
