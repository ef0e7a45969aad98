//! Names that outlive the rules they come from.
//!
//! A decision names its rule after the rule set may have been replaced, and must neither allocate nor
//! touch a counter that all threads share. So names are kept for the life of the process, and equal names are
//! kept once. Their number is bounded by the distinct limits that operators install: no request adds one, and
//! rules that are installed again, or with other rates, add none.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use tollgate_core::rules::written::{OnExceed, SoftLimit};

/// What a limit is called, and what its rule does with requests over it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitNames {
    /// The rule's id.
    pub rule: String,
    /// The limit's name in `RateLimit-Policy`.
    pub policy: String,
    /// What happens over the limit.
    pub on_exceed: OnExceed,
    /// What happens in the last part of it.
    pub soft: Option<SoftLimit>,
}

static NAMES: Mutex<BTreeSet<&'static LimitNames>> = Mutex::new(BTreeSet::new());

impl LimitNames {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(rule: &str) -> &'static LimitNames {
        let (rule, policy) = (rule.to_owned(), "default".to_owned());
        LimitNames::keep(LimitNames { rule, policy, on_exceed: OnExceed::Reject, soft: None })
    }

    fn count(rule: &str) -> usize {
        NAMES.lock().iter().filter(|names| names.rule.starts_with(rule)).count()
    }

    #[test]
    fn equal_names_are_kept_once() {
        for _ in 0..1_000 {
            assert!(std::ptr::eq(kept("kept_once_a"), kept("kept_once_a")));
            assert!(!std::ptr::eq(kept("kept_once_a"), kept("kept_once_b")));
        }
        assert_eq!(count("kept_once_"), 2);
    }
}
