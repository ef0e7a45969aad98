//! What a server says when it serves: what runs where, and how to see it work.

use crate::config::{Config, Store};
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

/// The whole of it, as a text.
pub struct StartMessage<'a> {
    /// What it runs with.
    pub config: &'a Config,
    /// Where checks are answered.
    pub checks: Option<SocketAddr>,
    /// Where the gateway listens.
    pub gateway: Option<SocketAddr>,
    /// Which rules are in force.
    pub rules: RulesInForce,
}

/// Which rules are in force at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesInForce {
    /// Those of the built-in example.
    Example,
    /// Those of the rule file.
    File,
    /// The last good ones, for the rule file cannot be used.
    LastGood,
}

impl Display for StartMessage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
        self.rules(f)?;
        match &self.config.store {
            Store::Memory => writeln!(f, "  store   memory, at most {} MB", self.config.store_memory >> 20)?,
            Store::Redis(store) => writeln!(f, "  store   {}", store.url)?,
        }
        if let Some(folder) = self.config.data_in_use() {
            writeln!(f, "  data    {}", folder.display())?;
        }
        if let Some(address) = self.checks {
            self.checks(f, address)?;
        }
        if let (Some(address), Some(config)) = (self.gateway, &self.config.gateway) {
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            let upstreams = config.settings.upstreams.iter().flat_map(|upstream| &upstream.addresses);
            let upstreams: Vec<String> = upstreams.map(ToString::to_string).collect();
            writeln!(f, "  gateway {scheme}://{address}/ to {}", upstreams.join(", "))?;
        }
        writeln!(f, "Ctrl-C stops it.")
    }
}

impl StartMessage<'_> {
    fn rules(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let path = self.config.rules.as_deref().map(std::path::Path::display);
        match (path, self.rules) {
            (Some(path), RulesInForce::LastGood) => {
                writeln!(f, "  rules   {path} cannot be used; the last good rules are in force (watched)")
            }
            (Some(path), _) => writeln!(f, "  rules   {path} (watched)"),
            (None, _) => writeln!(
                f,
                "  rules   built-in example: 5 requests, then one every 2 s, for each key (--rules FILE for yours)"
            ),
        }
    }

    fn checks(&self, f: &mut Formatter<'_>, address: SocketAddr) -> fmt::Result {
        writeln!(f, "  checks  http://{address}/v1/check")?;
        if !address.ip().is_loopback() {
            writeln!(
                f,
                "  note    anybody who can reach this address can spend anybody's limit; keep it inside"
            )?;
        }
        if self.config.rules.is_none() {
            writeln!(
                f,
                "\nTry it; after five answers of 200 comes a 429:\n\n  \
                 for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{address}/v1/check \
                 -d '{{\"key\":\"alice\",\"endpoint\":\"/hello\"}}'; done\n"
            )?;
        }
        Ok(())
    }
}
