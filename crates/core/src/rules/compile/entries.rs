//! The allow and deny lists of a rule file.

use super::Compiler;
use crate::document::Path;
use crate::rules::lists::{Entry, List};
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

/// Whether a text was probably meant as an address or a network: as a key it would match nobody, and
/// nobody would notice.
fn looks_like_an_address(key: &str) -> bool {
    let (address, has_prefix) = key.split_once('/').map_or((key, false), |(address, _)| (address, true));
    let only = |more: &str| address.chars().all(|c| c.is_ascii_digit() || more.contains(c));
    let (dots, stars) = (address.matches('.').count(), address.contains('*'));
    let v4 = address.starts_with(|c: char| c.is_ascii_digit())
        && only(".*")
        && (dots == 3 || dots > 0 && (has_prefix || stars));
    let hex = address.chars().all(|c| c.is_ascii_hexdigit() || ":*".contains(c));
    v4 || hex && address.contains("::") || hex && has_prefix && address.contains(':')
}
