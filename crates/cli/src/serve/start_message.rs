//! The message on standard output when a node is ready: which rules, store and addresses it uses, and an example.

use super::listeners::NodeListener;
use super::rules::{EXAMPLE_SUMMARY, NodeRepository};
use crate::config::{ServeConfig, StoreConfig};
use std::fmt::{self, Display, Formatter};
use tollgate_control::RuleOwner;

/// The message.
pub struct StartMessage<'a> {
    /// The settings of the node.
    pub config: &'a ServeConfig,
    /// Where the rules in force come from.
    pub rules: &'a str,
    /// The repository of the node.
    pub repository: &'a NodeRepository,
    /// What owns the rules.
    pub rule_owner: &'a RuleOwner,
    /// The open listeners.
    pub listeners: &'a [NodeListener],
}

impl Display for StartMessage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(f, "  rules   {}", self.rules)?;
        match &self.config.store {
            StoreConfig::Memory => {
                writeln!(f, "  store   memory, at most {} MB", self.config.store_memory >> 20)?;
            }
            StoreConfig::Redis(store) => writeln!(f, "  store   {}", store.url)?,
        }
        if let Some(folder) = &self.config.data {
            writeln!(f, "  data    {}", folder.display())?;
        }
        if self.repository.is_in_memory()
            && matches!(self.rule_owner, RuleOwner::Repository)
            && self.config.admin.is_some()
        {
            writeln!(
                f,
                "  note    published rules and tokens are lost when it stops; keep them with --data DIR"
            )?;
        }
        for listener in self.listeners {
            f.write_str(&listener.summary)?;
        }
        // The examples are about the rules of the built-in example.
        let examples = self.listeners.iter().filter_map(|listener| listener.example.as_ref());
        for example in examples.filter(|_| self.rules == EXAMPLE_SUMMARY) {
            writeln!(f, "\n{example}")?;
        }
        writeln!(f, "Press Ctrl-C to stop.")
    }
}
