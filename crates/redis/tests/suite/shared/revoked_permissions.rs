//! Permissions that are revoked while a node is at work: whatever it needs them for, each decision is the store's, or it is
//! degraded and an ERROR line has the command. Nothing is admitted beyond a limit, and no key is left without an expiry.

use super::fleet::Node;
use super::node::patient;
use crate::log::{Log, logged};
use std::sync::Arc;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::heartbeat;
use tollgate_limiter::{
    Decision, EndpointScope, Outcome, Request, RequestPart, StoreUnavailable, TokenOperation,
};
use tollgate_redis::permissions::COMMANDS;
use tollgate_redis::{RedisSettings, StoreErrorKind};
use tollgate_testbed::{RedisServer, eventually};
use tracing::Level;

const LIMIT: u32 = 3;
const LEASED_LIMIT: u32 = 200;

/// A limit of each algorithm, and one more that a client is charged for before the permission is revoked.
fn rules() -> String {
    let rule = |algorithm: Algorithm| {
        let name = algorithm.name();
        format!("  - {{ id: {name}, endpoint: /{name}, algorithm: {name}, limit: {LIMIT}/day }}\n")
    };
    format!(
        "
defaults: {{ consistency: strict, on_store_failure: deny }}
rules:
{}
  - {{ id: before, endpoint: /before, limit: {LIMIT}/day }}
  - {{ id: leased, endpoint: /leased, limit: {LEASED_LIMIT}/day, consistency: leased }}
  - {{ id: slots, endpoint: /slots, algorithm: concurrency, limit: {LIMIT} }}
",
        Algorithm::scripted().map(rule).collect::<String>()
    )
}

/// A node at work, from whose user a command is taken.
struct Revocation<'l> {
    server: &'l RedisServer,
    log: &'l Log,
    node: Arc<Node>,
    command: &'static str,
    /// The errors that were found so far.
    errors: u64,
}

/// What a client was admitted, and how many of its requests may have been charged without that.
#[derive(Debug, Default)]
struct ChargedRequests {
    admitted: u32,
    unknown: u32,
}

/// A user of `server` that may run everything.
fn permit(server: &RedisServer, user: &str) {
    assert_eq!(server.cli(&["ACL", "SETUSER", user, "on", ">pw", "~tg*", "+@all"]), "OK");
}

/// Whether an ERROR line says that `command` is not permitted. Before 7.2 Redis does not say which command of a script is not.
fn is_named(log: &Log, command: &str) -> bool {
    let reasons = [&*format!("'{command}'"), "this command or subcommand"];
    reasons.iter().any(|reason| !log.lines(Level::ERROR, &["NOPERM", "degraded", reason]).is_empty())
}

impl<'l> Revocation<'l> {
    async fn begin(server: &'l RedisServer, log: &'l Log, command: &'static str) -> Self {
        permit(server, "limited");
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
        log.clear();
        let settings = RedisSettings { expected_nodes: Some(1), ..patient() };
        let url = format!("redis://limited:pw@{}", server.address());
        let node = Node::start_with(&url, &rules(), settings).await;
        Self { server, log, node, command, errors: 0 }
    }

    fn set(&self, sign: char) {
        let rule = format!("{sign}{}", self.command);
        assert_eq!(self.server.cli(&["ACL", "SETUSER", "limited", &rule]), "OK");
    }

    /// What was decided without the store has met an error that was counted and logged.
    fn assert_not_silent(&mut self, what: &str) {
        let errors = self.node.store.errors(StoreErrorKind::Permission);
        assert!(errors > self.errors, "-{}: {what}: no error", self.command);
        assert!(is_named(self.log, self.command), "-{}: {what}: {:?}", self.command, self.log.errors());
        self.errors = errors;
    }

    /// A refusal by the store needs requests that were charged; one without the store has a reason.
    fn note(&mut self, what: &str, decision: &Decision, charges: &mut ChargedRequests, limit: u32) {
        match (decision.allowed(), decision.degraded) {
            (true, true) => panic!("-{}: {what}: admitted without the store", self.command),
            (false, true) => {
                charges.unknown += 1;
                self.assert_not_silent(what);
            }
            (true, false) => {
                charges.admitted += 1;
                assert!(charges.admitted <= limit, "-{}: {what}: {charges:?}", self.command);
            }
            (false, false) => {
                let charged = charges.admitted + charges.unknown;
                assert!(charged >= limit, "-{}: {what}: refused after {charges:?}", self.command);
            }
        }
    }

    async fn ask(
        &mut self,
        client: &str,
        endpoint: &str,
        charges: &mut ChargedRequests,
        limit: u32,
    ) -> Decision {
        let request = Request { api_key: Some(client), endpoint, ..Request::default() };
        let decision = self.node.limiter.check(&request).unwrap().decision().await;
        self.note(&format!("{client} {endpoint}"), &decision, charges, limit);
        decision
    }

    /// The same while the command is permitted.
    async fn ask_permitted(
        &mut self,
        client: &str,
        endpoint: &str,
        charges: &mut ChargedRequests,
        limit: u32,
    ) -> bool {
        let decision = self.ask(client, endpoint, charges, limit).await;
        assert!(!decision.degraded, "-{}: {client} {endpoint}: {decision:?}", self.command);
        decision.allowed()
    }

    /// A client that the store knows by another limit, or does not know.
    async fn limits(&mut self, client: &str) {
        let mut all: Vec<(String, ChargedRequests)> = Algorithm::scripted()
            .map(|algorithm| (format!("/{}", algorithm.name()), ChargedRequests::default()))
            .collect();
        let name = |endpoint: &str| format!("{client}-{endpoint}");
        if client == "known" {
            for (endpoint, _) in &all {
                let mut before = ChargedRequests::default();
                assert!(self.ask_permitted(&name(endpoint), "/before", &mut before, LIMIT).await);
            }
        }
        self.set('-');
        for (endpoint, charges) in &mut all {
            for _ in 0..2 {
                self.ask(&name(endpoint), endpoint, charges, LIMIT).await;
            }
        }
        self.set('+');
        for (endpoint, charges) in &mut all {
            while self.ask_permitted(&name(endpoint), endpoint, charges, LIMIT).await {}
        }
    }

    /// Credit is spent all the same.
    async fn leased_limit(&mut self) {
        let mut charges = ChargedRequests::default();
        for _ in 0..30 {
            assert!(self.ask_permitted("leased", "/leased", &mut charges, LEASED_LIMIT).await);
        }
        self.set('-');
        for _ in 0..10 {
            self.ask("leased", "/leased", &mut charges, LEASED_LIMIT).await;
        }
        self.set('+');
        while self.ask_permitted("leased", "/leased", &mut charges, LEASED_LIMIT).await {}
    }

    async fn slots(&mut self) {
        let request = Request { api_key: Some("slots"), endpoint: "/slots", ..Request::default() };
        self.set('-');
        let (mut charges, mut held) = (ChargedRequests::default(), Vec::new());
        for _ in 0..LIMIT + 1 {
            let admission = self.node.limiter.admit(&request).unwrap().admission().await;
            self.note("slots", &admission.decision, &mut charges, LIMIT);
            held.push(admission);
        }
        drop(held);
        self.node.store.settled().await;
        self.set('+');
        // Slots that could not be released expire.
        eventually("all slots are free", async || {
            let (mut held, mut admitted) = (Vec::new(), 0);
            for _ in 0..LIMIT + 1 {
                let admission = self.node.limiter.admit(&request).unwrap().admission().await;
                assert!(!admission.decision.degraded, "-{}: {:?}", self.command, admission.decision);
                admitted += u32::from(admission.decision.allowed());
                held.push(admission);
            }
            assert!(admitted <= LIMIT, "-{}: {admitted} slots", self.command);
            admitted == LIMIT
        })
        .await;
    }

    async fn part(&self, client: &str, endpoint: &str, operation: TokenOperation, cost: u64) -> Decision {
        let request = Request { api_key: Some(client), endpoint, cost, ..Request::default() };
        let part = [RequestPart { request, operation, limit: None }];
        self.node.limiter.check_parts(&part).unwrap().decisions().await[0]
    }

    async fn refunds(&mut self) {
        for algorithm in Algorithm::scripted() {
            let endpoint = format!("/{}", algorithm.name());
            assert!(self.part("refunds", &endpoint, TokenOperation::Take, 2).await.allowed());
            self.set('-');
            let refund = self.part("refunds", &endpoint, TokenOperation::Refund, 1).await;
            if refund.degraded {
                self.assert_not_silent("refund");
            }
            self.set('+');
            let look = self.part("refunds", &endpoint, TokenOperation::Look, 1).await;
            let (Outcome::Admitted(found), false) = (&look.outcome, look.degraded) else {
                panic!("-{}: refund {endpoint}: {look:?}", self.command)
            };
            let is_right = found.remaining == LIMIT - 1 || refund.degraded && found.remaining == LIMIT - 2;
            assert!(is_right, "-{}: refund {endpoint}: {refund:?}, then {look:?}", self.command);
        }
    }

    async fn resets(&mut self) {
        for algorithm in Algorithm::scripted() {
            let (endpoint, mut before) = (format!("/{}", algorithm.name()), ChargedRequests::default());
            while self.ask_permitted("resets", &endpoint, &mut before, LIMIT).await {}
            self.set('-');
            let request = Request { api_key: Some("resets"), endpoint: &endpoint, ..Request::default() };
            let reset = self.node.limiter.reset(&request, EndpointScope::Any).await;
            if reset == Err(StoreUnavailable) {
                self.assert_not_silent("reset");
            }
            self.set('+');
            let mut after = ChargedRequests { admitted: 0, unknown: if reset.is_err() { LIMIT } else { 0 } };
            while self.ask_permitted("resets", &endpoint, &mut after, LIMIT).await {}
            assert!(self.node.limiter.reset(&request, EndpointScope::Any).await.is_ok(), "-{}", self.command);
        }
    }

    /// Each client has come again since the command is permitted.
    fn assert_keys_expire(&self) {
        for key in self.server.cli(&["KEYS", "tg:*"]).lines() {
            // A key that expires just now is -2.
            let left_ms: i64 = self.server.cli(&["PTTL", key]).parse().unwrap();
            assert!(left_ms != -1, "-{}: {key} does not expire", self.command);
        }
    }
}

#[test]
fn what_needs_a_revoked_command_is_right_or_degraded_and_logged() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        let mut needed = Vec::new();
        for command in COMMANDS {
            let mut round = Revocation::begin(&server, log, command).await;
            round.limits("new").await;
            round.limits("known").await;
            round.leased_limit().await;
            round.slots().await;
            round.refunds().await;
            round.resets().await;
            round.assert_keys_expire();
            let others: Vec<String> =
                log.errors().into_iter().filter(|line| !line.contains("NOPERM")).collect();
            assert_eq!(others, Vec::<String>::new(), "-{command}");
            if round.errors > 0 {
                needed.push(command);
            }
            round.node.store.close().await;
        }
        println!("decisions need {needed:?}");
        assert!(needed.len() > 15, "decisions need {needed:?} only");
    });
}

/// A heartbeat that the server does not execute is an ERROR; all others go on.
#[test]
fn heartbeats_without_a_command_are_sent_or_logged() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        let mut nodes = Vec::new();
        for command in COMMANDS {
            // Fleets of their own: each node is alone.
            let (user, prefix) = (format!("without-{command}"), format!("tg-{command}:"));
            permit(&server, &user);
            let settings = RedisSettings { prefix: prefix.clone(), ..patient() };
            let url = format!("redis://{user}:pw@{}", server.address());
            let node = Node::start_with(&url, &rules(), settings).await;
            let alive = server.cli(&["KEYS", &format!("{prefix}alive:*")]);
            let tag = alive.split(['{', '}']).nth(1).expect("the key has a hash tag").to_owned();
            nodes.push((command, node, heartbeat::alive_key(&prefix, &tag)));
        }
        assert_eq!(log.errors(), Vec::<String>::new());
        let last_heartbeat = |key: &str| server.cli(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
        let mut before = Vec::new();
        for (command, _, key) in &nodes {
            let rule = format!("-{command}");
            assert_eq!(server.cli(&["ACL", "SETUSER", &format!("without-{command}"), &rule]), "OK");
            before.push(last_heartbeat(key));
        }
        let mut refused = Vec::new();
        for ((command, node, key), mut last) in nodes.iter().zip(before) {
            let mut sent = 0;
            eventually(&format!("heartbeats without {command}"), async || {
                if node.store.errors(StoreErrorKind::Permission) > 0 {
                    refused.push(*command);
                    assert!(is_named(log, command), "-{command}: {:?}", log.errors());
                    return true;
                }
                // One that fails may have written its time all the same: then it is counted before the next is sent.
                let next = last_heartbeat(key);
                sent += usize::from(std::mem::replace(&mut last, next.clone()) != next);
                sent == 2
            })
            .await;
        }
        println!("heartbeats need {refused:?}");
        let needed = ["evalsha", "get", "lrange", "time", "zadd", "zcard", "zcount", "zremrangebyscore"];
        assert_eq!(refused, needed);
    });
}
