//! Drawing from the pools of grants: one script call.

use crate::StoreCore;
use crate::connection::Failure;
use crate::fleet::bytes_of;
use crate::script_call::NamedScript;
use crate::shard::RedisShard;
use redis::Value;
use std::sync::LazyLock;
use tollgate_core::grant::{self, DrawOutcome, PoolDraw};

static DRAW: LazyLock<NamedScript> = LazyLock::new(|| NamedScript::new(grant::SCRIPT));

impl StoreCore {
    /// Draws `amount` from all of `pools` or from none. A draw is never sent twice: without an answer it counts as drawn.
    pub(crate) async fn draw(&self, pools: &[PoolDraw], amount: i64) -> Result<DrawOutcome, Failure> {
        let key = |pool: &PoolDraw| grant::pool_key(&self.settings.prefix, &pool.id).into_bytes();
        let keys: Vec<Vec<u8>> = pools.iter().map(key).collect();
        let arguments = |shard: &RedisShard| grant::arguments(shard.clock().correction_us(), amount, pools);
        match self.run_script(&DRAW, &keys, arguments).await? {
            Value::Int(reply) => DrawOutcome::read(reply, pools.len()),
            _ => None,
        }
        .ok_or(Failure::InvalidAnswer("not the answer to a draw"))
    }

    /// How many tokens were drawn of a grant.
    pub(crate) async fn drawn(&self, id: &str) -> Result<u64, Failure> {
        let key = grant::pool_key(&self.settings.prefix, id);
        let shard = self.servers.shard_of(key.as_bytes());
        let value = shard.call_noting_errors(redis::cmd("GET").arg(key)).await?;
        let text = bytes_of(&value).and_then(|bytes| std::str::from_utf8(bytes).ok());
        match (&value, text) {
            (Value::Nil, _) => Ok(0),
            (_, Some(text)) => text.parse().map_err(|_| Failure::InvalidAnswer("not a number of tokens")),
            _ => Err(Failure::InvalidAnswer("not a number of tokens")),
        }
    }
}
