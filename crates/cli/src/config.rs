//! The settings of `serve`: a flag, else its environment variable, else `tollgate.yaml`, else the default.

mod abuse;
mod gateway;
mod store;

use crate::Failure;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
pub use gateway::Gateway;
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
pub use store::Store;
use store::StoreFlags;
use tollgate_core::document::{Document, Path};
use tollgate_http::{HeaderOptions, Identities, IdentityOptions};
use tollgate_limiter::AbuseSettings;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_MEMORY: usize = 512 << 20;
const SMALLEST_MEMORY: usize = 1 << 20;

/// The flags of `serve`. They are not `Debug`, as little as the file is: a password may stand in them.
#[derive(Args, Default)]
pub struct ServeArgs {
    /// Settings, by the names of these flags
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// The rule file; it is watched, and changes are live within two seconds [default: built-in example]
    #[arg(long, env = "TOLLGATE_RULES", value_name = "FILE", value_parser = path())]
    pub rules: Option<PathBuf>,
    /// Where state is kept: memory, redis://host:6379, redis-sentinel://h1,h2/name, redis-cluster://h1,h2
    /// [default: memory]
    #[arg(long, env = "TOLLGATE_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// A folder for what a node has to know when it starts while a shared store is away [default: none, or
    /// $STATE_DIRECTORY]
    #[arg(long, env = "TOLLGATE_DATA", value_name = "DIR", value_parser = path())]
    pub data: Option<PathBuf>,
    /// While a shared store is away, limit each address by itself: off, on_outage, on [default: off]
    #[arg(long, env = "TOLLGATE_EMERGENCY", value_name = "WHEN")]
    pub emergency: Option<String>,
    /// How much memory the states may take, such as 64MB [default: 512MB]
    #[arg(long, env = "TOLLGATE_STORE_MEMORY", value_name = "SIZE")]
    pub store_memory: Option<String>,
    /// Where checks are answered [default: 127.0.0.1:8080]
    #[arg(long, env = "TOLLGATE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Where the gateway listens [default: 127.0.0.1:8000, if there is an upstream]
    #[arg(long, env = "TOLLGATE_GATEWAY_LISTEN", value_name = "ADDRESS")]
    pub gateway_listen: Option<String>,
    /// Where the gateway sends what passes, such as http://127.0.0.1:3000; several with commas
    #[arg(long, env = "TOLLGATE_UPSTREAM", hide_env_values = true, value_name = "URL")]
    pub upstream: Option<String>,
}

/// Any path, also an empty one, which clap's own parser refuses.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl ServeArgs {
    /// Without what is empty: a variable that a compose file sets to nothing says nothing.
    fn stated(self) -> Self {
        let path = |path: PathBuf| (!path.as_os_str().is_empty()).then_some(path);
        let text = |text: String| (!text.is_empty()).then_some(text);
        Self {
            config: self.config.and_then(path),
            rules: self.rules.and_then(path),
            store: self.store.and_then(text),
            data: self.data.and_then(path),
            emergency: self.emergency.and_then(text),
            store_memory: self.store_memory.and_then(text),
            listen: self.listen.and_then(text),
            gateway_listen: self.gateway_listen.and_then(text),
            upstream: self.upstream.and_then(text),
        }
    }
}

/// `tollgate.yaml`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    rules: Option<PathBuf>,
    store: Option<String>,
    data: Option<PathBuf>,
    store_memory: Option<Setting>,
    #[serde(default)]
    redis: store::RedisFile,
    listen: Option<Setting>,
    gateway_listen: Option<Setting>,
    upstream: Option<String>,
    gateway: Option<gateway::GatewayFile>,
    #[serde(default)]
    identity: IdentityOptions,
    #[serde(default)]
    headers: HeaderOptions,
    #[serde(default)]
    abuse: abuse::AbuseFile,
}

/// A text, or a number that means the same without quotes.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Setting {
    Text(String),
    Number(u64),
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// What `serve` runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The rule file; none for the built-in example.
    pub rules: Option<PathBuf>,
    /// Where states are kept.
    pub store: Store,
    /// The most memory that states may take.
    pub store_memory: usize,
    /// Where checks are answered.
    pub listen: SocketAddr,
    /// The gateway, if there is one.
    pub gateway: Option<Gateway>,
    /// Who a request is from.
    pub identities: Arc<Identities>,
    /// Which headers go with an answer.
    pub headers: HeaderOptions,
    /// What is done about keys that ask far too often.
    pub abuse: AbuseSettings,
}

impl Config {
    /// Puts flags, environment and file together.
    pub fn load(args: ServeArgs) -> Result<Self, Failure> {
        let args = args.stated();
        let (file, identities) = match &args.config {
            Some(path) => read(path)?,
            None => Default::default(),
        };
        let store_flags = StoreFlags {
            url: args.store.or(file.store),
            data: args.data.or(file.data).or_else(state_directory),
            emergency: args.emergency,
        };
        let gateway_listen = args.gateway_listen.or(file.gateway_listen.map(|setting| setting.to_string()));
        let upstream = args.upstream.or(file.upstream);
        let trusted = &file.identity.client_ip.trusted;
        let gateway =
            gateway::read(gateway_listen.as_deref(), upstream.as_deref(), file.gateway.as_ref(), trusted);
        Ok(Self {
            gateway: gateway.map_err(|(_, error)| Failure::plain(error))?,
            store: store::read(store_flags, &file.redis).map_err(Failure::plain)?,
            rules: args.rules.or(file.rules),
            store_memory: args
                .store_memory
                .or(file.store_memory.map(|setting| setting.to_string()))
                .map_or(Ok(DEFAULT_MEMORY), |text| size(&text))
                .map_err(Failure::plain)?,
            listen: args
                .listen
                .or(file.listen.map(|setting| setting.to_string()))
                .map_or(Ok(DEFAULT_LISTEN), |text| address(&text))
                .map_err(Failure::plain)?,
            identities: Arc::new(identities),
            headers: file.headers,
            abuse: file.abuse.settings(),
        })
    }
}

/// Reads `tollgate.yaml`; paths in it start from its folder.
fn read(path: &std::path::Path) -> Result<(ConfigFile, Identities), Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::plain(format!("cannot read {name}: {error}")))?;
    let mut document = Document::parse(&name, &text)?;
    let mut file: ConfigFile = document.decode().unwrap_or_default();
    let root = Path::root();
    if let Some(Err(error)) = file.listen.as_ref().map(|setting| address(&setting.to_string())) {
        document.error(&root.field("listen"), error, None);
    }
    if let Some(Err(error)) = file.store_memory.as_ref().map(|setting| size(&setting.to_string())) {
        document.error(&root.field("store_memory"), error, None);
    }
    abuse::check(&mut document, &file.abuse);
    store::check(&mut document, file.store.as_deref(), &file.redis);
    let gateway_listen = file.gateway_listen.as_ref().map(ToString::to_string);
    gateway::check(&mut document, gateway_listen.as_deref(), file.upstream.as_deref(), file.gateway.as_ref());
    let folder = path.parent().unwrap_or(std::path::Path::new(""));
    let identities = Identities::open(&file.identity, folder).unwrap_or_else(|error| {
        let field = error.field.split('.').fold(root.field("identity"), |path, name| path.field(name));
        document.error(&field, error.message, None);
        Identities::default()
    });
    let report = document.into_report();
    if report.errors() > 0 {
        return Err(report.into());
    }
    file.data = file.data.filter(|folder| !folder.as_os_str().is_empty());
    for path in [&mut file.rules, &mut file.data].into_iter().flatten() {
        *path = folder.join(&*path);
    }
    if let Some(gateway) = &mut file.gateway {
        gateway.start_from(folder);
    }
    Ok((file, identities))
}

/// What systemd gives to a unit with `StateDirectory=`; the first, if there are several.
fn state_directory() -> Option<PathBuf> {
    let given = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&given).next().filter(|path| !path.as_os_str().is_empty())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    // `:8080` and `8080` are what people type; they mean this machine only.
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    if let Ok(port) = port {
        return Ok(SocketAddr::new(DEFAULT_LISTEN.ip(), port));
    }
    let named = text.replacen("localhost:", "127.0.0.1:", 1);
    named
        .parse()
        .map_err(|_| format!("`{text}` is not an address to listen on; write it like 127.0.0.1:8080"))
}

fn size(text: &str) -> Result<usize, String> {
    let bad = || format!("`{text}` is not a size of at least 1MB; write it like 64MB or 2GB");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "mb" | "mib" | "m" => 20,
        "gb" | "gib" | "g" => 30,
        "kb" | "kib" | "k" => 10,
        "" => 0,
        _ => return Err(bad()),
    };
    let number: usize = digits.parse().map_err(|_| bad())?;
    let bytes = number.checked_mul(1 << unit).ok_or_else(bad)?;
    if bytes < SMALLEST_MEMORY { Err(bad()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            (":9000", "127.0.0.1:9000"),
            ("9000", "127.0.0.1:9000"),
            ("localhost:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", "here", "127.0.0.1", "1.2.3.4:99999"] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn settings_have_no_secrets_in_their_debug_output() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tollgate.yaml");
        let secret = "a1b2c3d4e5f60718a1b2c3d4e5f60718";
        std::fs::write(&path, format!("redis: {{ secret: {secret} }}\n")).unwrap();
        let store = Some("redis-sentinel://u:hunter2@h/m?sentinel_password=hunter3".to_owned());
        let Ok(config) = Config::load(ServeArgs { config: Some(path), store, ..ServeArgs::default() }) else {
            panic!("it cannot be read");
        };
        let shown = format!("{config:?}");
        assert!(shown.contains("redis-sentinel://u:***@h:26379/m"), "{shown}");
        for word in ["hunter2", "hunter3", secret, "161, 178", "[a1, b2"] {
            assert!(!shown.contains(word), "{word}: {shown}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in
            [("64MB", 64 << 20), ("2 GB", 2 << 30), ("1048576", 1 << 20), ("1024kb", 1 << 20)]
        {
            assert_eq!(size(text).unwrap(), expected, "{text}");
        }
        for text in ["", "MB", "-1MB", "1", "64 pounds", "99999999999999GB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
