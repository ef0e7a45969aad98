//! The message on standard output when a node is ready: which rules, store and addresses it uses, and an example.

use crate::config::{ServeConfig, StoreConfig};
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

/// The message.
pub struct StartMessage<'a> {
    /// The settings of the node.
    pub config: &'a ServeConfig,
    /// The address of the check API.
    pub checks: Option<SocketAddr>,
    /// The address of the gateway.
    pub gateway: Option<SocketAddr>,
    /// Where the rules in force come from.
    pub rules: RuleOrigin,
}

/// Where the rules in force at the start come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOrigin {
    /// The built-in example.
    Example,
    /// The rule file.
    File,
    /// The last good rules, because the rule file cannot be used.
    LastGood,
}

impl Display for StartMessage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
        self.write_rules(f)?;
        match &self.config.store {
            StoreConfig::Memory => {
                writeln!(f, "  store   memory, at most {} MB", self.config.store_memory >> 20)?;
            }
            StoreConfig::Redis(store) => writeln!(f, "  store   {}", store.url)?,
        }
        if let Some(folder) = self.config.data_in_use() {
            writeln!(f, "  data    {}", folder.display())?;
        }
        if let Some(address) = self.checks {
            self.write_checks(f, address)?;
        }
        if let (Some(address), Some(config)) = (self.gateway, &self.config.gateway) {
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            let upstreams = config.settings.upstreams.iter().flat_map(|upstream| &upstream.addresses);
            let upstreams: Vec<String> = upstreams.map(ToString::to_string).collect();
            writeln!(f, "  gateway {scheme}://{address}/ to {}", upstreams.join(", "))?;
        }
        writeln!(f, "Press Ctrl-C to stop.")
    }
}

impl StartMessage<'_> {
    fn write_rules(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let path = self.config.rules.as_deref().map(std::path::Path::display);
        match (path, self.rules) {
            (Some(path), RuleOrigin::LastGood) => {
                writeln!(f, "  rules   {path} cannot be used; the last good rules are in force (watched)")
            }
            (Some(path), _) => writeln!(f, "  rules   {path} (watched)"),
            (None, _) => writeln!(
                f,
                "  rules   built-in example: 5 requests, then one every 2 s, for each key (set your own with --rules FILE)"
            ),
        }
    }

    fn write_checks(&self, f: &mut Formatter<'_>, address: SocketAddr) -> fmt::Result {
        writeln!(f, "  checks  http://{address}/v1/check")?;
        if !address.ip().is_loopback() {
            writeln!(
                f,
                "  note    every client that can reach this address can spend the limits of all keys; keep it internal"
            )?;
        }
        if self.config.rules.is_none() {
            writeln!(
                f,
                "\nTry it; five checks return 200, then 429:\n\n  \
                 for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{address}/v1/check \
                 -d '{{\"key\":\"alice\",\"endpoint\":\"/hello\"}}'; done\n"
            )?;
        }
        Ok(())
    }
}
