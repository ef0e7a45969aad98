//! The commands of one connection: which there are, and what each replies.

use super::decode::Arguments;
use super::encode::{self, RespVersion};
use super::throttle::{ThrottleCheck, ThrottleCommand};
use super::{RespDoor, rule_check};
use std::sync::atomic::{AtomicI64, Ordering};
use tollgate_limiter::{Check, Decision, PartDecisions, PartsCheck};

/// What clients take the server for. They look for features of Redis by its version.
const REDIS_VERSION: &str = "7.2.0";
const NO_AUTH: &str = "NOAUTH Authentication required.";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
/// The longest name of a client.
const LONGEST_NAME: usize = 256;

/// The commands, as `COMMAND` lists them: the name, and the number of arguments with the name, negative if it is the least.
const COMMANDS: [(&str, i64); 14] = [
    ("auth", -2),
    ("cl.throttle", -5),
    ("client", -2),
    ("command", -1),
    ("config", -2),
    ("echo", 2),
    ("hello", -1),
    ("info", -1),
    ("ping", -1),
    ("quit", -1),
    ("readonly", 1),
    ("reset", 1),
    ("select", 2),
    ("tollgate.check", -3),
];

/// Whether more commands of a connection are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// They are.
    Continue,
    /// It is closed after its replies.
    Close,
}

/// A reply that waits for the shared store.
#[derive(Debug)]
pub struct WaitingReply<'d> {
    /// Where it belongs in the replies that are ready.
    pub place: usize,
    check: WaitingCheck<'d>,
}

#[derive(Debug)]
enum WaitingCheck<'d> {
    Throttle(ThrottleTerms, ThrottleCheck<'d>),
    Rules(PartsCheck<'d>),
}

/// What the reply to `CL.THROTTLE` needs of its command.
type ThrottleTerms = ThrottleCommand<'static>;

impl WaitingReply<'_> {
    /// Waits for the decision, and appends the reply.
    pub async fn write(self, version: RespVersion, out: &mut Vec<u8>) {
        match self.check {
            WaitingCheck::Throttle(command, ThrottleCheck::Take(check)) => {
                command.reply(&check.decision().await, out);
            }
            WaitingCheck::Throttle(command, ThrottleCheck::Parts(check)) => {
                reply_first(&check.decisions().await, out, |decision, out| command.reply(decision, out));
            }
            WaitingCheck::Rules(check) => {
                reply_first(&check.decisions().await, out, |decision, out| {
                    rule_check::reply(decision, version, out);
                });
            }
        }
    }
}

fn reply_first(decisions: &PartDecisions, out: &mut Vec<u8>, reply: impl FnOnce(&Decision, &mut Vec<u8>)) {
    if let Some(decision) = decisions.first() {
        reply(decision, out);
    }
}

/// The state of one connection.
#[derive(Debug)]
pub struct RespSession<'d> {
    door: &'d RespDoor,
    pub(super) version: RespVersion,
    is_authenticated: bool,
    id: i64,
    name: Vec<u8>,
}

impl<'d> RespSession<'d> {
    /// A connection that has sent nothing yet.
    pub fn new(door: &'d RespDoor) -> Self {
        static NEXT_ID: AtomicI64 = AtomicI64::new(1);
        Self {
            door,
            version: RespVersion::default(),
            is_authenticated: door.password.is_none(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: Vec::new(),
        }
    }

    /// Whether a command must see the effects of those before it: it reads states apart from the calls that change them.
    pub fn is_ordered(&self, arguments: &Arguments<'_>) -> bool {
        let amount = match &arguments[..] {
            [name, _, _, _, _, quantity] if name.eq_ignore_ascii_case(b"CL.THROTTLE") => quantity,
            [name, _, _, cost] if name.eq_ignore_ascii_case(b"TOLLGATE.CHECK") => cost,
            _ => return false,
        };
        matches!(amount.first(), Some(b'0' | b'-' | b'+'))
    }

    /// Executes one command: appends its reply, or adds it to those that wait.
    pub fn execute(
        &mut self,
        arguments: &Arguments<'_>,
        out: &mut Vec<u8>,
        waiting: &mut Vec<WaitingReply<'d>>,
    ) -> CommandOutcome {
        let Some((name, arguments)) = arguments.split_first() else { return CommandOutcome::Continue };
        if self.is_authenticated {
            if name.eq_ignore_ascii_case(b"CL.THROTTLE") {
                self.throttle(arguments, out, waiting);
                return CommandOutcome::Continue;
            }
            if name.eq_ignore_ascii_case(b"TOLLGATE.CHECK") {
                self.check(arguments, out, waiting);
                return CommandOutcome::Continue;
            }
        }
        self.execute_rare(name, arguments, out)
    }

    fn throttle(&self, arguments: &[&[u8]], out: &mut Vec<u8>, waiting: &mut Vec<WaitingReply<'d>>) {
        let command = match ThrottleCommand::parse(arguments) {
            Ok(command) => command,
            Err(error) => return encode::error(out, &error),
        };
        match command.check(&self.door.limiter) {
            Ok(ThrottleCheck::Take(Check::Decided(decision))) => command.reply(&decision, out),
            Ok(ThrottleCheck::Parts(PartsCheck::Decided(decisions))) => {
                reply_first(&decisions, out, |decision, out| command.reply(decision, out));
            }
            Ok(check) => {
                let check = WaitingCheck::Throttle(command.without_key(), check);
                waiting.push(WaitingReply { place: out.len(), check });
            }
            Err(error) => encode::error(out, &rule_check::invalid(&error)),
        }
    }

    fn check(&self, arguments: &[&[u8]], out: &mut Vec<u8>, waiting: &mut Vec<WaitingReply<'d>>) {
        match rule_check::check(&self.door.limiter, arguments) {
            Ok(PartsCheck::Decided(decisions)) => {
                reply_first(&decisions, out, |decision, out| rule_check::reply(decision, self.version, out));
            }
            Ok(check) => {
                waiting.push(WaitingReply { place: out.len(), check: WaitingCheck::Rules(check) });
            }
            Err(error) => encode::error(out, &error),
        }
    }

    /// The commands that clients send besides checks.
    fn execute_rare(&mut self, name: &[u8], arguments: &[&[u8]], out: &mut Vec<u8>) -> CommandOutcome {
        let lower = name.to_ascii_lowercase();
        // A browser that a page makes post to this port: the body, which the page chooses, must not be read as commands.
        if matches!(lower.as_slice(), b"post" | b"host:") {
            tracing::warn!("HTTP request to the RESP door; connection closed");
            return CommandOutcome::Close;
        }
        let known = COMMANDS.iter().find(|(known, _)| known.as_bytes() == lower);
        let Some((name, arity)) = known else {
            let shown = String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned();
            encode::error(out, &format!("ERR unknown command '{shown}'"));
            return CommandOutcome::Continue;
        };
        let count = arguments.len() as i64 + 1;
        if *arity >= 0 && count != *arity || count < -arity {
            encode::error(out, &format!("ERR wrong number of arguments for '{name}' command"));
            return CommandOutcome::Continue;
        }
        if !self.is_authenticated && !matches!(*name, "auth" | "hello" | "quit" | "reset") {
            encode::error(out, NO_AUTH);
            return CommandOutcome::Continue;
        }
        match *name {
            "ping" => match arguments {
                [] => encode::simple(out, "PONG"),
                [message] => encode::bulk(out, message),
                _ => encode::error(out, "ERR wrong number of arguments for 'ping' command"),
            },
            "echo" => encode::bulk(out, arguments[0]),
            "auth" => self.authenticate(arguments, out),
            "hello" => self.hello(arguments, out),
            "client" => self.client(arguments, out),
            "command" => self.list_commands(arguments, out),
            "config" => self.config(arguments, out),
            "info" => encode::bulk(out, self.info().as_bytes()),
            "select" if arguments[0] == b"0" => encode::simple(out, "OK"),
            "select" => encode::error(out, "ERR there is only database 0"),
            "readonly" => encode::simple(out, "OK"),
            "reset" => {
                (self.version, self.is_authenticated) =
                    (RespVersion::default(), self.door.password.is_none());
                self.name.clear();
                encode::simple(out, "RESET");
            }
            _ => {
                encode::simple(out, "OK");
                return CommandOutcome::Close;
            }
        }
        CommandOutcome::Continue
    }

    fn authenticate(&mut self, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let Some(password) = &self.door.password else {
            return encode::error(
                out,
                "ERR AUTH called without any password configured for the RESP door. Is the configuration correct?",
            );
        };
        let (user, given) = match arguments {
            [given] => (b"default".as_slice(), *given),
            [user, given] => (*user, *given),
            _ => return encode::error(out, "ERR syntax error"),
        };
        if user == b"default" && is_same(password.as_bytes(), given) {
            self.is_authenticated = true;
            encode::simple(out, "OK");
        } else {
            encode::error(out, WRONG_PASSWORD);
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`
    fn hello(&mut self, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let version = match arguments.first().copied() {
            None => self.version,
            Some(b"2") => RespVersion::Resp2,
            Some(b"3") => RespVersion::Resp3,
            Some(_) => return encode::error(out, "NOPROTO unsupported protocol version"),
        };
        let mut options = arguments.get(1..).unwrap_or_default();
        while let Some((option, rest)) = options.split_first() {
            options = match rest {
                [user, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    let mut reply = Vec::new();
                    self.authenticate(&[*user, *password], &mut reply);
                    if !reply.starts_with(b"+") {
                        return out.extend_from_slice(&reply);
                    }
                    rest
                }
                [name, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    if !self.set_name(name) {
                        return encode::error(out, "ERR the name of a client must not have spaces");
                    }
                    rest
                }
                _ => return encode::error(out, "ERR syntax error in HELLO option"),
            };
        }
        if !self.is_authenticated {
            return encode::error(
                out,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
                 the same time",
            );
        }
        self.version = version;
        encode::map(out, 7, version);
        for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
            encode::bulk(out, name.as_bytes());
            encode::bulk(out, value.as_bytes());
        }
        for (name, value) in [("proto", version.number()), ("id", self.id)] {
            encode::bulk(out, name.as_bytes());
            encode::integer(out, value);
        }
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            encode::bulk(out, name.as_bytes());
            encode::bulk(out, value.as_bytes());
        }
        encode::bulk(out, b"modules");
        encode::array(out, 0);
    }

    fn set_name(&mut self, name: &[u8]) -> bool {
        let is_valid = name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic);
        if is_valid {
            self.name = name.to_vec();
        }
        is_valid
    }

    fn client(&mut self, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let subcommand = arguments[0].to_ascii_lowercase();
        match (subcommand.as_slice(), &arguments[1..]) {
            (b"id", []) => encode::integer(out, self.id),
            (b"getname", []) if self.name.is_empty() => encode::null(out, self.version),
            (b"getname", []) => encode::bulk(out, &self.name),
            (b"setname", [name]) => match self.set_name(name) {
                true => encode::simple(out, "OK"),
                false => encode::error(out, "ERR the name of a client must not have spaces"),
            },
            // What a client library is called is not of interest, and nothing is evicted here.
            (b"setinfo", [_, _]) | (b"no-evict" | b"no-touch", [_]) => encode::simple(out, "OK"),
            (b"info", []) => {
                let name = String::from_utf8_lossy(&self.name).into_owned();
                encode::bulk(
                    out,
                    format!("id={} name={name} resp={}\n", self.id, self.version.number()).as_bytes(),
                );
            }
            _ => {
                encode::error(out, "ERR unknown subcommand or wrong number of arguments for 'client' command")
            }
        }
    }

    fn config(&self, arguments: &[&[u8]], out: &mut Vec<u8>) {
        match arguments {
            // Tools look for settings of Redis, of which there are none.
            [get, _, ..] if get.eq_ignore_ascii_case(b"GET") => encode::map(out, 0, self.version),
            _ => encode::error(out, "ERR only CONFIG GET is supported"),
        }
    }

    fn list_commands(&self, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let subcommand = arguments.first().map(|name| name.to_ascii_lowercase());
        match subcommand.as_deref() {
            None => {
                encode::array(out, COMMANDS.len());
                COMMANDS.iter().for_each(|command| self.describe_command(command, out));
            }
            Some(b"count") => encode::integer(out, COMMANDS.len() as i64),
            Some(b"list") => {
                encode::array(out, COMMANDS.len());
                COMMANDS.iter().for_each(|(name, _)| encode::bulk(out, name.as_bytes()));
            }
            Some(b"docs") => encode::map(out, 0, self.version),
            Some(b"info") => {
                encode::array(out, arguments.len() - 1);
                for name in &arguments[1..] {
                    match COMMANDS.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())) {
                        Some(command) => self.describe_command(command, out),
                        None => encode::null(out, self.version),
                    }
                }
            }
            Some(_) => encode::error(out, "ERR unknown subcommand for 'command' command"),
        }
    }

    fn describe_command(&self, (name, arity): &(&str, i64), out: &mut Vec<u8>) {
        // The position of the first and of the last key, and the step between keys.
        let keys = i64::from(name.contains('.'));
        encode::array(out, 10);
        encode::bulk(out, name.as_bytes());
        encode::integer(out, *arity);
        encode::array(out, 1);
        encode::simple(out, if keys > 0 { "write" } else { "fast" });
        [keys, keys, keys].into_iter().for_each(|key| encode::integer(out, key));
        // Categories of permissions, hints, descriptions of keys and subcommands: clients of Redis 7 read them.
        (0..4).for_each(|_| encode::array(out, 0));
    }

    fn info(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ntollgate_version:{version}\r\n\r\n\
             # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
        )
    }
}

/// Whether two passwords are the same. Takes equally long wherever they differ.
fn is_same(known: &[u8], given: &[u8]) -> bool {
    let differences = known.iter().zip(given).fold(0, |found, (known, given)| found | (known ^ given));
    known.len() == given.len() && std::hint::black_box(differences) == 0
}
