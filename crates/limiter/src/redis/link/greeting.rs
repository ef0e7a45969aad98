//! The first words with a server: who we are, what it is, and whether it is fit to keep limits.

use super::super::url::Address;
use super::{DialError, Dialer, Failure, Link, OpenError, Role};
use redis::{Cmd, RedisError, Value, cmd};

/// Scripts need what came with it.
const OLDEST: (u32, u32) = (6, 2);

/// What a server says of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Greeting {
    pub(super) version: (u32, u32),
    role: String,
    mode: String,
    is_loading: bool,
    maxmemory_policy: Option<String>,
}

impl Greeting {
    fn parse(info: &str) -> Self {
        let mut greeting = Self::default();
        for line in info.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name {
                "redis_version" => {
                    let mut numbers = value.split('.').map(|number| number.parse().unwrap_or(0));
                    greeting.version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                }
                "role" => greeting.role = value.to_owned(),
                "redis_mode" => greeting.mode = value.to_owned(),
                "loading" | "async_loading" => greeting.is_loading |= value != "0",
                "maxmemory_policy" => greeting.maxmemory_policy = Some(value.to_owned()),
                _ => {}
            }
        }
        greeting
    }

    /// A replica must not be written to, and one that loads does not answer.
    pub(super) fn must_be_serving_primary(&self) -> Result<(), DialError> {
        if self.is_loading {
            return Err(DialError::NotReady("it is loading its data".to_owned()));
        }
        if self.role != "master" {
            let role = if self.role == "slave" { "replica" } else { &self.role };
            return Err(DialError::NotReady(format!("it is a {role}, not a primary")));
        }
        Ok(())
    }
}

/// Says who we are and hears what the server is.
pub(super) async fn greet(link: &Link, address: &Address, dialer: &Dialer) -> Result<Greeting, DialError> {
    if let Some(password) = &dialer.login.password {
        let mut login = cmd("AUTH");
        if let Some(user) = &dialer.login.user {
            login.arg(user);
        }
        ask(link, login.arg(password), address).await?;
    }
    if dialer.db != 0 {
        ask(link, cmd("SELECT").arg(dialer.db), address).await?;
    }
    let Value::BulkString(info) = verbatim(ask(link, &cmd("INFO"), address).await?) else {
        return Err(DialError::NotReady("its INFO is not a text".to_owned()));
    };
    let greeting = Greeting::parse(&String::from_utf8_lossy(&info));
    let (major, minor) = greeting.version;
    if greeting.version < OLDEST {
        let problem = format!("its version is {major}.{minor}");
        return Err(refused(address, problem, "Tollgate needs Redis 6.2 or later, or Valkey"));
    }
    let hint = match (dialer.role, greeting.mode.as_str()) {
        (Role::Sentinel, "sentinel") | (Role::Node, "cluster") | (Role::Single, "standalone") => {
            return Ok(greeting);
        }
        (_, "sentinel") => "write redis-sentinel://host1,host2/name",
        (_, "cluster") => "write redis-cluster://host1,host2",
        // Not everything that speaks the protocol says what it is.
        (Role::Single, _) => return Ok(greeting),
        _ => "write redis://host:port",
    };
    let mode = if greeting.mode.is_empty() { "unknown" } else { &greeting.mode };
    Err(refused(address, format!("it is not what the address says: its mode is {mode}"), hint))
}

/// Protocol version 3 marks texts as such.
fn verbatim(value: Value) -> Value {
    match value {
        Value::VerbatimString { text, .. } => Value::BulkString(text.into_bytes()),
        other => other,
    }
}

async fn ask(link: &Link, command: &Cmd, address: &Address) -> Result<Value, DialError> {
    link.send(command).await.map_err(|failure| refusal(address, failure))
}

fn refusal(address: &Address, failure: Failure) -> DialError {
    let detail = match failure {
        Failure::Unavailable | Failure::Lost => {
            return DialError::Unreachable("the connection broke".to_owned());
        }
        Failure::NoPermission(detail) | Failure::Other(detail) => detail,
        other => return DialError::NotReady(other.to_string()),
    };
    let (problem, hint) = if detail.starts_with("WRONGPASS") {
        ("the user name or the password is wrong", "give them as in redis://user:password@host")
    } else if detail.starts_with("NOAUTH") {
        ("it wants a password", "give it as in redis://:password@host")
    } else if detail.contains("AUTH") {
        ("it has no password, but one was given", "leave out the login, or set a password on the server")
    } else if detail.starts_with("NOPERM") {
        return refused(
            address,
            format!("the user lacks a permission: {detail}"),
            "allow it: ACL SETUSER name ~* +@read +@write +@scripting +@connection +info +cluster +time",
        );
    } else if detail.contains("DB index") || detail.contains("SELECT") {
        ("it does not have this database", "choose a lower number, or none")
    } else {
        return DialError::NotReady(detail);
    };
    refused(address, problem.to_owned(), hint)
}

/// What it means that the library could not even begin.
pub(super) fn refused_login(address: &Address, error: &RedisError) -> DialError {
    let text = error.to_string();
    let failure = ["WRONGPASS", "NOAUTH", "NOPERM"].into_iter().find(|code| text.contains(code));
    match failure {
        Some(code) => refusal(address, Failure::NoPermission(format!("{code} {text}"))),
        None => DialError::Unreachable(text),
    }
}

fn refused(address: &Address, problem: String, hint: &str) -> DialError {
    DialError::Refused(OpenError { address: address.to_string(), problem, hint: hint.to_owned() })
}

/// A node that is cut off from most of its Cluster refuses everything.
pub(super) async fn cluster_must_be_up(link: &Link) -> Result<(), DialError> {
    let answer = link.send(cmd("CLUSTER").arg("INFO")).await;
    match answer.map(verbatim) {
        Ok(Value::BulkString(info)) if info.starts_with(b"cluster_state:ok") => Ok(()),
        Ok(_) => Err(DialError::NotReady("its cluster is down".to_owned())),
        Err(failure) => Err(DialError::NotReady(failure.to_string())),
    }
}

/// Complains about settings with which limits are lost or shards fall together.
pub(super) async fn look_at_settings(link: &Link, address: &Address, role: Role) {
    match link.greeting.maxmemory_policy.as_deref() {
        Some("noeviction") => {}
        Some(policy) => tracing::warn!(
            %address, policy,
            "this server drops keys when its memory is full, and a limit that is dropped starts afresh; \
             set `maxmemory-policy noeviction` and give it enough memory"
        ),
        None => tracing::info!(
            %address,
            "this server does not say its maxmemory-policy; make sure that it is `noeviction`"
        ),
    }
    if role != Role::Node {
        return;
    }
    let name = "cluster-require-full-coverage";
    match link.send(cmd("CONFIG").arg("GET").arg(name)).await {
        Ok(answer) if says_yes(&answer) => tracing::warn!(
            %address,
            "one dead shard will stop this whole cluster; set `cluster-require-full-coverage no`, and only \
             that shard's keys degrade"
        ),
        Ok(_) => {}
        Err(failure) => tracing::info!(
            %address, %failure,
            "this server does not tell its settings; make sure that `cluster-require-full-coverage` is `no`"
        ),
    }
}

/// Whether the value of a setting is `yes`.
fn says_yes(answer: &Value) -> bool {
    redis::from_redis_value_ref::<Vec<String>>(answer)
        .is_ok_and(|pair| pair.get(1).is_some_and(|value| value == "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(role: &str, loading: &str) -> Greeting {
        Greeting::parse(&format!(
            "# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nmaxmemory_policy:allkeys-lru\r\n\
             loading:{loading}\r\nasync_loading:0\r\nrole:{role}\r\n"
        ))
    }

    #[test]
    fn a_greeting_is_read() {
        let greeting = greeting("master", "0");
        assert_eq!(greeting.version, (7, 2));
        assert_eq!(greeting.mode, "standalone");
        assert_eq!(greeting.maxmemory_policy.as_deref(), Some("allkeys-lru"));
        assert!(greeting.must_be_serving_primary().is_ok());
    }

    #[test]
    fn a_replica_and_one_that_loads_are_no_primaries() {
        assert!(greeting("slave", "0").must_be_serving_primary().is_err());
        assert!(greeting("master", "1").must_be_serving_primary().is_err());
        assert!(Greeting::parse("nonsense").must_be_serving_primary().is_err());
    }
}
