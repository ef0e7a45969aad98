//! The settings of `serve`: a flag, else its environment variable, else `tollgate.yaml`, else the default.

mod abuse;
mod gateway;
mod ineffective;
mod serve_args;
mod setting_value;
mod settings_file;
mod store;

use crate::command_error::CommandError;
use crate::serve::ServeMode;
pub use gateway::GatewayConfig;
use ineffective::SettingsContext;
pub use serve_args::ServeArgs;
pub use setting_value::SettingError;
use setting_value::{TextOrNumber, parse_address, parse_size};
use settings_file::{SettingsFile, WrittenFailedTestPolicy};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub use store::StoreConfig;
use store::StoreFlags;
use tollgate_control::FailedTestPolicy;
use tollgate_http::{HeaderOptions, IdentityExtractor};
use tollgate_limiter::AbuseSettings;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_MEMORY: usize = 512 << 20;

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The rule file; none for the built-in example.
    pub rules: Option<PathBuf>,
    /// What happens to a rule file whose tests fail.
    pub failed_tests: FailedTestPolicy,
    /// The folder for what a restart needs.
    pub data: Option<PathBuf>,
    /// Where states are kept.
    pub store: StoreConfig,
    /// The most memory for states, in bytes.
    pub store_memory: usize,
    /// The address of the check API.
    pub listen: SocketAddr,
    /// The gateway, if there is one.
    pub gateway: Option<GatewayConfig>,
    /// How the client of a request is identified.
    pub identities: Arc<IdentityExtractor>,
    /// Which headers a response has.
    pub headers: HeaderOptions,
    /// What is done about keys with far too many requests.
    pub abuse: AbuseSettings,
    /// Settings that are suspicious, but no error.
    pub warnings: Vec<String>,
}

impl ServeConfig {
    /// Merges flags, environment and file.
    pub fn load(args: ServeArgs, mode: ServeMode) -> Result<Self, CommandError> {
        let args = args.without_empty();
        let file = args.config.as_deref().map(SettingsFile::read).transpose()?.unwrap_or_default();
        let config = Self::merge(&args, &file)?;
        let context = SettingsContext {
            mode,
            store: &config.store,
            has_gateway: config.gateway.is_some(),
            has_rule_file: config.rules.is_some(),
        };
        context.check_file(&file)?;
        let warnings = context.check_arguments(&args)?;
        Ok(Self { identities: Arc::new(file.identities), warnings, ..config })
    }

    /// The folder for what a restart needs, if there is something to keep.
    pub fn data_in_use(&self) -> Option<&Path> {
        let is_used = self.rules.is_some() || matches!(self.store, StoreConfig::Redis(_));
        self.data.as_deref().filter(|_| is_used)
    }

    fn merge(args: &ServeArgs, file: &SettingsFile) -> Result<Self, SettingError> {
        let file = &file.settings;
        let either = |flag: &Option<String>, setting: &Option<TextOrNumber>| {
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
        Ok(Self {
            gateway: gateway.map_err(|placed| placed.error)?,
            store: store::read(store_flags, file.redis.as_ref())?,
            rules: args.rules.clone().or_else(|| file.rules.clone()),
            failed_tests: match file.on_failed_rule_tests {
                Some(WrittenFailedTestPolicy::Warn) => FailedTestPolicy::Warn,
                Some(WrittenFailedTestPolicy::Refuse) | None => FailedTestPolicy::Refuse,
            },
            data,
            store_memory: either(&args.store_memory, &file.store_memory)
                .map_or(Ok(DEFAULT_MEMORY), |text| parse_size(&text))?,
            listen: either(&args.listen, &file.listen)
                .map_or(Ok(DEFAULT_LISTEN), |text| parse_address(&text))?,
            identities: Arc::default(),
            headers: file.headers,
            abuse: file.abuse.settings(),
            warnings: Vec::new(),
        })
    }
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
        let args = ServeArgs { config: Some(path), store, ..ServeArgs::default() };
        let config = ServeConfig::load(args, ServeMode::AllDoors).unwrap_or_else(|error| panic!("{error}"));
        let shown = format!("{config:?}");
        assert!(shown.contains("redis-sentinel://u:***@h:26379/m"), "{shown}");
        for word in ["hunter2", "hunter3", secret, "161, 178", "[a1, b2"] {
            assert!(!shown.contains(word), "{word}: {shown}");
        }
    }
}
