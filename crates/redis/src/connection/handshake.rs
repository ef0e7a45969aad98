//! The start of a connection: login, the server's version and role, and its settings.

use super::super::url::{Login, ServerAddress};
use super::{DialError, Dialer, Failure, OpenError, PermissionError, RedisConnection, ServerRole};
use crate::errors::{failed_login, is_database_missing, is_login_unexpected};
use redis::{Cmd, RedisError, Value, cmd};
use std::borrow::Cow;
use std::collections::HashMap;

/// Scripts need what came with it.
const OLDEST: (u32, u32) = (6, 2);

/// The server's description of itself; empty where it has none.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerInfo {
    pub(super) version: Option<(u32, u32)>,
    role: String,
    mode: String,
    is_loading: bool,
    maxmemory_policy: Option<String>,
}

impl ServerInfo {
    /// Reads the reply to INFO. Valkey has names of its own for some fields, and gives the version of Redis that it is
    /// compatible with as well.
    fn parse(reply: &str) -> Self {
        let mut info = Self::default();
        let mut valkey_version = None;
        for line in reply.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name {
                "redis_version" => info.version = version(value),
                "valkey_version" => valkey_version = version(value),
                "role" => info.role = value.to_owned(),
                "redis_mode" | "server_mode" => info.mode = value.to_owned(),
                "loading" | "async_loading" => info.is_loading |= value != "0",
                "maxmemory_policy" => info.maxmemory_policy = Some(value.to_owned()),
                _ => {}
            }
        }
        info.version = valkey_version.or(info.version);
        info
    }

    /// Takes from the reply to HELLO what INFO did not say.
    fn complete(&mut self, hello: &HashMap<String, Value>) {
        let said = |name| hello.get(name).and_then(|value| redis::from_redis_value_ref::<String>(value).ok());
        self.version = self.version.or_else(|| version(&said("version")?));
        for (own, name) in [(&mut self.mode, "mode"), (&mut self.role, "role")] {
            if own.is_empty() {
                *own = said(name).unwrap_or_default();
            }
        }
    }

    /// A replica must not be written to, and one that loads does not reply.
    pub(super) fn must_be_serving_primary(&self) -> Result<(), DialError> {
        if self.is_loading {
            return Err(DialError::NotReady("it is loading its data".to_owned()));
        }
        // One that hides its role will say READONLY if it is a replica.
        if !matches!(self.role.as_str(), "master" | "") {
            let role = if self.role == "slave" { "replica" } else { &self.role };
            return Err(DialError::NotReady(format!("it is a {role}, not a primary")));
        }
        Ok(())
    }
}

/// Logs in and reads the server's version, mode and role.
pub(super) async fn handshake(
    connection: &RedisConnection,
    address: &ServerAddress,
    dialer: &Dialer,
) -> Result<ServerInfo, DialError> {
    if let Some(password) = &dialer.login.password {
        let mut login = cmd("AUTH");
        if let Some(user) = &dialer.login.user {
            login.arg(user);
        }
        ask(connection, login.arg(password), address, dialer).await?;
    }
    if dialer.db != 0 {
        ask(connection, cmd("SELECT").arg(dialer.db), address, dialer).await?;
    }
    let mut info = match connection.send(&cmd("INFO")).await {
        Ok(info) => ServerInfo::parse(&text(&info)),
        Err(failure) if is_hidden(&failure) => ServerInfo::default(),
        Err(failure) => return Err(refusal(address, failure, &dialer.login)),
    };
    if info.version.is_none() || info.mode.is_empty() || info.role.is_empty() {
        match connection.send(&cmd("HELLO")).await {
            Ok(hello) => info.complete(&redis::from_redis_value(hello).unwrap_or_default()),
            Err(failure) if is_hidden(&failure) => {}
            Err(failure) => return Err(refusal(address, failure, &dialer.login)),
        }
    }
    if let Some((major, minor)) = info.version.filter(|version| *version < OLDEST) {
        let problem = format!("its version is {major}.{minor}");
        return Err(refused(address, problem, "Tollgate needs Redis 6.2 or later, or Valkey 7.2 or later"));
    }
    let hint = match (dialer.role, info.mode.as_str()) {
        (ServerRole::Sentinel, "sentinel")
        | (ServerRole::ClusterNode, "cluster")
        | (ServerRole::Primary, "standalone") => {
            return Ok(info);
        }
        (_, "sentinel") => "write redis-sentinel://host1,host2/name",
        (_, "cluster") => "write redis-cluster://host1,host2",
        // Not everything that speaks the protocol says what it is: what is asked next will show it.
        (ServerRole::Primary, _) | (_, "") => return Ok(info),
        _ => "write redis://host:port",
    };
    let mode = &info.mode;
    Err(refused(address, format!("it is not what the address says: its mode is {mode}"), hint))
}

/// Whether a server does not tell this, as managed ones often do not: the user may not ask, or the command is not known.
pub(crate) fn is_hidden(failure: &Failure) -> bool {
    match failure {
        Failure::NoPermission(error, _) => *error == PermissionError::Denied,
        Failure::Other(_) => true,
        _ => false,
    }
}

/// Protocol version 3 marks texts as such.
fn text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes),
        Value::VerbatimString { text, .. } => text.into(),
        _ => "".into(),
    }
}

/// Reads `7.2.4`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    Some((numbers.next().filter(|major| *major > 0)?, numbers.next().unwrap_or(0)))
}

async fn ask(
    connection: &RedisConnection,
    command: &Cmd,
    address: &ServerAddress,
    dialer: &Dialer,
) -> Result<Value, DialError> {
    connection.send(command).await.map_err(|failure| refusal(address, failure, &dialer.login))
}

fn refusal(address: &ServerAddress, failure: Failure, login: &Login) -> DialError {
    let (problem, hint) = match failure {
        Failure::Unavailable | Failure::Lost => {
            return DialError::Unreachable("the connection was closed".to_owned());
        }
        Failure::NoPermission(PermissionError::LoginWrong, _) => {
            ("the user name or the password is wrong", "give them as in redis://user:password@host")
        }
        Failure::NoPermission(PermissionError::LoginRequired, _) => {
            ("it requires a password", "give it as in redis://:password@host")
        }
        Failure::NoPermission(PermissionError::Denied, detail) => {
            return refused(
                address,
                format!("NOPERM permission denied ({})", without_password(&detail, login)),
                "allow it with ACL SETUSER; docs/redis.md has the list of permissions",
            );
        }
        Failure::Other(detail) if is_login_unexpected(&detail) => {
            ("it has no password, but one was given", "leave out the login, or set a password on the server")
        }
        Failure::Other(detail) if is_database_missing(&detail) => {
            ("it does not have this database", "choose a lower number, or none")
        }
        other => return DialError::NotReady(without_password(&other.to_string(), login)),
    };
    refused(address, problem.to_owned(), hint)
}

/// Explains why the library could not open the connection.
pub(super) fn refused_login(address: &ServerAddress, error: &RedisError, login: &Login) -> DialError {
    match failed_login(error) {
        Some(failure) => refusal(address, failure, login),
        None => DialError::Unreachable(without_password(&error.to_string(), login)),
    }
}

/// What a server said. One that does not know a command repeats what it was sent.
fn without_password(said: &str, login: &Login) -> String {
    match login.password.as_deref() {
        Some(password) if !password.is_empty() => said.replace(password, "***"),
        _ => said.to_owned(),
    }
}

fn refused(address: &ServerAddress, problem: String, hint: &str) -> DialError {
    DialError::Refused(OpenError { address: address.to_string(), problem, hint: hint.to_owned() })
}

/// A node that is cut off from most of its Cluster refuses everything.
pub(super) async fn cluster_must_be_up(connection: &RedisConnection) -> Result<(), DialError> {
    match connection.send(cmd("CLUSTER").arg("INFO")).await {
        Ok(info) => {
            let is_up = text(&info).lines().any(|line| line == "cluster_state:ok");
            if is_up { Ok(()) } else { Err(DialError::NotReady("its cluster is down".to_owned())) }
        }
        Err(failure) if is_hidden(&failure) => Ok(()),
        Err(failure) => Err(DialError::NotReady(failure.to_string())),
    }
}

/// Logs settings with which limits are lost, or one shard stops all.
pub(super) async fn warn_of_settings(
    connection: &RedisConnection,
    address: &ServerAddress,
    role: ServerRole,
) {
    match connection.info.maxmemory_policy.as_deref() {
        Some("noeviction") => {}
        Some(policy) => tracing::warn!(
            %address, policy,
            "this server evicts keys when its memory is full, and an evicted limit starts full; \
             set `maxmemory-policy noeviction` and give it enough memory"
        ),
        None => tracing::info!(
            %address,
            "maxmemory-policy cannot be read; make sure that it is `noeviction`"
        ),
    }
    if role != ServerRole::ClusterNode {
        return;
    }
    let name = "cluster-require-full-coverage";
    match connection.send(cmd("CONFIG").arg("GET").arg(name)).await {
        Ok(answer) if says_yes(&answer) => tracing::warn!(
            %address,
            "one unavailable shard stops this whole cluster; set `cluster-require-full-coverage no`, and only \
             that shard's keys degrade"
        ),
        Ok(_) => {}
        Err(failure) => tracing::info!(
            %address, %failure,
            "settings cannot be read; make sure that `cluster-require-full-coverage` is `no`"
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

    fn info(role: &str, loading: &str) -> ServerInfo {
        ServerInfo::parse(&format!(
            "# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nmaxmemory_policy:allkeys-lru\r\n\
             loading:{loading}\r\nasync_loading:0\r\nrole:{role}\r\n"
        ))
    }

    #[test]
    fn a_greeting_is_read() {
        let info = info("master", "0");
        assert_eq!(info.version, Some((7, 2)));
        assert_eq!(info.mode, "standalone");
        assert_eq!(info.maxmemory_policy.as_deref(), Some("allkeys-lru"));
        assert!(info.must_be_serving_primary().is_ok());
    }

    #[test]
    fn a_replica_and_one_that_loads_are_no_primaries() {
        assert!(info("slave", "0").must_be_serving_primary().is_err());
        assert!(info("master", "1").must_be_serving_primary().is_err());
    }

    #[test]
    fn valkey_is_read_by_its_own_names() {
        let info = ServerInfo::parse(
            "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\nserver_mode:cluster\r\n",
        );
        assert_eq!((info.version, info.mode.as_str()), (Some((9, 1)), "cluster"));
    }

    #[test]
    fn hello_tells_what_info_does_not() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let hello = |words: &[&str]| {
            let flat = Value::Array(words.iter().map(|word| text(word)).collect());
            redis::from_redis_value::<HashMap<String, Value>>(flat).unwrap()
        };
        let mut hidden = ServerInfo::parse("");
        assert!(hidden.must_be_serving_primary().is_ok(), "it will say READONLY if it is a replica");
        hidden.complete(&hello(&[
            "server", "valkey", "version", "8.1.8", "mode", "cluster", "role", "replica",
        ]));
        assert_eq!((hidden.version, hidden.mode.as_str()), (Some((8, 1)), "cluster"));
        assert!(hidden.must_be_serving_primary().is_err());
        let mut known = info("master", "0");
        known.complete(&hello(&["version", "1.0.0", "mode", "sentinel"]));
        assert_eq!(
            (known.version, known.mode.as_str()),
            (Some((7, 2)), "standalone"),
            "INFO is believed first"
        );
    }
}
