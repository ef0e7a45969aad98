//! Names that outlive the rules they come from.
//!
//! A decision names its rule after the rule set may have been replaced, and must neither allocate nor
//! touch a counter that all threads share. So a name is kept for the life of the process. Names are few,
//! and a changed rule keeps its own: what is kept does not grow with time.

use parking_lot::Mutex;
use std::collections::BTreeSet;

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The same text, for good.
pub(crate) fn keep(name: &str) -> &'static str {
    let mut names = NAMES.lock();
    match names.get(name) {
        Some(known) => known,
        None => {
            let name: &'static str = Box::leak(name.into());
            names.insert(name);
            name
        }
    }
}
