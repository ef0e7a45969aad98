//! Compiles the allow and deny lists.

use super::RuleCompiler;
use crate::document::DocumentPath;
use crate::rules::lists::{AccessList, ListEntry, looks_like_an_address};
use crate::rules::pattern::{Glob, network};
use crate::rules::written::WrittenListEntry;

impl RuleCompiler<'_> {
    /// Compiles a list from its two names.
    pub(super) fn list(&mut self, spellings: [(&str, &Vec<WrittenListEntry>); 2]) -> AccessList {
        let mut list = AccessList::default();
        for (name, entries) in spellings {
            for (index, entry) in entries.iter().enumerate() {
                let path = DocumentPath::root().field(name).index(index);
                let key = &entry.key;
                let network = network(key);
                let is_any = Glob::new(key).is_any() || network.is_some_and(|net| net.prefix_len() == 0);
                if key.is_empty() {
                    self.document.error(&path, "an empty entry matches no client", "remove it");
                } else if network.is_none() && looks_like_an_address(key) {
                    let hint = "write it like 10.0.0.0/8, 203.0.113.9 or 2001:db8::/32";
                    self.document.error(&path, format!("`{key}` is not an address or a network"), hint);
                } else if is_any && matches!(name, "blacklist" | "deny") {
                    self.document.error(&path, "this denies all clients", "name the clients to deny");
                } else if is_any {
                    let hint = "name the clients without limits";
                    self.document.warning(&path, "with this entry no client is limited", hint);
                }
                list.insert(ListEntry {
                    pattern: key.clone(),
                    expires: entry.expires.map(|expires| expires.time),
                    reason: entry.reason.clone(),
                    by: entry.by.clone(),
                });
            }
        }
        list
    }
}
