//! The heartbeat of a node at a shared store: the keys, the script, and its reply.
//!
//! Each shard has a sorted set of the nodes that are alive. A heartbeat writes the node's own entry, removes the entries
//! of nodes without a heartbeat for a minute, and returns the time and the number of nodes that have missed fewer than
//! five heartbeats: a few bytes, however many nodes there are. With more than a hundred nodes each sends its heartbeat less
//! often. The description of a node has a key of its own. It is sent when it changes, when the store
//! has lost the node's entry, and regularly before it expires; and it is read only on request.
//!
//! ```text
//! tg:alive:{tag}       b7c1… → 1794885776233251     the id of each live node and its last heartbeat
//! tg:node:{tag}:b7c1…  {"id":"b7c1…","address":…}   the description of that node
//! tg:clock:{tag}       b7c1… → -60000312            the corrections that nodes vote for, after the clock has stepped
//! tg:corrected:{tag}   -60000312 1794885776233251   the correction that they have agreed on, and when
//! tg:resets:{tag}      …                            the clients that were reset in the last half minute, sealed
//! ```
//!
//! Each heartbeat is a measurement of the server's clock. A node that finds it far from where it expected it sends the
//! difference as a vote with its next heartbeat. When more than half of the nodes vote alike, the clock has stepped, and
//! its time is corrected by the median of their votes. The correction shrinks by a hundredth of the time that passes.
//!
//! The keys are under the shard's own hash tag, so that in a Cluster they are served by that shard.

use crate::script::LATEST_US;
use crate::time::{ServerTime, StoreTime};

/// The script of a heartbeat.
pub const SCRIPT: &str = include_str!("heartbeat.lua");

/// Adds a reset marker to the list of a shard, which heartbeats return. It expires half a minute after the last one: every
/// node has sent a heartbeat by then. Nodes that subscribe to the channel
/// `ARGV[2]` get it at once; a user that may not publish still resets.
pub const MARK_SCRIPT: &str = "\
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -64, -1)
redis.call('PEXPIRE', KEYS[1], 30000)
if ARGV[2] then redis.pcall('PUBLISH', ARGV[2], ARGV[1]) end
return 1";
/// The most markers that a shard keeps, as [`MARK_SCRIPT`] says.
pub const MOST_MARKERS: usize = 64;

/// The time between two heartbeats of a node in a small fleet.
pub const INTERVAL_US: u64 = 1_000_000;
/// So many nodes send a heartbeat in each interval. In a larger fleet intervals are longer, so that a shard does not get
/// many more.
const NODES_PER_INTERVAL: u32 = 100;
const LONGEST_INTERVAL_US: u64 = 10 * INTERVAL_US;
/// A node that has missed so many heartbeats is not counted.
pub const MISSED: u64 = 5;
/// The size of the largest fleet.
pub const MOST_NODES: u32 = 100_000;
/// The description is sent again after this time, which renews the expiry of both keys.
pub const DESCRIBE_EVERY_US: u64 = 20_000_000;
/// Three times as long, so that two may be lost.
const KEPT_MS: u64 = 3 * DESCRIBE_EVERY_US / 1_000;

/// The time between two heartbeats of a node in a fleet of so many.
pub fn interval_us(nodes: u32) -> u64 {
    (u64::from(nodes.div_ceil(NODES_PER_INTERVAL).max(1)) * INTERVAL_US).min(LONGEST_INTERVAL_US)
}

/// The sorted set of the live nodes.
pub fn alive_key(prefix: &str, tag: &str) -> String {
    format!("{prefix}alive:{{{tag}}}")
}

/// The description of the node `id`.
pub fn node_key(prefix: &str, tag: &str, id: &str) -> String {
    format!("{prefix}node:{{{tag}}}:{id}")
}

/// The votes of the nodes that measured another time than the server's clock shows.
pub fn votes_key(prefix: &str, tag: &str) -> String {
    format!("{prefix}clock:{{{tag}}}")
}

/// The correction that the nodes have agreed on.
pub fn correction_key(prefix: &str, tag: &str) -> String {
    format!("{prefix}corrected:{{{tag}}}")
}

/// The list of reset markers.
pub fn markers_key(prefix: &str, tag: &str) -> String {
    format!("{prefix}resets:{{{tag}}}")
}

/// The channel on which reset markers are sent.
pub fn resets_channel(prefix: &str) -> String {
    format!("{prefix}resets")
}

/// The arguments of [`SCRIPT`], behind its five keys. `nodes` is how many there are, as far as is known, and `vote_us` the
/// correction of the clock that this node votes for.
pub fn arguments(id: &str, nodes: u32, vote_us: Option<i64>, description: Option<&str>) -> Vec<String> {
    let silent_us = MISSED * interval_us(nodes);
    let mut arguments = vec![id.to_owned(), silent_us.to_string(), KEPT_MS.to_string()];
    arguments.push(vote_us.map_or_else(String::new, |us| us.to_string()));
    arguments.extend(description.map(str::to_owned));
    arguments
}

/// The reply to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The time at the server.
    pub now: ServerTime,
    /// How many nodes are alive, this one included.
    pub nodes: u32,
    /// Whether the store had no entry of this node: it is the first heartbeat, the store was restarted empty, or the last
    /// heartbeat is too long ago.
    pub is_new: bool,
    /// The correction of the server's clock that the nodes have agreed on.
    pub correction: ClockCorrection,
}

/// A correction of a server's clock. It shrinks by a hundredth of the time that passes, by the server's clock, so that at
/// each instant it is the same for all nodes: a limit that fills in a few milliseconds would be refilled again and again
/// if nodes charged it by times that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockCorrection {
    /// The microseconds that the nodes have agreed on; 0 if the clock is not corrected.
    pub agreed_us: i64,
    /// When they did, by the server's clock.
    pub since: ServerTime,
}

/// A correction shrinks by one part in so many of the time that passes.
pub const SLEW: u64 = 100;

impl ClockCorrection {
    /// What is left of it when the server's clock shows `server`, in microseconds.
    pub fn left_us(self, server: ServerTime) -> i64 {
        let shrunk_us = server.since(self.since) / SLEW;
        self.agreed_us.signum() * self.agreed_us.unsigned_abs().saturating_sub(shrunk_us) as i64
    }

    /// The time by which the shard charges when its server's clock shows `server`.
    pub fn apply(self, server: ServerTime) -> StoreTime {
        StoreTime::from_us(server.as_us()).shifted_by(self.left_us(server))
    }

    fn read(text: &[u8]) -> Option<Self> {
        let (agreed, since) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let correction =
            Self { agreed_us: agreed.parse().ok()?, since: ServerTime::from_us(since.parse().ok()?) };
        let is_possible =
            correction.agreed_us.unsigned_abs() < MOST_CORRECTED_US && correction.since < LATEST_SERVER_TIME;
        is_possible.then_some(correction)
    }
}

/// Clocks are not further apart than this: such a number was not written by a node.
const MOST_CORRECTED_US: u64 = 1 << 50;
const LATEST_SERVER_TIME: ServerTime = ServerTime::from_us(LATEST_US);

impl HeartbeatReply {
    /// The reply with these parts, if they are valid.
    pub fn read(time: &[u8], nodes: i64, is_new: i64, correction: &[u8]) -> Option<Self> {
        let now = ServerTime::from_us(std::str::from_utf8(time).ok()?.parse().ok()?);
        let nodes = u32::try_from(nodes).ok()?;
        let correction = ClockCorrection::read(correction)?;
        let is_possible = (ServerTime::from_us(1)..LATEST_SERVER_TIME).contains(&now)
            && (1..=MOST_NODES).contains(&nodes)
            && (0..=1).contains(&is_new);
        is_possible.then_some(Self { now, nodes, is_new: is_new == 1, correction })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_reply_is_none() {
        let correction = ClockCorrection { agreed_us: -5, since: ServerTime::from_us(7) };
        let read = HeartbeatReply {
            now: ServerTime::from_us(1_794_885_776_233_251),
            nodes: 3,
            is_new: true,
            correction,
        };
        assert_eq!(HeartbeatReply::read(b"1794885776233251", 3, 1, b"-5 7"), Some(read));
        let now = &b"1794885776233251"[..];
        for (time, nodes, is_new, correction) in [
            (&b"1.794e+15"[..], 3, 0, &b"0 0"[..]),
            (now, 0, 0, b"0 0"),
            (now, -1, 0, b"0 0"),
            (now, 100_001, 0, b"0 0"),
            (now, i64::MAX, 0, b"0 0"),
            (now, 3, 2, b"0 0"),
            (b"", 3, 0, b"0 0"),
            (b"0", 3, 0, b"0 0"),
            // Not exact in a script.
            (b"4503599627370496", 3, 0, b"0 0"),
            (b"18446744073709551615", 3, 0, b"0 0"),
            (now, 3, 0, b""),
            (now, 3, 0, b"1e+17 0"),
            (now, 3, 0, b"0"),
            (now, 3, 0, b"0 -1"),
            (now, 3, 0, b"5 4503599627370496"),
            (now, 3, 0, b"-9223372036854775808 0"),
        ] {
            assert_eq!(
                HeartbeatReply::read(time, nodes, is_new, correction),
                None,
                "{time:?} {nodes} {correction:?}"
            );
        }
    }

    #[test]
    fn a_correction_shrinks_to_nothing() {
        let ahead = ClockCorrection { agreed_us: -1_000, since: ServerTime::from_us(1_000_000) };
        for (server_us, left_us) in [
            (0, -1_000),
            (1_000_000, -1_000),
            (1_000_100, -999),
            (1_050_000, -500),
            (1_100_000, 0),
            (u64::MAX, 0),
        ] {
            let server = ServerTime::from_us(server_us);
            assert_eq!(ahead.left_us(server), left_us, "{server_us}");
            let behind = ClockCorrection { agreed_us: 1_000, ..ahead };
            assert_eq!(behind.left_us(server), -left_us, "{server_us}");
        }
        assert_eq!(ClockCorrection::default().left_us(ServerTime::from_us(5)), 0);
    }
}
