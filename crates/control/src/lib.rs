//! The control plane of a Tollgate node: its rule sources, and its [admin listener](AdminListener) with health and
//! metrics.
//!
//! [`WatchedRuleFile`] loads a rule file into a [`Limiter`](tollgate_limiter::Limiter) and follows its changes. Content
//! that is broken, or whose tests fail, is reported and not used; the rules in force stay. With a data folder, the last
//! good rules are kept on disk and used at a start without a good rule file.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tollgate_control::{InstallSettings, WatchedRuleFile};
//! # fn follow(limiter: Arc<tollgate_limiter::Limiter>) -> Result<(), Box<dyn std::error::Error>> {
//! let settings = InstallSettings { data: Some("/var/lib/tollgate".into()), ..InstallSettings::default() };
//! let file = WatchedRuleFile::open("rules.yaml", settings, limiter)?;
//! let status = file.status();
//! let _watcher = file.follow()?; // follows the file until it is dropped
//! println!("revision {}", status.borrow().revision);
//! # Ok(())
//! # }
//! ```
//!
//! Another source reads [`SourcedRules`] and passes them to a [`RuleInstaller`], which does the rest.
//!
//! [`FileWatcher`] follows any other files, such as certificates and keys. All of this runs in threads of its own: a
//! disk that hangs blocks neither a decision nor the stop of the process.

mod admin;
mod file_watcher;
mod last_good_rules;
mod rule_file;
mod rule_installer;
mod rule_metrics;
mod rule_tests;

pub use admin::{AdminListener, MetricsSource, RenderedMetrics};
pub use file_watcher::{FileContents, FileWatcher, ReadCause};
pub use rule_file::WatchedRuleFile;
pub use rule_installer::{
    InstallSettings, RuleInstaller, RuleSourceError, RuleStatus, SourcedRules, digest_of,
};
pub use rule_metrics::RuleMetrics;
pub use rule_tests::{FailedTestPolicy, RuleTestFailures};
