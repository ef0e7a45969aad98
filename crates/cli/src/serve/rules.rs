//! The rules of a node: its repository, and where its rules come from. A rule source is registered here, in [`load`].

use super::node_metrics::NodeMetrics;
use super::reload::ReloadTarget;
use super::{ServeMode, open_doors};
use crate::command_error::CommandError;
use crate::config::{RuleSourceConfig, ServeConfig};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;
use tollgate_control::{
    ControlPlaneRules, InstallSettings, RepositoryRules, RevisionOrigin, RuleMetrics, RuleOwner,
    RuleRepository, RuleSeed, RuleSourceError, RuleStatus, SharedRepositoryTasks, SourceHealth,
    WatchedRuleFile,
};
use tollgate_core::rules;
use tollgate_limiter::{Clock, Limiter};
use tollgate_redis::RedisStore;

const EXAMPLE_RULES: &str = include_str!("../quickstart.yaml");
/// The rules in the start message, if they are those of the built-in example.
pub const EXAMPLE_SUMMARY: &str =
    "built-in example: 5 requests, then one every 2 s, for each key (set your own with --rules FILE)";

/// The repository of a node: in Redis if its store is, else in its data folder, else in memory. It has the revisions of
/// the rules, unless they come from elsewhere, and in any case the access tokens and the audit log.
pub struct NodeRepository {
    pub repository: RuleRepository,
    /// Notices changes in Redis.
    _tasks: Option<SharedRepositoryTasks>,
}

impl NodeRepository {
    /// Opens it. May block on the disk.
    pub fn open(
        config: &ServeConfig,
        redis: Option<&RedisStore>,
        clock: &Clock,
    ) -> Result<Self, CommandError> {
        let (repository, tasks) = match redis {
            Some(redis) => {
                let (repository, tasks) =
                    RuleRepository::open_shared(redis, config.rules_poll, clock.clone());
                (repository, Some(tasks))
            }
            None => (RuleRepository::open_embedded(config.data.as_deref(), clock.clone())?, None),
        };
        Ok(Self { repository, _tasks: tasks })
    }

    /// Whether it is lost at the end of the process.
    pub fn is_in_memory(&self) -> bool {
        matches!(&self.repository, RuleRepository::Embedded(kept) if kept.path().is_none())
    }
}

impl fmt::Debug for NodeRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeRepository").field("repository", &self.repository).finish_non_exhaustive()
    }
}

/// The rules in force at the start.
pub struct StartRules {
    /// Where they come from, for the start message.
    pub summary: String,
    /// What owns them.
    pub owner: RuleOwner,
    /// The state of their source, now and after every change.
    pub status: watch::Receiver<RuleStatus>,
    /// How they follow their source.
    pub reloads: Vec<ReloadTarget>,
}

/// Puts the rules of their source in force.
pub async fn load(
    config: &ServeConfig,
    mode: ServeMode,
    limiter: &Arc<Limiter>,
    repository: &NodeRepository,
    metrics: &NodeMetrics,
) -> Result<StartRules, CommandError> {
    let settings = InstallSettings {
        failed_tests: config.failed_tests,
        data: config.data.clone(),
        doors: open_doors(config, mode),
    };
    let limiter = Arc::clone(limiter);
    let register = |status: watch::Receiver<RuleStatus>, health: SourceHealth| {
        metrics.0.register(Arc::new(RuleMetrics::new(status, health)));
    };
    match (&config.rule_source, &config.rules) {
        (RuleSourceConfig::ControlPlane(client), _) => {
            let rules = ControlPlaneRules::open(client.clone(), config.rules_poll, settings, limiter).await?;
            register(rules.status(), rules.health());
            let summary = followed(&rules.status().borrow(), &format!("the control plane {}", client.url()));
            let (status, owner) = (rules.status(), RuleOwner::ControlPlane(rules.followed()));
            let reloads = vec![ReloadTarget::Rules(rules.follow().map_err(CommandError::Thread)?)];
            Ok(StartRules { summary, owner, status, reloads })
        }
        (RuleSourceConfig::Repository, path) => {
            let seed = path.clone().map_or(RuleSeed::Example(EXAMPLE_RULES), RuleSeed::File);
            let source = repository.repository.clone();
            let rules = RepositoryRules::open(source.clone(), seed, settings, limiter).await?;
            register(rules.status(), source.health());
            let summary = match (rules.origin(), path) {
                (Some(RevisionOrigin::Example), _) => EXAMPLE_SUMMARY.to_owned(),
                (Some(RevisionOrigin::File) | None, Some(path)) => {
                    watched(&rules.status().borrow(), &path.display().to_string())
                }
                _ => followed(&rules.status().borrow(), &format!("the repository {}", source.place())),
            };
            let status = rules.status();
            let (followed, watcher) = rules.follow().map_err(CommandError::Thread)?;
            let watcher = watcher.map(|watcher| ReloadTarget::Files("rules", watcher));
            Ok(StartRules {
                summary,
                owner: RuleOwner::Repository,
                status,
                reloads: watcher.into_iter().chain([ReloadTarget::Rules(followed)]).collect(),
            })
        }
        (RuleSourceConfig::FileOnly, Some(path)) => {
            let file = WatchedRuleFile::open(path, settings, limiter)?;
            register(file.status(), SourceHealth::default());
            let summary = watched(&file.status().borrow(), &path.display().to_string());
            let status = file.status();
            let watcher = file.follow().map_err(CommandError::Thread)?;
            let reloads = vec![ReloadTarget::Files("rules", watcher)];
            Ok(StartRules { summary, owner: RuleOwner::File, status, reloads })
        }
        (RuleSourceConfig::FileOnly, None) => {
            let loaded = rules::load("the built-in example", EXAMPLE_RULES)?;
            limiter.install(loaded.rules, loaded.lists).map_err(RuleSourceError::Names)?;
            let now = limiter.clock().now();
            metrics.0.register(Arc::new(RuleMetrics::constant(EXAMPLE_RULES, now)));
            let status = RuleStatus { revision: 1, installed: now, ..RuleStatus::default() };
            let (_, status) = watch::channel(status);
            let summary = EXAMPLE_SUMMARY.to_owned();
            Ok(StartRules { summary, owner: RuleOwner::File, status, reloads: Vec::new() })
        }
    }
}

fn watched(status: &RuleStatus, path: &str) -> String {
    match status.error {
        Some(_) => format!("{path} cannot be used; the last good rules are in force (watched)"),
        None => format!("{path} (watched)"),
    }
}

fn followed(status: &RuleStatus, source: &str) -> String {
    let revision = status.revision;
    match status.error {
        Some(_) => format!("{source} cannot be used; the last good rules are in force, revision {revision}"),
        None => format!("revision {revision} of {source}"),
    }
}
