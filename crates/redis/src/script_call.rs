//! Calls of a script for one key, outside the batches of decisions: slots in flight, grants, and what operators ask for.

use crate::StoreCore;
use crate::connection::Failure;
use crate::shard::RedisShard;
use redis::Value;
use std::time::Duration;
use tollgate_core::script::CallTime;
use tollgate_core::time::StoreTime;

/// A key that moves is followed so many times.
const MOST_HOPS: u32 = 3;
const HOP_PAUSE: Duration = Duration::from_millis(5);

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct NamedScript {
    digest: String,
    source: &'static str,
}

impl NamedScript {
    pub(crate) fn new(source: &'static str) -> Self {
        Self { digest: sha1_smol::Sha1::from(source).digest().to_string(), source }
    }
}

impl StoreCore {
    /// Runs `script` on `keys`, all of one slot, wherever they are served. `arguments` returns the arguments for the shard
    /// that is called. An error reply is counted and logged.
    pub(crate) async fn run_script(
        &self,
        script: &NamedScript,
        keys: &[Vec<u8>],
        arguments: impl Fn(&RedisShard) -> Vec<Vec<u8>>,
    ) -> Result<Value, Failure> {
        let first = keys.first().map(Vec::as_slice).unwrap_or_default();
        let mut by_name = true;
        let mut hops = 0;
        loop {
            let mut command = redis::cmd(if by_name { "EVALSHA" } else { "EVAL" });
            command.arg(if by_name { script.digest.as_str() } else { script.source }).arg(keys.len());
            for key in keys {
                command.arg(key.as_slice());
            }
            let shard = self.servers.shard_of(first);
            for argument in arguments(&shard) {
                command.arg(argument);
            }
            match shard.call(&command).await {
                Err(Failure::NoScript) if by_name => by_name = false,
                Err(Failure::Moved { .. } | Failure::Ask { .. } | Failure::TryAgain) if hops < MOST_HOPS => {
                    hops += 1;
                    self.servers.refresh();
                    tokio::time::sleep(HOP_PAUSE).await;
                }
                other => return other.inspect_err(|failure| shard.note_error(failure)),
            }
        }
    }

    /// The time by which a call to `shard` computes.
    pub(crate) fn call_time(&self, shard: &RedisShard) -> CallTime {
        match &self.given_time {
            Some(clock) => CallTime::Given(StoreTime::from_us(clock.now().as_us())),
            None => shard.clock().call_time(self.clock.boot()),
        }
    }
}
