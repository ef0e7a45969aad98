//! The task behind a shard. It alone connects, and it alone closes the breaker.
//!
//! Without a connection it connects: at once when the connection was closed, then after ever longer pauses. With a connection it
//! waits for the connection's end, and pings when nothing was answered for a while, so that an outage is noticed
//! before a client has to wait for it. Before it closes the breaker it probes with a write. None touches a client's key.

use super::super::connection::{DialError, Failure, RedisConnection, timer_time};
use super::super::errors::StoreErrorKind;
use super::super::url::ServerAddress;
use super::{CallOutcome, RedisShard};
use redis::cmd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate_core::time::TimerTime;

/// A server that answered nothing for so long is pinged by each of a few nodes. Where there are more, each pings less
/// often, so that an idle server does not get more than 500 pings a second.
const IDLE: Duration = Duration::from_millis(100);
const NODES_AT_FULL_PACE: u32 = 50;
/// Between attempts to connect while the breaker is still closed, in milliseconds.
const RETRY_MS: std::ops::Range<u64> = 5..20;

/// How long the key of a probe is kept.
const PROBE_KEPT_MS: u64 = 1_000;

/// Keeps `shard` connected until it is retired.
pub(crate) async fn supervise(shard: Arc<RedisShard>) {
    // The last error, so that each is logged once.
    let mut last_error = String::new();
    while !shard.is_retired.load(Ordering::Acquire) {
        match shard.connection.load_full() {
            Some(connection) => {
                last_error.clear();
                watch(&shard, &connection).await;
            }
            None => connect(&shard, &mut last_error).await,
        }
    }
}

/// Waits with a connection until there is something to do about it.
async fn watch(shard: &RedisShard, connection: &Arc<RedisConnection>) {
    let answered = TimerTime::from_us(shard.answered_us.load(Ordering::Relaxed));
    let quiet = Duration::from_micros(timer_time().since(answered));
    if connection.is_closed() {
        if let Some(fault) = connection.fault() {
            shard.note_error(&Failure::InvalidAnswer(fault));
        }
        // All that was lost with it is one failure.
        shard.drop_connection(connection);
        shard.record_failure();
        return;
    }
    let idle = IDLE * shard.common.nodes.load(Ordering::Relaxed).div_ceil(NODES_AT_FULL_PACE).max(1);
    if quiet >= idle {
        ping(shard, connection).await;
        return;
    }
    tokio::select! {
        () = connection.closed() => {}
        () = shard.wake.notified() => {}
        () = sleep(idle - quiet) => {}
    }
}

/// Pings the server. A late reply is a failure, and each further third of the timeout without a reply is another: so the
/// breaker of an idle shard opens within 200 ms of an outage.
async fn ping(shard: &RedisShard, connection: &Arc<RedisConnection>) {
    let command = cmd("PING");
    let mut answer = pin!(connection.send(&command));
    let mut patience = shard.common.timeout;
    loop {
        tokio::select! {
            answer = &mut answer => return shard.record_result(connection, &answer),
            () = connection.closed() => return,
            () = sleep(patience) => shard.report(CallOutcome::TimedOut),
        }
        patience = shard.common.timeout / 3;
    }
}

/// Tries once to connect, when it is time for it.
async fn connect(shard: &RedisShard, last_error: &mut String) {
    let Some(address) = shard.address() else { return shard.wake.notified().await };
    if !wait_for_turn(shard).await {
        return;
    }
    shard.breaker.begin_probe();
    let mut dialing = pin!(shard.dial(&address));
    let result = loop {
        tokio::select! {
            result = &mut dialing => break result,
            // Perhaps there is another address.
            () = shard.wake.notified() => if has_moved(shard, &address) { return },
            // To be without a connection is a failure, though nothing says no.
            () = sleep(shard.common.timeout), if !shard.is_open() => shard.record_failure(),
        }
    };
    let result = match result {
        Ok(connection) if shard.is_open() => probe_write(shard, connection).await,
        result => result,
    };
    match result {
        Ok(connection) => adopt_connection(shard, &address, connection),
        Err(error) => record_dial_error(shard, &address, &error, last_error),
    }
}

/// Before the breaker closes, the server must execute a write within the timeout of calls. To a server that is only slow a
/// connection can be made, and one whose writes are paused (`CLIENT PAUSE … WRITE`) replies to a PING: the breaker would open
/// again with the next calls. An error is a reply as well, unless it says that the server is not ready.
async fn probe_write(shard: &RedisShard, connection: RedisConnection) -> Result<RedisConnection, DialError> {
    let tag = shard.tags.load_full().map(|tags| tags.own.clone()).unwrap_or_default();
    let mut command = cmd("SET");
    command.arg(format!("{}probe:{{{tag}}}", shard.common.prefix)).arg(1).arg("PX").arg(PROBE_KEPT_MS);
    match timeout(shard.common.timeout, connection.send(&command)).await {
        Ok(Err(failure)) if failure.is_outage() => Err(DialError::NotReady(failure.to_string())),
        Ok(_) => Ok(connection),
        Err(_) => Err(DialError::Unreachable("it replies too late".to_owned())),
    }
}

/// Whether it is time to connect; no, if something changed meanwhile.
async fn wait_for_turn(shard: &RedisShard) -> bool {
    let pause = if shard.is_open() {
        Duration::from_micros(shard.breaker.next_probe().since(timer_time()))
    } else if shard.breaker.failures() > 0 {
        Duration::from_millis(fastrand::u64(RETRY_MS))
    } else {
        Duration::ZERO
    };
    pause.is_zero() || timeout(pause, shard.wake.notified()).await.is_err()
}

fn has_moved(shard: &RedisShard, address: &ServerAddress) -> bool {
    shard.is_retired.load(Ordering::Acquire) || shard.address().is_none_or(|now| *now != *address)
}

fn adopt_connection(shard: &RedisShard, address: &ServerAddress, connection: RedisConnection) {
    let connection = Arc::new(connection);
    shard.adopt(&connection);
    // Checked afterwards: a move of the shard from now on drops this connection.
    if has_moved(shard, address) {
        return shard.drop_connection(&connection);
    }
    let turn = shard.breaker.record_probe_success(timer_time());
    shard.restore(turn);
}

fn record_dial_error(
    shard: &RedisShard,
    address: &ServerAddress,
    error: &DialError,
    last_error: &mut String,
) {
    match error {
        DialError::Refused(error) => {
            shard.note(StoreErrorKind::Permission, &format!("{} (hint: {})", error.problem, error.hint));
        }
        DialError::Unreachable(text) | DialError::NotReady(text) => {
            if text != last_error {
                tracing::warn!(shard = shard.number, %address, reason = text, "cannot connect; retrying");
                last_error.clone_from(text);
            }
        }
    }
    if shard.is_open() {
        shard.counters.failures.fetch_add(1, Ordering::Relaxed);
        shard.breaker.record_probe_failure(timer_time(), fastrand::u32(0..=1_000));
    } else {
        shard.record_failure();
    }
    shard.common.rediscover.notify_one();
}
