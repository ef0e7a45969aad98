//! The allow and deny lists of a rule file.

use super::Compiler;
use crate::document::Path;
use crate::rules::lists::{Entry, List, looks_like_an_address};
use crate::rules::pattern::{Glob, network};
use crate::rules::written::ListEntry;

impl Compiler<'_> {
    /// Both spellings of a list.
    pub(super) fn list(&mut self, spellings: [(&str, &Vec<ListEntry>); 2]) -> List {
        let mut list = List::default();
        for (name, entries) in spellings {
            for (index, entry) in entries.iter().enumerate() {
                let path = Path::root().field(name).index(index);
                let key = &entry.key;
                let network = network(key);
                let everybody = Glob::new(key).is_any() || network.is_some_and(|net| net.prefix_len() == 0);
                if key.is_empty() {
                    self.document.error(&path, "an empty entry matches nobody", "remove it");
                } else if network.is_none() && looks_like_an_address(key) {
                    let hint = "write it like 10.0.0.0/8, 203.0.113.9 or 2001:db8::/32";
                    self.document.error(&path, format!("`{key}` is not an address or a network"), hint);
                } else if everybody && matches!(name, "blacklist" | "deny") {
                    self.document.error(&path, "this refuses everybody", "name who is to be refused");
                } else if everybody {
                    let hint = "name who is to pass without a limit";
                    self.document.warning(&path, "with this entry nobody is limited", hint);
                }
                list.insert(Entry {
                    pattern: key.clone(),
                    expires_us: entry.expires.map(|expires| expires.unix_us),
                    reason: entry.reason.clone(),
                });
            }
        }
        list
    }
}
