//! The control plane of a Tollgate node: its rule sources, the [repository](RuleRepository) of all revisions of the rules,
//! and its [admin listener](AdminListener) with health and metrics.
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
//! [`RepositoryRules`] follows a repository, with a rule file beside it; [`ControlPlaneRules`] follows another control
//! plane over HTTP, with its control state, and [`StatusPoster`] tells it of the node. Another source reads [`SourcedRules`] and passes them to a [`RuleInstaller`], which does the rest.
//!
//! [`FileWatcher`] follows any other files, such as certificates and keys. All of this runs in threads of its own: a
//! disk that hangs blocks neither a decision nor the stop of the process.

mod access_token;
mod admin;
mod audit;
mod control_plane_rules;
mod control_plane_state;
mod control_state;
mod control_state_follower;
mod file_watcher;
mod http_client;
mod last_good_rules;
pub mod live;
mod page;
mod past_text;
mod repository;
mod repository_rules;
mod revision;
mod rule_file;
mod rule_installer;
mod rule_metrics;
mod rule_owner;
mod rule_tests;
mod source_thread;
mod status_poster;

pub use access_token::{StoredToken, TokenRole};
pub use admin::{AdminListener, MetricsSource, OperateTokenFile, RenderedMetrics, openapi_document};
pub use audit::AuditEntry;
pub use control_plane_rules::ControlPlaneRules;
pub use control_state::{ControlState, EmergencySwitch, GrantRecord, MOST_GRANTS};
pub use control_state_follower::ControlStateFollower;
pub use file_watcher::{FileContents, FileWatcher, ReadCause};
pub use http_client::{EventStream, HttpCall, HttpClient, HttpClientError, HttpReply, ServerEvent};
pub use repository::{
    EmbeddedRepository, MOST_AUTHOR_BYTES, MOST_LISTED, MOST_MESSAGE_BYTES, MOST_SHARED_AUDIT,
    MOST_SHARED_BYTES, MOST_SHARED_REVISIONS, MOST_TOKENS, NewestRevision, PublishOutcome, RepositoryError,
    RuleRepository, SharedRepository, SharedRepositoryTasks,
};
pub use repository_rules::{RepositoryRules, RuleSeed};
pub use revision::{RevisionDraft, RevisionId, RevisionOrigin, RevisionSummary, StoredRevision, text_digest};
pub use rule_file::WatchedRuleFile;
pub use rule_installer::{
    InstallSettings, RuleInstaller, RuleSourceError, RuleStatus, SourcedRevision, SourcedRules,
};
pub use rule_metrics::RuleMetrics;
pub use rule_owner::{FollowedControlPlane, RuleOwner};
pub use rule_tests::{FailedTestPolicy, RuleTestFailures};
pub use source_thread::{FollowedRules, SourceHealth};
pub use status_poster::StatusPoster;
