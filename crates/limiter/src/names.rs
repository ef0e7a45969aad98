//! Names that outlive the rules they come from.
//!
//! A decision names its rule after the rule set may have been replaced, and must neither allocate nor
//! touch a counter that all threads share. So names are kept for the life of the process. They are few,
//! and a changed rule keeps its own: what is kept does not grow with time.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use tollgate_core::rules::written::{OnExceed, SoftLimit};

/// What a limit is called, and what its rule does with requests over it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Names {
    /// The rule's id.
    pub rule: String,
    /// The limit's name in `RateLimit-Policy`.
    pub policy: String,
    /// What happens over the limit.
    pub on_exceed: OnExceed,
    /// What happens in the last part of it.
    pub soft: Option<SoftLimit>,
}

static NAMES: Mutex<BTreeSet<&'static Names>> = Mutex::new(BTreeSet::new());

impl Names {
    /// The same names, for good.
    pub(crate) fn keep(names: Self) -> &'static Self {
        let mut known = NAMES.lock();
        match known.get(&names) {
            Some(known) => known,
            None => {
                let names: &'static Self = Box::leak(Box::new(names));
                known.insert(names);
                names
            }
        }
    }
}
