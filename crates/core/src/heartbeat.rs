//! The heartbeat of a node at a shared store: the keys, the script, and how its answer is read.
//!
//! Each shard has a sorted set of the nodes that are alive. A heartbeat writes the node's own entry, removes the entries
//! of nodes that have been silent for too long, and answers the time and the number of nodes: a few bytes, however
//! many nodes there are. The description of a node has a key of its own. It is sent when it changes, when the store
//! has lost the node's entry, and now and then before it expires; and it is read only on request.
//!
//! ```text
//! tg:alive:{tag}       b7c1… → 1794885776233251     the id of each live node and its last heartbeat
//! tg:node:{tag}:b7c1…  {"id":"b7c1…","address":…}   the description of that node
//! ```
//!
//! The keys are under the shard's own hash tag, so that in a Cluster they are served by that shard.

use crate::script::LATEST_US;

/// See the file.
pub const SCRIPT: &str = include_str!("heartbeat.lua");

/// A node without a heartbeat for so long is forgotten.
pub const SILENT_US: u64 = 5_000_000;
/// One heartbeat in so many carries the description and puts off the expiry of both keys.
pub const DESCRIBE_EVERY: u64 = 20;
/// No fleet is larger.
pub const MOST_NODES: u32 = 100_000;
/// Three times as long as between two such heartbeats: two may be lost.
const KEPT_MS: u64 = 3 * 1_000 * DESCRIBE_EVERY;

/// The sorted set of the live nodes.
pub fn alive_key(prefix: &str, tag: &str) -> String {
    format!("{prefix}alive:{{{tag}}}")
}

/// The description of the node `id`.
pub fn node_key(prefix: &str, tag: &str, id: &str) -> String {
    format!("{prefix}node:{{{tag}}}:{id}")
}

/// The arguments of [`SCRIPT`], behind its two keys.
pub fn arguments(id: &str, description: Option<&str>) -> Vec<String> {
    let mut arguments = vec![id.to_owned(), SILENT_US.to_string(), KEPT_MS.to_string()];
    arguments.extend(description.map(str::to_owned));
    arguments
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The time at the store.
    pub now_us: u64,
    /// How many nodes are alive, this one included.
    pub nodes: u32,
    /// Whether the store did not know of this node before: it is the first heartbeat, the store was restarted empty,
    /// or the node was silent for too long.
    pub is_new: bool,
}

impl Answer {
    /// The answer with these parts, if they can be true.
    pub fn read(time: &[u8], nodes: i64, is_new: i64) -> Option<Self> {
        let now_us: u64 = std::str::from_utf8(time).ok()?.parse().ok()?;
        let nodes = u32::try_from(nodes).ok()?;
        let is_possible = (1..LATEST_US).contains(&now_us)
            && (1..=MOST_NODES).contains(&nodes)
            && (0..=1).contains(&is_new);
        is_possible.then_some(Self { now_us, nodes, is_new: is_new == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_makes_no_sense_is_none() {
        let read = Answer { now_us: 1_794_885_776_233_251, nodes: 3, is_new: true };
        assert_eq!(Answer::read(b"1794885776233251", 3, 1), Some(read));
        assert_eq!(Answer::read(b"1.794e+15", 3, 1), None);
        assert_eq!(Answer::read(b"1794885776233251", 0, 1), None);
        assert_eq!(Answer::read(b"1794885776233251", -1, 1), None);
        assert_eq!(Answer::read(b"", 3, 0), None);
        assert_eq!(Answer::read(b"0", 3, 0), None);
        assert_eq!(Answer::read(b"4503599627370496", 3, 0), None, "later than a script can count");
        assert_eq!(Answer::read(b"18446744073709551615", 3, 0), None);
        assert_eq!(Answer::read(b"1794885776233251", 100_001, 0), None);
        assert_eq!(Answer::read(b"1794885776233251", i64::MAX, 0), None);
        assert_eq!(Answer::read(b"1794885776233251", 3, 2), None);
    }
}
