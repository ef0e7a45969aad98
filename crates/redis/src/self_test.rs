//! The self-test of a server, when it is first connected to: every command and every script that will be needed, once,
//! on keys of its own that are deleted at the end and expire within seconds.
//!
//! A command that is refused is named: a script does not tell which of its commands it was. Everything goes in one
//! round trip.

use super::connection::{DialError, Failure, OpenError, RedisConnection, ServerRole};
use super::dispatch::ScriptForm;
use super::errors::is_key_denied;
use super::url::ServerAddress;
use redis::{Cmd, Value, cmd};
use smallvec::SmallVec;
use tollgate_core::algorithm::{Algorithm, concurrency};
use tollgate_core::grant;
use tollgate_core::heartbeat;
use tollgate_core::lending::Prefetch;
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::script::{self, CallTime, ChargeCall, RequestRun, ScriptCall};
use tollgate_core::state_address::StateField;

/// Should the DEL at the end not be reached.
const LIVES_MS: u64 = 5_000;

/// Where a self-test puts its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyTags {
    /// A slot of the shard.
    pub(super) own: String,
    /// Another slot of the shard; none if it has only one, or is no shard of a Cluster.
    pub(super) other: Option<String>,
}

/// What a server that can be used is like.
#[derive(Debug, Default)]
pub(super) struct SelfTestReport {
    /// Whether one script call may touch several slots, in a Cluster; none if that could not be found out.
    pub(super) crosses_slots: Option<bool>,
    /// Errors that are no fault of the settings, such as memory that is full: they may be gone in a moment.
    pub(super) failures: Vec<Failure>,
    /// Slots were on the move, and not everything was tried.
    pub(super) is_partial: bool,
}

/// What one command of a self-test is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestStep {
    /// To see whether this command is permitted.
    Probe(&'static str),
    /// To run a script as it will be run.
    Script(&'static str),
    /// To see whether one call may touch several slots.
    CrossSlots,
    /// To leave nothing behind.
    Cleanup,
}

/// Tests the server behind `connection`, with keys that begin with `prefix`.
pub(super) async fn run(
    connection: &RedisConnection,
    role: ServerRole,
    address: &ServerAddress,
    prefix: &str,
    tags: &KeyTags,
) -> Result<SelfTestReport, DialError> {
    let address = address.to_string();
    let steps = steps(role, prefix, tags);
    let mut pipeline = redis::pipe();
    for (_, command) in &steps {
        pipeline.add_command(command.clone());
    }
    let lost = |_| DialError::Unreachable("the connection was closed during the self-test".to_owned());
    let answers = connection.send_all(&pipeline, steps.len()).await.map_err(lost)?;
    let answers: Vec<_> = steps.iter().map(|(step, _)| *step).zip(answers).collect();
    judge(&answers).map_err(|refusal| match refusal {
        SelfTestError::MissingPermissions(denied) => denied.error(&address, prefix),
        SelfTestError::Script(script, text) => DialError::Refused(OpenError {
            address: address.clone(),
            problem: format!("the {script} script fails: {text}"),
            hint: "Tollgate needs Redis 6.2 or later, or Valkey 7.2 or later, with Lua scripts".to_owned(),
        }),
        SelfTestError::NotReady(failure) => DialError::NotReady(failure.to_string()),
    })
}

fn steps(role: ServerRole, prefix: &str, tags: &KeyTags) -> Vec<(TestStep, Cmd)> {
    let key = |kind: &str| format!("{prefix}selftest:{{{}}}:{kind}", tags.own);
    let probe = |(name, words): (&'static str, String)| {
        let mut words = words.split(' ');
        let mut command = cmd(words.next().unwrap_or_default());
        words.for_each(|word| {
            command.arg(word);
        });
        (TestStep::Probe(name), command)
    };
    let mut steps: Vec<_> = probes(role, &key).into_iter().map(probe).collect();

    let client = key("client");
    let ask = ask_for_everything();
    for form in [ScriptForm::Source, ScriptForm::Digest] {
        steps.push((TestStep::Script("limit"), limit_script(form, &client, &ask)));
    }
    steps.push((TestStep::Script("refund"), refund_script(&client, &ask)));
    steps.push((TestStep::Script("reset"), reset_script(&client, &ask)));
    let slots = key("slots");
    for args in [
        &["take", "0", "1", "self", "1000000"][..],
        &["keep", "0", "self", "1000000"],
        &["look", "0"],
        &["drop", "0", "self"],
    ] {
        let mut command = cmd("EVAL");
        command.arg(concurrency::SCRIPT).arg(1).arg(&slots).arg(args);
        steps.push((TestStep::Script("concurrency"), command));
    }
    // One that has expired: nothing is written that would stay for long.
    let pool = grant::PoolDraw { id: String::new(), tokens: 1, expires_us: 1 };
    let mut draw = cmd("EVAL");
    draw.arg(grant::SCRIPT).arg(1).arg(key("string")).arg(grant::arguments(0, 1, &[pool]));
    steps.push((TestStep::Script("grant"), draw));
    let marks = key("marks");
    steps.push((
        TestStep::Script("reset marker"),
        cmd("EVAL").arg(heartbeat::MARK_SCRIPT).arg(1).arg(&marks).arg("").take(),
    ));
    let nodes = [key("nodes"), key("node"), key("clock"), key("corrected"), marks];
    // With a vote, so that the part for clocks that stepped runs; and without one.
    for vote_us in [Some(1), None] {
        let arguments = heartbeat::arguments("self", 1, vote_us, Some("{}"));
        let mut heartbeat = cmd("EVAL");
        heartbeat.arg(heartbeat::SCRIPT).arg(nodes.len()).arg(&nodes).arg(arguments);
        steps.push((TestStep::Script("heartbeat"), heartbeat));
    }

    let mut leftovers: Vec<Vec<u8>> =
        ["string", "hash", "list", "set", "client", "slots", "nodes", "node", "clock", "corrected", "marks"]
            .map(|kind| key(kind).into_bytes())
            .to_vec();
    leftovers.extend(script::log_keys(client.as_bytes(), &ask));
    if let (ServerRole::ClusterNode, Some(other)) = (role, &tags.other) {
        let other = format!("{prefix}selftest:{{{other}}}:client");
        steps.push((TestStep::CrossSlots, cross_slots(&client, &other, &ask)));
        let others = std::iter::once(other.clone().into_bytes());
        let others: Vec<_> = others.chain(script::log_keys(other.as_bytes(), &ask)).collect();
        steps.push((TestStep::Cleanup, cmd("DEL").arg(others).take()));
    }
    steps.push((TestStep::Cleanup, cmd("DEL").arg(leftovers).take()));
    steps
}

/// Each permission, and a command that needs it.
fn probes(role: ServerRole, key: &dyn Fn(&str) -> String) -> Vec<(&'static str, String)> {
    let (string, hash, list, set) = (key("string"), key("hash"), key("list"), key("set"));
    let mut probes = vec![
        ("ping", "PING".to_owned()),
        ("time", "TIME".to_owned()),
        ("eval", "EVAL return(1) 0".to_owned()),
        // NOSCRIPT is as good as a reply.
        ("evalsha", format!("EVALSHA {} 0", "0".repeat(40))),
        ("set", format!("SET {string} 1 PX {LIVES_MS} NX")),
        ("get", format!("GET {string}")),
        ("mget", format!("MGET {string}")),
        ("hset", format!("HSET {hash} a 1 b 2")),
        ("pexpire", format!("PEXPIRE {hash} {LIVES_MS}")),
        ("pttl", format!("PTTL {hash}")),
        ("hget", format!("HGET {hash} a")),
        ("hmget", format!("HMGET {hash} a b")),
        ("hlen", format!("HLEN {hash}")),
        ("hrandfield", format!("HRANDFIELD {hash} 2 WITHVALUES")),
        ("hdel", format!("HDEL {hash} a")),
        ("rpush", format!("RPUSH {list} 1 2 3")),
        ("pexpire", format!("PEXPIRE {list} {LIVES_MS}")),
        ("lindex", format!("LINDEX {list} -1")),
        ("llen", format!("LLEN {list}")),
        ("lrange", format!("LRANGE {list} 0 -1")),
        ("lset", format!("LSET {list} -1 4")),
        ("ltrim", format!("LTRIM {list} 1 -1")),
        ("lrem", format!("LREM {list} -1 a")),
        ("zadd", format!("ZADD {set} 1 a 2 b")),
        ("pexpire", format!("PEXPIRE {set} {LIVES_MS}")),
        ("zcard", format!("ZCARD {set}")),
        ("zcount", format!("ZCOUNT {set} 1 2")),
        ("zrange", format!("ZRANGE {set} 0 0 WITHSCORES")),
        ("zscore", format!("ZSCORE {set} a")),
        ("zrem", format!("ZREM {set} a")),
        ("zremrangebyscore", format!("ZREMRANGEBYSCORE {set} -inf 1")),
        ("del", format!("DEL {string} {hash} {list} {set}")),
    ];
    if role == ServerRole::ClusterNode {
        probes.push(("cluster|slots", "CLUSTER SLOTS".to_owned()));
        // It is about the command behind it alone.
        probes.push(("asking", "ASKING".to_owned()));
        probes.push(("ping", "PING".to_owned()));
    }
    probes
}

/// One request against a limit of each algorithm that the script knows.
fn ask_for_everything() -> ScriptCall {
    let size = LimitSize { capacity: Some(1_000), rate: None, window_us: Some(1_000_000) };
    let charge = |algorithm| {
        let limit = Limit::new("self-test", algorithm, size).ok()?;
        let field = StateField::new(limit.state_id, Some(0));
        Some(ChargeCall {
            meter: *limit.meter(),
            field,
            enforced: true,
            as_lent: false,
            prefetch: Prefetch::NONE,
            reports: SmallVec::new(),
        })
    };
    let runs = SmallVec::from_iter([RequestRun { repeats: 1, cost: 1 }]);
    ScriptCall { runs, charges: Algorithm::scripted().filter_map(charge).collect() }
}

fn limit_script(form: ScriptForm, client: &str, ask: &ScriptCall) -> Cmd {
    let keys: Vec<_> =
        std::iter::once(client.as_bytes().to_vec()).chain(script::log_keys(client.as_bytes(), ask)).collect();
    let digest = sha1_smol::Sha1::from(script::source()).digest().to_string();
    let (verb, name) = match form {
        ScriptForm::Digest => ("EVALSHA", digest.as_str()),
        ScriptForm::Source => ("EVAL", script::source()),
    };
    let mut command = cmd(verb);
    command.arg(name).arg(keys.len()).arg(keys);
    command.arg(script::arguments(CallTime::Server, false, std::iter::once(ask)));
    command
}

/// Gives back what `limit_script` has taken, limit by limit.
fn refund_script(client: &str, ask: &ScriptCall) -> Cmd {
    let refund = |charge: &ChargeCall| ScriptCall {
        runs: ask.runs.clone(),
        charges: SmallVec::from_iter([charge.clone()]),
    };
    let refunds: Vec<ScriptCall> = ask.charges.iter().map(refund).collect();
    state_script(script::refund_source(), client, ask, &refunds)
}

fn reset_script(client: &str, ask: &ScriptCall) -> Cmd {
    let limits = ScriptCall { runs: SmallVec::new(), charges: ask.charges.clone() };
    state_script(script::reset_source(), client, ask, &[limits])
}

fn state_script(source: &str, client: &str, ask: &ScriptCall, calls: &[ScriptCall]) -> Cmd {
    let keys: Vec<_> =
        std::iter::once(client.as_bytes().to_vec()).chain(script::log_keys(client.as_bytes(), ask)).collect();
    let mut command = cmd("EVAL");
    command.arg(source).arg(keys.len()).arg(keys);
    command.arg(script::state_arguments(CallTime::Server, calls.iter()));
    command
}

/// As the calls of several clients in different slots of one server are sent.
fn cross_slots(client: &str, other: &str, ask: &ScriptCall) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(format!("{}{}", script::CLUSTER_HEADER, script::source())).arg(1).arg(client);
    command.arg(script::arguments(CallTime::Server, true, [ask, ask].into_iter())).arg(client).arg(other);
    command
}

/// Why a server cannot be used.
#[derive(Debug, PartialEq, Eq)]
enum SelfTestError {
    MissingPermissions(MissingPermissions),
    /// Which script, and what the server said.
    Script(&'static str, String),
    NotReady(Failure),
}

/// What the user lacks.
#[derive(Debug, Default, PartialEq, Eq)]
struct MissingPermissions {
    commands: Vec<&'static str>,
    keys: bool,
    /// What the server said first.
    text: String,
}

impl MissingPermissions {
    fn error(&self, address: &str, prefix: &str) -> DialError {
        let (mut lacks, mut grants) = (Vec::new(), Vec::new());
        if !self.commands.is_empty() {
            lacks.push(format!("the user may not run {}", self.commands.join(", ")));
        }
        if self.keys {
            lacks.push(format!("the user may not read and write keys that begin with `{prefix}`"));
            grants.push(format!("~{prefix}*"));
        }
        grants.extend(self.commands.iter().map(|command| format!("+{command}")));
        DialError::Refused(OpenError {
            address: address.to_owned(),
            problem: format!("NOPERM permission denied: {} ({})", lacks.join("; "), self.text),
            hint: format!(
                "allow it: ACL SETUSER name {}; docs/redis.md has the whole list",
                grants.join(" ")
            ),
        })
    }
}

/// What the replies say of the server.
fn judge(answers: &[(TestStep, Result<Value, Failure>)]) -> Result<SelfTestReport, SelfTestError> {
    let mut denied: Option<MissingPermissions> = None;
    let mut found = SelfTestReport::default();
    for (step, answer) in answers {
        let Some(failure) = failure_in(answer) else {
            if *step == TestStep::CrossSlots {
                found.crosses_slots = Some(true);
            }
            continue;
        };
        match (step, failure) {
            (_, Failure::NoScript) => {}
            (TestStep::CrossSlots, Failure::Other(text)) => {
                tracing::debug!(text, "this server refuses scripts on several slots");
                found.crosses_slots = Some(false);
            }
            (TestStep::CrossSlots, Failure::NoPermission(..)) => found.crosses_slots = Some(false),
            (step, Failure::NoPermission(_, text)) => {
                let denied = denied.get_or_insert_with(|| MissingPermissions {
                    text: text.clone(),
                    ..MissingPermissions::default()
                });
                match step {
                    _ if is_key_denied(&text) => denied.keys = true,
                    TestStep::Probe(name) if !denied.commands.contains(name) => denied.commands.push(name),
                    _ => {}
                }
            }
            (_, failure @ (Failure::ReadOnly | Failure::Loading | Failure::Busy | Failure::ClusterDown)) => {
                return Err(SelfTestError::NotReady(failure));
            }
            (TestStep::Script(script), Failure::Other(text)) => {
                // A permission that is missing explains it.
                if denied.is_none() {
                    return Err(SelfTestError::Script(script, text));
                }
            }
            // Permissions are looked at before slots, so at least those are known.
            (_, Failure::Moved { .. } | Failure::Ask { .. } | Failure::TryAgain | Failure::SlotNotServed) => {
                found.is_partial = true;
            }
            (TestStep::Probe(_) | TestStep::Cleanup, Failure::Other(_)) => {}
            (_, failure) => {
                if !found.failures.contains(&failure) {
                    found.failures.push(failure);
                }
            }
        }
    }
    match denied {
        Some(denied) => Err(SelfTestError::MissingPermissions(denied)),
        None => Ok(found),
    }
}

/// The error in a reply: of the whole call, or of one client in it.
fn failure_in(answer: &Result<Value, Failure>) -> Option<Failure> {
    let parts = match answer {
        Err(failure) => return Some(failure.clone()),
        Ok(Value::Array(parts)) => parts,
        Ok(_) => return None,
    };
    parts.iter().find_map(|part| match part {
        Value::BulkString(bytes) if bytes.starts_with(b"-") => {
            Some(Failure::of_text(&String::from_utf8_lossy(&bytes[1..])))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::permissions::{CLUSTER_COMMANDS, COMMANDS};
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_permission_is_probed() {
        let probed =
            |role| probes(role, &str::to_owned).into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>();
        assert_eq!(probed(ServerRole::Primary), COMMANDS.into_iter().collect());
        assert_eq!(probed(ServerRole::ClusterNode), COMMANDS.into_iter().chain(CLUSTER_COMMANDS).collect());
    }

    #[test]
    fn every_key_begins_with_the_prefix_and_is_deleted() {
        let tags = KeyTags { own: "1".to_owned(), other: Some("2".to_owned()) };
        let (mut keys, mut deleted) = (BTreeSet::new(), BTreeSet::new());
        for (step, command) in steps(ServerRole::ClusterNode, "mine:", &tags) {
            for arg in command.args_iter() {
                let redis::Arg::Simple(arg) = arg else { continue };
                if arg.windows(9).any(|part| part == b"selftest:") {
                    assert!(arg.starts_with(b"mine:selftest:{"), "{:?}", String::from_utf8_lossy(arg));
                    if step == TestStep::Cleanup {
                        deleted.insert(arg.to_vec())
                    } else {
                        keys.insert(arg.to_vec())
                    };
                }
            }
        }
        assert_eq!(keys.difference(&deleted).count(), 0);
        assert!(keys.len() >= 8, "{}", keys.len());
    }

    #[test]
    fn answers_are_judged() {
        let no = |text: &str| Err(Failure::of_text(text));
        let client = |text: &str| Ok(Value::Array(vec![Value::BulkString(text.as_bytes().to_vec())]));
        let script = TestStep::Script("limit");
        let moved = Err(Failure::Moved { slot: 1, address: "h:1".to_owned() });

        let found =
            judge(&[(script, client("+")), (TestStep::CrossSlots, client("+")), (TestStep::Cleanup, moved)])
                .unwrap();
        assert!(found.failures.is_empty() && found.is_partial);
        assert_eq!(found.crosses_slots, Some(true));
        for refused in [no("ERR Unexpected flag in script shebang"), client("-ERR undeclared key")] {
            assert_eq!(judge(&[(TestStep::CrossSlots, refused)]).unwrap().crosses_slots, Some(false));
        }
        let full = judge(&[(TestStep::Probe("set"), no("OOM full")), (TestStep::CrossSlots, no("OOM full"))])
            .unwrap();
        assert_eq!((full.failures.len(), full.crosses_slots), (1, None));

        let refusal = judge(&[(script, no("ERR unknown command 'LSET'"))]).unwrap_err();
        assert_eq!(refusal, SelfTestError::Script("limit", "ERR unknown command 'LSET'".to_owned()));
        let refusal = judge(&[(TestStep::Probe("set"), Err(Failure::ReadOnly))]).unwrap_err();
        assert_eq!(refusal, SelfTestError::NotReady(Failure::ReadOnly));

        let denied = "NOPERM this user has no permissions to run the 'zadd' command";
        let answers = [
            (TestStep::Probe("zadd"), no(denied)),
            (TestStep::Probe("zadd"), no(denied)),
            (script, no(denied)),
        ];
        let SelfTestError::MissingPermissions(found) = judge(&answers).unwrap_err() else {
            panic!("it is denied")
        };
        assert_eq!(
            found,
            MissingPermissions { commands: vec!["zadd"], keys: false, text: denied.to_owned() }
        );
        let answers = [(TestStep::Probe("zadd"), no("NOPERM No permissions to access a key"))];
        let SelfTestError::MissingPermissions(found) = judge(&answers).unwrap_err() else {
            panic!("it is denied")
        };
        assert!(found.keys && found.commands.is_empty());
    }
}
