//! The ACL permissions that the user of the store needs.
//!
//! One list, from which the self-test (`self_test.rs`) takes what to try and `docs/redis.md` what to grant. A test
//! holds it against the commands that the scripts and this folder send: none is missing, and none is there in vain.

/// Commands that every store needs.
pub const COMMANDS: [&str; 30] = [
    "del",
    "eval",
    "evalsha",
    "get",
    "hdel",
    "hget",
    "hlen",
    "hmget",
    "hrandfield",
    "hset",
    "lindex",
    "llen",
    "lrange",
    "lrem",
    "lset",
    "ltrim",
    "mget",
    "pexpire",
    "ping",
    "pttl",
    "rpush",
    "set",
    "time",
    "zadd",
    "zcard",
    "zcount",
    "zrange",
    "zrem",
    "zremrangebyscore",
    "zscore",
];

/// Commands that a Cluster needs as well.
pub const CLUSTER_COMMANDS: [&str; 2] = ["asking", "cluster|slots"];

/// Commands that a database other than 0 needs as well (`redis://host/2`).
pub const DATABASE_COMMANDS: [&str; 1] = ["select"];

/// Commands that tell how a server is set up. Without them Tollgate works, and cannot warn of a dangerous setting.
pub const OPTIONAL_COMMANDS: [&str; 3] = ["cluster|info", "config|get", "info"];

/// Commands that the control plane needs as well, with the channels that begin with the prefix (`&tg:*`). Without them
/// a node decides all the same. Without `publish` or `subscribe` it notices changes of the rules by polling; without the
/// others nothing can be published.
pub const CONTROL_COMMANDS: [&str; 4] = ["hstrlen", "hvals", "publish", "subscribe"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use tollgate_core::{algorithm, grant, heartbeat, script};

    /// The words behind each `start` in `text`, up to the quote that ends them.
    fn quoted(text: &str, start: &str) -> BTreeSet<String> {
        let quote = start.chars().last().unwrap();
        let ends = text.split(start).skip(1).filter_map(|rest| rest.split_once(quote));
        ends.map(|(word, _)| word.to_lowercase()).collect()
    }

    /// The commands that a script calls.
    fn called(script: &str) -> BTreeSet<String> {
        let words = ["call(\"", "call('"].into_iter().flat_map(|start| quoted(script, start));
        words.filter(|word| !word.is_empty()).collect()
    }

    /// The commands that the code of this folder sends, its tests and the self-test left out: `cmd("CLUSTER").arg("SLOTS")`
    /// is `cluster|slots`.
    fn sent(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sent(&path, found);
                continue;
            }
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.ends_with(".rs") || ["tests.rs", "self_test.rs", "permissions.rs"].contains(&&*name) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (start, _) in code.match_indices("cmd(").chain(code.match_indices(".cmd(")) {
                let line = code[start..].split([';', '\n']).next().unwrap_or_default();
                let mut words = quoted(line, "cmd(\"");
                if words.remove("cluster") || words.remove("config") {
                    let first = line.split('"').nth(1).unwrap_or_default();
                    let second = line.split('"').nth(3).unwrap_or_default();
                    words.insert(format!("{first}|{second}").to_lowercase());
                }
                found.extend(words);
            }
            found.extend(called(code));
        }
    }

    #[test]
    fn the_list_is_what_is_used() {
        let mut used = called(script::source());
        used.extend(called(algorithm::concurrency::SCRIPT));
        used.extend(called(heartbeat::SCRIPT));
        used.extend(called(heartbeat::MARK_SCRIPT));
        used.extend(called(grant::SCRIPT));
        used.extend(called(script::reset_source()));
        used.extend(called(script::refund_source()));
        sent(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut used);
        // Always permitted, and what a Sentinel is asked, which has users of its own.
        for free in ["auth", "hello", "sentinel"] {
            assert!(used.remove(free), "{free} is not used");
        }
        // Chosen by a condition: `cmd(if by_name { "EVALSHA" } else { "EVAL" })`.
        used.extend(["eval", "evalsha"].map(str::to_owned));
        // Sent by a method of the client library.
        used.insert("subscribe".to_owned());
        let lists =
            [&COMMANDS[..], &CLUSTER_COMMANDS, &DATABASE_COMMANDS, &OPTIONAL_COMMANDS, &CONTROL_COMMANDS];
        let listed: BTreeSet<String> = lists.concat().into_iter().map(str::to_owned).collect();
        assert_eq!(listed, used);
    }
}
