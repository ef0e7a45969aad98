//! The flags of `serve` and `gateway`, each with an environment variable.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use std::path::PathBuf;

/// The flags. They are not `Debug`, like the settings file: a password may be in them.
#[derive(Args, Default)]
pub struct ServeArgs {
    /// Settings file; its fields have the names of these flags
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// Rule file; it is watched, and changes are in force within two seconds [default: built-in example]
    #[arg(long, env = "TOLLGATE_RULES", value_name = "FILE", value_parser = path())]
    pub rules: Option<PathBuf>,
    /// Store of the states: memory, redis://host:6379, redis-sentinel://h1,h2/name, redis-cluster://h1,h2
    /// [default: memory]
    #[arg(long, env = "TOLLGATE_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// Folder for the last good rules and the size of the fleet, which a node needs if it starts while its rule file
    /// is broken or its shared store is unavailable [default: none, or $STATE_DIRECTORY]
    #[arg(long, env = "TOLLGATE_DATA", value_name = "DIR", value_parser = path())]
    pub data: Option<PathBuf>,
    /// Limit each client address while the shared store is unavailable: off, on_outage, on [default: off]
    #[arg(long, env = "TOLLGATE_EMERGENCY", value_name = "WHEN")]
    pub emergency: Option<String>,
    /// Most memory for states, such as 64MB [default: 512MB]
    #[arg(long, env = "TOLLGATE_STORE_MEMORY", value_name = "SIZE")]
    pub store_memory: Option<String>,
    /// Address of the check API [default: 127.0.0.1:8080]
    #[arg(long, env = "TOLLGATE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Address of the gateway [default: 127.0.0.1:8000, if there is an upstream]
    #[arg(long, env = "TOLLGATE_GATEWAY_LISTEN", value_name = "ADDRESS")]
    pub gateway_listen: Option<String>,
    /// Server that the gateway forwards to, such as http://127.0.0.1:3000; several with commas
    #[arg(long, env = "TOLLGATE_UPSTREAM", hide_env_values = true, value_name = "URL")]
    pub upstream: Option<String>,
    /// The names of the values that come from the environment.
    #[arg(skip)]
    pub(crate) from_environment: Vec<String>,
}

/// Parses any path, including an empty one, which clap's own parser refuses.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl ServeArgs {
    /// Records which values come from the environment.
    pub fn record_environment(&mut self, matches: &ArgMatches) {
        let names = matches.ids().map(ToString::to_string);
        let is_variable = |name: &String| matches.value_source(name) == Some(ValueSource::EnvVariable);
        self.from_environment = names.filter(is_variable).collect();
    }

    /// Whether the value of the flag `name` comes from the environment.
    pub fn is_from_environment(&self, name: &str) -> bool {
        self.from_environment.iter().any(|known| known == name)
    }

    /// The flags without empty values: a variable that a compose file sets to nothing counts as absent.
    pub fn without_empty(self) -> Self {
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
