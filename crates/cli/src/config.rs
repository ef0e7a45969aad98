//! The settings of `serve`: a flag, else its environment variable, else `tollgate.yaml`, else the default.

mod abuse;
mod effect;
mod gateway;
mod store;

use crate::Failure;
use crate::serve::Doors;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
pub use gateway::Gateway;
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
pub use store::Store;
use store::StoreFlags;
use tollgate_control::FailedTestPolicy;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_http::{HeaderOptions, IdentityExtractor, IdentityOptions};
use tollgate_limiter::{AbuseSettings, file};

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
    /// A folder for what a node has to know when it starts while its rule file is broken or a shared store is away
    /// [default: none, or $STATE_DIRECTORY]
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
    /// Which of them come from the environment.
    #[arg(skip)]
    pub(crate) from_environment: Vec<String>,
}

/// Any path, also an empty one, which clap's own parser refuses.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl ServeArgs {
    /// Notes which values come from the environment.
    pub fn note_origins(&mut self, matches: &ArgMatches) {
        let names = matches.ids().map(ToString::to_string);
        let is_variable = |name: &String| matches.value_source(name) == Some(ValueSource::EnvVariable);
        self.from_environment = names.filter(is_variable).collect();
    }

    fn is_from_environment(&self, name: &str) -> bool {
        self.from_environment.iter().any(|known| known == name)
    }

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
            from_environment: self.from_environment,
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
    redis: Option<store::RedisFile>,
    listen: Option<Setting>,
    gateway_listen: Option<Setting>,
    upstream: Option<String>,
    gateway: Option<gateway::GatewayFile>,
    identity: Option<IdentityOptions>,
    #[serde(default)]
    headers: HeaderOptions,
    #[serde(default)]
    abuse: abuse::AbuseFile,
    on_failed_rule_tests: Option<OnFailedRuleTests>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnFailedRuleTests {
    Refuse,
    Warn,
}

/// The settings file, as it was read.
#[derive(Default)]
struct SettingsFile {
    name: String,
    text: String,
    file: ConfigFile,
    identities: IdentityExtractor,
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
    /// What becomes of a rule file whose tests fail.
    pub failed_tests: FailedTestPolicy,
    /// The folder for what a restart needs to know.
    pub data: Option<PathBuf>,
    /// Where states are kept.
    pub store: Store,
    /// The most memory that states may take.
    pub store_memory: usize,
    /// Where checks are answered.
    pub listen: SocketAddr,
    /// The gateway, if there is one.
    pub gateway: Option<Gateway>,
    /// Who a request is from.
    pub identities: Arc<IdentityExtractor>,
    /// Which headers go with an answer.
    pub headers: HeaderOptions,
    /// What is done about keys that ask far too often.
    pub abuse: AbuseSettings,
    /// What is odd, but no error.
    pub warnings: Vec<String>,
}

impl Config {
    /// Puts flags, environment and file together, for a node with these doors.
    pub fn load(args: ServeArgs, doors: Doors) -> Result<Self, Failure> {
        let args = args.stated();
        let read = args.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let config = Self::merge(&args, &read.file, read.identities)?;
        let setup = effect::Setup {
            doors,
            store: &config.store,
            has_gateway: config.gateway.is_some(),
            has_rule_file: config.rules.is_some(),
        };
        effect::check_file(&read.file, &read.name, &read.text, &setup)?;
        let warnings = effect::check_arguments(&args, &setup).map_err(Failure::plain)?;
        Ok(Self { warnings, ..config })
    }

    /// The folder for what a restart needs to know, if there is something to be kept.
    pub fn data_in_use(&self) -> Option<&std::path::Path> {
        let is_used = self.rules.is_some() || matches!(self.store, Store::Redis(_));
        self.data.as_deref().filter(|_| is_used)
    }

    fn merge(args: &ServeArgs, file: &ConfigFile, identities: IdentityExtractor) -> Result<Self, Failure> {
        let either = |flag: &Option<String>, setting: &Option<Setting>| {
            flag.clone().or_else(|| setting.as_ref().map(ToString::to_string))
        };
        let data = args.data.clone().or_else(|| file.data.clone()).or_else(state_directory);
        let store_flags = StoreFlags {
            url: args.store.clone().or_else(|| file.store.clone()),
            data: data.clone(),
            emergency: args.emergency.clone(),
        };
        let gateway_listen = either(&args.gateway_listen, &file.gateway_listen);
        let upstream = args.upstream.as_deref().or(file.upstream.as_deref());
        let trusted = file.identity.as_ref().map_or(&[][..], |identity| &identity.client_ip.trusted);
        let gateway = gateway::read(gateway_listen.as_deref(), upstream, file.gateway.as_ref(), trusted);
        let redis = file.redis.as_ref();
        Ok(Self {
            gateway: gateway.map_err(|(_, error)| Failure::plain(error))?,
            store: store::read(store_flags, redis.unwrap_or(&store::RedisFile::default()))
                .map_err(Failure::plain)?,
            rules: args.rules.clone().or_else(|| file.rules.clone()),
            failed_tests: match file.on_failed_rule_tests {
                Some(OnFailedRuleTests::Warn) => FailedTestPolicy::Warn,
                Some(OnFailedRuleTests::Refuse) | None => FailedTestPolicy::Refuse,
            },
            data,
            store_memory: either(&args.store_memory, &file.store_memory)
                .map_or(Ok(DEFAULT_MEMORY), |text| size(&text))
                .map_err(Failure::plain)?,
            listen: either(&args.listen, &file.listen)
                .map_or(Ok(DEFAULT_LISTEN), |text| address(&text))
                .map_err(Failure::plain)?,
            identities: Arc::new(identities),
            headers: file.headers,
            abuse: file.abuse.settings(),
            warnings: Vec::new(),
        })
    }
}

/// Reads `tollgate.yaml`; paths in it start from its folder.
fn read(path: &std::path::Path) -> Result<SettingsFile, Failure> {
    let name = path.display().to_string();
    let text =
        file::read_text(path).map_err(|error| Failure::plain(format!("cannot read {name}: {error}")))?;
    let mut document = Document::parse(&name, &text)?;
    let mut file: ConfigFile = document.decode().unwrap_or_default();
    let root = DocumentPath::root();
    if let Some(Err(error)) = file.listen.as_ref().map(|setting| address(&setting.to_string())) {
        document.error(&root.field("listen"), error, None);
    }
    if let Some(Err(error)) = file.store_memory.as_ref().map(|setting| size(&setting.to_string())) {
        document.error(&root.field("store_memory"), error, None);
    }
    abuse::check(&mut document, &file.abuse);
    if let Some(redis) = &file.redis {
        store::check(&mut document, redis);
    }
    store::check_url(&mut document, file.store.as_deref());
    let gateway_listen = file.gateway_listen.as_ref().map(ToString::to_string);
    gateway::check(&mut document, gateway_listen.as_deref(), file.upstream.as_deref(), file.gateway.as_ref());
    let folder = path.parent().unwrap_or(std::path::Path::new(""));
    let identity = file.identity.clone().unwrap_or_default();
    let identities = IdentityExtractor::open(&identity, folder).unwrap_or_else(|error| {
        let field = error.field.split('.').fold(root.field("identity"), |path, name| path.field(name));
        document.error(&field, error.problem.to_string(), None);
        IdentityExtractor::default()
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
    Ok(SettingsFile { name, text, file, identities })
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
        let args = ServeArgs { config: Some(path), store, ..ServeArgs::default() };
        let Ok(config) = Config::load(args, Doors::All) else {
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
