//! The settings of `serve`: a flag, else its environment variable, else `tollgate.yaml`, else the default.
//!
//! A setting is declared in this file: a field of [`WrittenSettings`] and its line in [`WrittenSettings::or`], and the
//! value that the node uses in [`ServeConfig`]. Sections of the settings file have files of their own.

mod abuse;
mod admin;
mod gateway;
mod grpc;
mod ineffective;
mod log_file;
mod resp;
mod rule_source;
mod setting_value;
mod settings_file;
mod store;
mod telemetry;

use crate::command_error::CommandError;
use crate::serve::ServeMode;
use abuse::WrittenAbuse;
pub use admin::AdminConfig;
use admin::WrittenAdmin;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
pub use gateway::GatewayConfig;
use gateway::WrittenGateway;
pub use grpc::GrpcConfig;
use grpc::WrittenGrpc;
use ineffective::SettingsContext;
pub use resp::RespConfig;
use resp::WrittenResp;
pub use rule_source::RuleSourceConfig;
use rule_source::RuleSourceFlags;
use serde::Deserialize;
pub use setting_value::SettingError;
use setting_value::{MOST_NAME_CHARACTERS, TextOrNumber, WrittenSwitch, parse_address, parse_size};
use settings_file::SettingsFile;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
pub use store::StoreConfig;
use store::{StoreFlags, WrittenRedis};
pub use telemetry::{DecisionLogConfig, TelemetryConfig};
use telemetry::{TelemetryFlags, WrittenTelemetry};
use tollgate_control::FailedTestPolicy;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_http::{ForwardAuthOptions, HeaderOptions, IdentityExtractor, IdentityOptions};
use tollgate_limiter::{AbuseSettings, Emergency};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_MEMORY: usize = 512 << 20;

/// The settings as they are written: on the command line, in the environment or in `tollgate.yaml`.
///
/// A field is a flag with a variable and a field of the file, all of one name. What only the file has is `arg(skip)`; what
/// the file has not is `serde(skip)`. It is not `Debug`: a password may be in it.
#[derive(Args, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenSettings {
    /// Settings file; its fields have the names of these flags
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE", value_parser = path())]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Rule file; it is watched, and changes are in force within two seconds [default: built-in example]
    #[arg(long, env = "TOLLGATE_RULES", value_name = "FILE", value_parser = path())]
    rules: Option<PathBuf>,
    /// Store of the states: memory, redis://host:6379, redis-sentinel://h1,h2/name, redis-cluster://h1,h2
    /// [default: memory]
    #[arg(long, env = "TOLLGATE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    /// Name of this node in the page, `tollgate top` and the API [default: the name of the host]
    #[arg(long, env = "TOLLGATE_NODE_NAME", value_name = "NAME")]
    node_name: Option<TextOrNumber>,
    /// Folder for the rule repository of a node alone, and for the last good rules and the size of the fleet, which a node
    /// needs if it starts while its rule source or its shared store is unavailable
    /// [default: none, or $STATE_DIRECTORY]
    #[arg(long, env = "TOLLGATE_DATA", value_name = "DIR", value_parser = path())]
    data: Option<PathBuf>,
    /// Keep all revisions of the rules and follow those that are published: on, or off for the rule file only
    /// [default: on]
    #[arg(long, env = "TOLLGATE_REPOSITORY", value_name = "on|off")]
    repository: Option<String>,
    /// Control plane of another node to get the rules from, such as http://10.0.0.5:9090; the token is in
    /// TOLLGATE_CONTROL_TOKEN [default: none]
    #[arg(long, env = "TOLLGATE_CONTROL_PLANE", value_name = "URL")]
    control_plane: Option<String>,
    /// File with the token for that control plane
    #[arg(long, env = "TOLLGATE_CONTROL_TOKEN_FILE", value_name = "FILE", value_parser = path())]
    control_token_file: Option<PathBuf>,
    /// How often the shared repository or that control plane is polled for changes that no message told of
    /// [default: 10s]
    #[arg(long, env = "TOLLGATE_RULES_POLL", value_name = "DURATION")]
    rules_poll: Option<TextOrNumber>,
    /// Limit each client address while the shared store is unavailable, or always: off, on_outage, on [default: off]
    #[arg(long, env = "TOLLGATE_EMERGENCY", value_name = "WHEN")]
    emergency: Option<String>,
    /// Requests per second of one address under that limit, also when an operator switches it on [default: 10]
    #[arg(long, env = "TOLLGATE_EMERGENCY_PER_SECOND", value_name = "NUMBER")]
    emergency_per_second: Option<TextOrNumber>,
    /// Most memory for states, such as 64MB [default: 512MB]
    #[arg(long, env = "TOLLGATE_STORE_MEMORY", value_name = "SIZE")]
    store_memory: Option<TextOrNumber>,
    /// Address of the check API and of forward-auth [default: 127.0.0.1:8080]
    #[arg(long, env = "TOLLGATE_LISTEN", value_name = "ADDRESS")]
    listen: Option<TextOrNumber>,
    /// Address of the RLS door, the gRPC rate limit service of Envoy [default: none]
    #[arg(long, env = "TOLLGATE_GRPC_LISTEN", value_name = "ADDRESS")]
    grpc_listen: Option<TextOrNumber>,
    /// Address of the RESP door, the Redis protocol [default: none]
    #[arg(long, env = "TOLLGATE_RESP_LISTEN", value_name = "ADDRESS")]
    resp_listen: Option<TextOrNumber>,
    /// File with the password of the RESP door, which may also be in TOLLGATE_RESP_PASSWORD [default: none]
    #[arg(long, env = "TOLLGATE_RESP_PASSWORD_FILE", value_name = "FILE", value_parser = path())]
    resp_password_file: Option<PathBuf>,
    /// Address of the admin API, health and metrics: a loopback address unless it has TLS, or off
    /// [default: 127.0.0.1:9090]
    #[arg(long, env = "TOLLGATE_ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<TextOrNumber>,
    /// Allow an admin address that other hosts can reach without TLS
    #[arg(long, env = "TOLLGATE_ADMIN_INSECURE", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    admin_insecure: Option<WrittenSwitch>,
    /// Address of the gateway [default: 127.0.0.1:8000, if there is an upstream]
    #[arg(long, env = "TOLLGATE_GATEWAY_LISTEN", value_name = "ADDRESS")]
    gateway_listen: Option<TextOrNumber>,
    /// Server that the gateway forwards to, such as http://127.0.0.1:3000; several with commas
    #[arg(long, env = "TOLLGATE_UPSTREAM", hide_env_values = true, value_name = "URL")]
    upstream: Option<String>,
    /// Format of the log on standard error: text or json [default: text]
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<String>,
    /// OpenTelemetry collector for metrics and spans, such as http://127.0.0.1:4317 [default: none]
    #[arg(long, env = "TOLLGATE_OTLP_ENDPOINT", hide_env_values = true, value_name = "URL")]
    #[serde(skip)]
    otlp_endpoint: Option<String>,
    /// StatsD server for metrics: host:port or unix:/path [default: none]
    #[arg(long, env = "TOLLGATE_STATSD_ADDRESS", value_name = "ADDRESS")]
    #[serde(skip)]
    statsd_address: Option<String>,
    #[arg(skip)]
    redis: Option<WrittenRedis>,
    #[arg(skip)]
    gateway: Option<WrittenGateway>,
    #[arg(skip)]
    admin: Option<WrittenAdmin>,
    #[arg(skip)]
    grpc: Option<WrittenGrpc>,
    #[arg(skip)]
    resp: Option<WrittenResp>,
    #[arg(skip)]
    identity: Option<IdentityOptions>,
    #[arg(skip)]
    forward_auth: Option<ForwardAuthOptions>,
    #[arg(skip)]
    headers: Option<HeaderOptions>,
    #[arg(skip)]
    abuse: Option<WrittenAbuse>,
    #[arg(skip)]
    telemetry: Option<WrittenTelemetry>,
    #[arg(skip)]
    on_failed_rule_tests: Option<WrittenFailedTestPolicy>,
    /// The names of the values that come from the environment.
    #[arg(skip)]
    #[serde(skip)]
    from_environment: Vec<String>,
}

impl WrittenSettings {
    /// Those of the settings file at `path` alone.
    pub fn of_file(path: PathBuf) -> Self {
        Self { config: Some(path), ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenFailedTestPolicy {
    Refuse,
    Warn,
}

impl WrittenSettings {
    /// Only those of the settings file `config`.
    pub fn in_file(config: PathBuf) -> Self {
        Self { config: Some(config), ..Self::default() }
    }

    /// These settings where they are set, else those of `other`. An empty value counts as not set: a compose file may
    /// set a variable to nothing.
    fn or(self, other: Self) -> Self {
        let path = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        let value = |value: Option<TextOrNumber>| value.filter(|value| !value.is_empty());
        Self {
            config: path(self.config).or(other.config),
            rules: path(self.rules).or(other.rules),
            store: text(self.store).or(other.store),
            node_name: value(self.node_name).or(other.node_name),
            data: path(self.data).or(other.data),
            repository: text(self.repository).or(other.repository),
            control_plane: text(self.control_plane).or(other.control_plane),
            control_token_file: path(self.control_token_file).or(other.control_token_file),
            rules_poll: value(self.rules_poll).or(other.rules_poll),
            emergency: text(self.emergency).or(other.emergency),
            emergency_per_second: value(self.emergency_per_second).or(other.emergency_per_second),
            store_memory: value(self.store_memory).or(other.store_memory),
            listen: value(self.listen).or(other.listen),
            grpc_listen: value(self.grpc_listen).or(other.grpc_listen),
            resp_listen: value(self.resp_listen).or(other.resp_listen),
            resp_password_file: path(self.resp_password_file).or(other.resp_password_file),
            admin_listen: value(self.admin_listen).or(other.admin_listen),
            admin_insecure: self.admin_insecure.filter(|switch| !switch.is_empty()).or(other.admin_insecure),
            gateway_listen: value(self.gateway_listen).or(other.gateway_listen),
            upstream: text(self.upstream).or(other.upstream),
            log_format: text(self.log_format).or(other.log_format),
            otlp_endpoint: text(self.otlp_endpoint).or(other.otlp_endpoint),
            statsd_address: text(self.statsd_address).or(other.statsd_address),
            redis: self.redis.or(other.redis),
            gateway: self.gateway.or(other.gateway),
            admin: self.admin.or(other.admin),
            grpc: self.grpc.or(other.grpc),
            resp: self.resp.or(other.resp),
            identity: self.identity.or(other.identity),
            forward_auth: self.forward_auth.or(other.forward_auth),
            headers: self.headers.or(other.headers),
            abuse: self.abuse.or(other.abuse),
            telemetry: self.telemetry.or(other.telemetry),
            on_failed_rule_tests: self.on_failed_rule_tests.or(other.on_failed_rule_tests),
            from_environment: self.from_environment,
        }
    }

    /// Reports the errors of a settings file.
    fn check(&self, document: &mut Document) {
        let root = DocumentPath::root();
        let mut report = |field: &str, error: Option<SettingError>| {
            if let Some(error) = error {
                document.error(&root.field(field), error.to_string(), None);
            }
        };
        report("listen", self.listen.as_ref().and_then(|listen| parse_address(listen).err()));
        report("store_memory", self.store_memory.as_ref().and_then(|memory| parse_size(memory).err()));
        report("node_name", node_name(self.node_name.as_ref()).err());
        let repository = self.repository.as_deref();
        report("repository", repository.and_then(|text| rule_source::parse_repository(text).err()));
        report("rules_poll", rule_source::poll_interval(self.rules_poll.as_ref()).err());
        report("emergency", store::emergency(self.emergency.as_deref(), None).err());
        let per_second = self.emergency_per_second.as_ref();
        report("emergency_per_second", store::emergency_per_second(per_second, None).err());
        report("log_format", self.log_format.as_ref().and_then(|format| parse_log_format(format).err()));
        grpc::check(document, self.grpc_listen.as_ref());
        resp::check(document, self.resp_listen.as_ref());
        admin::check(document, self.admin_listen.as_ref(), self.admin.as_ref());
        if let Some(abuse) = &self.abuse {
            abuse::check(document, abuse);
        }
        if let Some(redis) = &self.redis {
            store::check(document, redis);
        }
        if let Some(telemetry) = &self.telemetry {
            telemetry::check(document, telemetry);
        }
        store::check_url(document, self.store.as_deref());
        gateway::check(
            document,
            self.gateway_listen.as_ref(),
            self.upstream.as_deref(),
            self.gateway.as_ref(),
        );
    }

    /// Makes the relative paths of a settings file start from its folder.
    fn resolve_paths(&mut self, folder: &Path) {
        self.data = self.data.take().filter(|folder| !folder.as_os_str().is_empty());
        let paths =
            [&mut self.rules, &mut self.data, &mut self.control_token_file, &mut self.resp_password_file];
        for path in paths.into_iter().flatten() {
            *path = folder.join(&*path);
        }
        if let Some(gateway) = &mut self.gateway {
            gateway.resolve_paths(folder);
        }
        if let Some(admin) = &mut self.admin {
            admin.resolve_paths(folder);
        }
        if let Some(grpc) = &mut self.grpc {
            grpc.resolve_paths(folder);
        }
        if let Some(resp) = &mut self.resp {
            resp.resolve_paths(folder);
        }
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.resolve_paths(folder);
        }
    }

    /// Records which values come from the environment.
    pub fn record_environment(&mut self, matches: &ArgMatches) {
        let names = matches.ids().map(ToString::to_string);
        let is_variable = |name: &String| matches.value_source(name) == Some(ValueSource::EnvVariable);
        self.from_environment = names.filter(is_variable).collect();
    }

    fn is_from_environment(&self, name: &str) -> bool {
        self.from_environment.iter().any(|known| known == name)
    }
}

/// Parses any path, including an empty one, which clap's own parser refuses.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The format of the process log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for people.
    Text,
    /// A JSON object for programs.
    Json,
}

fn parse_log_format(text: &str) -> Result<LogFormat, SettingError> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(SettingError::LogFormat(text.to_owned())),
    }
}

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The rule file; none for the built-in example.
    pub rules: Option<PathBuf>,
    /// Where the rules come from.
    pub rule_source: RuleSourceConfig,
    /// How often a shared repository or a control plane is polled.
    pub rules_poll: Duration,
    /// What happens to a rule file whose tests fail.
    pub failed_tests: FailedTestPolicy,
    /// The name of this node, for people.
    pub node_name: String,
    /// The folder for what a restart needs.
    pub data: Option<PathBuf>,
    /// Where states are kept.
    pub store: StoreConfig,
    /// When each client address is limited.
    pub emergency: Emergency,
    /// The requests per second of one address then.
    pub emergency_per_second: u32,
    /// The most memory for states, in bytes.
    pub store_memory: usize,
    /// The address of the check API.
    pub listen: SocketAddr,
    /// The RLS door; none if it is closed.
    pub grpc: Option<GrpcConfig>,
    /// The RESP door; none if it is closed.
    pub resp: Option<RespConfig>,
    /// The admin listener; none if it is closed.
    pub admin: Option<AdminConfig>,
    /// The gateway, if there is one.
    pub gateway: Option<GatewayConfig>,
    /// How the client of a request is identified.
    pub identities: Arc<IdentityExtractor>,
    /// Which proxies may ask about their requests; none for the default.
    pub forward_auth: Option<ForwardAuthOptions>,
    /// Which headers a response has.
    pub headers: HeaderOptions,
    /// What is done about keys with far too many requests.
    pub abuse: AbuseSettings,
    /// What is exported, and where to.
    pub telemetry: TelemetryConfig,
    /// The format of the process log.
    pub log_format: LogFormat,
    /// Settings that are suspicious, but no error.
    pub warnings: Vec<String>,
}

impl ServeConfig {
    /// Merges flags, environment and file.
    pub fn load(arguments: WrittenSettings, mode: ServeMode) -> Result<Self, CommandError> {
        let arguments = arguments.or(WrittenSettings::default());
        let file = arguments.config.as_deref().map(SettingsFile::read).transpose()?.unwrap_or_default();
        let config = Self::read(arguments.clone().or(file.settings.clone()))?;
        let context = SettingsContext { mode, config: &config };
        context.check_file(&file)?;
        let warnings = context.check_arguments(&arguments)?;
        Ok(Self { identities: Arc::new(file.identities), warnings, ..config })
    }

    fn read(settings: WrittenSettings) -> Result<Self, SettingError> {
        let data = settings.data.or_else(state_directory);
        let emergency = store::emergency(settings.emergency.as_deref(), settings.redis.as_ref())?;
        let emergency_per_second =
            store::emergency_per_second(settings.emergency_per_second.as_ref(), settings.redis.as_ref())?;
        let store_flags =
            StoreFlags { url: settings.store, data: data.clone(), emergency, emergency_per_second };
        let trusted = settings.identity.as_ref().map_or(&[][..], |identity| &identity.client_ip.trusted);
        let gateway = gateway::read(
            settings.gateway_listen.as_ref(),
            settings.upstream.as_deref(),
            settings.gateway.as_ref(),
            trusted,
        );
        let telemetry_flags =
            TelemetryFlags { otlp_endpoint: settings.otlp_endpoint, statsd_address: settings.statsd_address };
        let telemetry = telemetry::read(telemetry_flags, settings.telemetry.as_ref());
        let rule_source = rule_source::read(RuleSourceFlags {
            repository: settings.repository,
            control_plane: settings.control_plane,
            control_token_file: settings.control_token_file,
        })?;
        Ok(Self {
            rule_source,
            rules_poll: rule_source::poll_interval(settings.rules_poll.as_ref())?,
            gateway: gateway.map_err(|placed| placed.error)?,
            store: store::read(store_flags, settings.redis.as_ref())?,
            emergency,
            emergency_per_second,
            rules: settings.rules,
            failed_tests: match settings.on_failed_rule_tests {
                Some(WrittenFailedTestPolicy::Warn) => FailedTestPolicy::Warn,
                Some(WrittenFailedTestPolicy::Refuse) | None => FailedTestPolicy::Refuse,
            },
            node_name: node_name(settings.node_name.as_ref())?,
            data,
            store_memory: settings.store_memory.as_ref().map_or(Ok(DEFAULT_MEMORY), parse_size)?,
            grpc: grpc::read(settings.grpc_listen.as_ref(), settings.grpc.as_ref())?,
            resp: resp::read(
                settings.resp_listen.as_ref(),
                settings.resp_password_file.as_deref(),
                settings.resp.as_ref(),
            )?,
            admin: admin::read(
                settings.admin_listen.as_ref(),
                settings.admin_insecure,
                settings.admin.as_ref(),
            )?,
            listen: settings.listen.as_ref().map_or(Ok(DEFAULT_LISTEN), parse_address)?,
            identities: Arc::default(),
            forward_auth: settings.forward_auth,
            headers: settings.headers.unwrap_or_default(),
            abuse: settings.abuse.unwrap_or_default().settings(),
            telemetry: telemetry.map_err(|placed| placed.error)?,
            log_format: settings.log_format.map_or(Ok(LogFormat::Text), |text| parse_log_format(&text))?,
            warnings: Vec::new(),
        })
    }
}

/// The name of this node: the setting, else the name of the host.
fn node_name(setting: Option<&TextOrNumber>) -> Result<String, SettingError> {
    let Some(setting) = setting else {
        return Ok(rustix::system::uname().nodename().to_string_lossy().into_owned());
    };
    let name = setting.to_string();
    let is_name = name.chars().count() <= MOST_NAME_CHARACTERS && !name.chars().any(char::is_control);
    if is_name { Ok(name) } else { Err(SettingError::NodeName) }
}

/// The folder that systemd creates for `StateDirectory=`; the first, if there are several.
fn state_directory() -> Option<PathBuf> {
    let given = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&given).next().filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_no_secrets_in_their_debug_output() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tollgate.yaml");
        let secret = "a1b2c3d4e5f60718a1b2c3d4e5f60718";
        std::fs::write(&path, format!("redis: {{ secret: {secret} }}\n")).unwrap();
        let store = Some("redis-sentinel://u:hunter2@h/m?sentinel_password=hunter3".to_owned());
        let args = WrittenSettings { config: Some(path), store, ..WrittenSettings::default() };
        let config = ServeConfig::load(args, ServeMode::AllDoors).unwrap_or_else(|error| panic!("{error}"));
        let shown = format!("{config:?}");
        assert!(shown.contains("redis-sentinel://u:***@h:26379/m"), "{shown}");
        for word in ["hunter2", "hunter3", secret, "161, 178", "[a1, b2"] {
            assert!(!shown.contains(word), "{word}: {shown}");
        }
    }
}
