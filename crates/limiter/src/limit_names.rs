//! Names of limits that outlive their rules.
//!
//! A decision names its limit, possibly after the rule set has been replaced, and must neither allocate nor change a
//! counter that threads share. So names are kept until the process ends. Equal names are kept once: rules that are
//! installed again, or with other rates, add none, and no request adds any. All names together take at most
//! [`MOST_BYTES`]; a rule set whose names do not fit is not installed.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use tollgate_core::rules::written::{OnExceed, SoftLimit};

/// The most memory for names, enough for about 300,000 limits.
const MOST_BYTES: usize = 64 << 20;

/// What a limit is called, and what its rule does with requests over it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitNames {
    /// The rule's id.
    pub rule: String,
    /// The limit's name in `RateLimit-Policy`.
    pub policy: String,
    /// The action on requests over the limit.
    pub on_exceed: OnExceed,
    /// The action on requests near the limit.
    pub soft: Option<SoftLimit>,
}

/// The names of a rule set do not fit: those of all limits that were installed since the process started would take
/// more memory than they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitNamesFull {
    most_bytes: usize,
}

impl fmt::Display for LimitNamesFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most_bytes >> 20;
        write!(
            f,
            "error: the names of all limits since the start of the process take more than {most} MiB; restart it \
             to free those of old rules"
        )
    }
}

impl std::error::Error for LimitNamesFull {}

impl LimitNames {
    /// Names of a limit that belongs to no rule.
    pub(crate) fn of_own(name: &str) -> Self {
        Self { rule: name.to_owned(), policy: name.to_owned(), on_exceed: OnExceed::Reject, soft: None }
    }

    /// The same names, kept until the process ends: all of them, or none if they do not fit.
    pub(crate) fn keep(names: &[Self]) -> Result<Vec<&'static Self>, LimitNamesFull> {
        static KEPT: Mutex<KeptNames> = Mutex::new(KeptNames::new(MOST_BYTES));
        KEPT.lock().keep(names)
    }

    fn bytes(&self) -> usize {
        let header = |action: &OnExceed| match action {
            OnExceed::Flag(flag) => flag.header.len(),
            OnExceed::Reject
            | OnExceed::Shadow
            | OnExceed::Queue(_)
            | OnExceed::Shed(_)
            | OnExceed::Tarpit(_) => 0,
        };
        let soft = self.soft.as_ref().map_or(0, |soft| header(&soft.then));
        // The set takes up to two references for each entry.
        size_of::<Self>()
            + 2 * size_of::<&Self>()
            + self.rule.len()
            + self.policy.len()
            + header(&self.on_exceed)
            + soft
    }
}

/// All names that are kept.
struct KeptNames {
    known: BTreeSet<&'static LimitNames>,
    bytes: usize,
    most_bytes: usize,
}

impl KeptNames {
    const fn new(most_bytes: usize) -> Self {
        Self { known: BTreeSet::new(), bytes: 0, most_bytes }
    }

    fn keep(&mut self, names: &[LimitNames]) -> Result<Vec<&'static LimitNames>, LimitNamesFull> {
        let new: BTreeSet<&LimitNames> = names.iter().filter(|names| !self.known.contains(names)).collect();
        let bytes = self.bytes + new.iter().map(|names| names.bytes()).sum::<usize>();
        if bytes > self.most_bytes {
            return Err(LimitNamesFull { most_bytes: self.most_bytes });
        }
        self.bytes = bytes;
        Ok(names.iter().map(|names| self.keep_one(names)).collect())
    }

    fn keep_one(&mut self, names: &LimitNames) -> &'static LimitNames {
        if let Some(known) = self.known.get(names) {
            return known;
        }
        let kept: &'static LimitNames = Box::leak(Box::new(names.clone()));
        self.known.insert(kept);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rules: &[&str]) -> Vec<LimitNames> {
        rules.iter().map(|rule| LimitNames::of_own(rule)).collect()
    }

    #[test]
    fn equal_names_are_kept_once() {
        let mut kept = KeptNames::new(MOST_BYTES);
        for _ in 0..1_000 {
            let found = kept.keep(&names(&["a", "b", "a"])).unwrap();
            assert!(std::ptr::eq(found[0], found[2]) && !std::ptr::eq(found[0], found[1]));
        }
        assert_eq!((kept.known.len(), kept.bytes), (2, 2 * LimitNames::of_own("a").bytes()));
    }

    #[test]
    fn names_beyond_the_bound_are_refused_as_a_whole() {
        let mut kept = KeptNames::new(3 * LimitNames::of_own("a").bytes());
        kept.keep(&names(&["a", "b"])).unwrap();
        let full = LimitNamesFull { most_bytes: kept.most_bytes };
        for _ in 0..100 {
            assert_eq!(kept.keep(&names(&["b", "c", "d"])), Err(full));
        }
        assert_eq!(kept.keep(&names(&["b", "a"])).unwrap().len(), 2, "known names always fit");
        assert_eq!(kept.keep(&names(&["c"])).unwrap().len(), 1, "a refused set leaves nothing behind");
        assert_eq!(kept.keep(&names(&["d"])), Err(full));
        assert!(kept.bytes <= kept.most_bytes);
    }
}
