//! Publishing rules: validation, the tests of the rules, compare-and-set, audit.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::audit::AuditedAction;
use super::problem::Problem;
use super::rule_check::{CheckedRules, SOURCE};
use crate::live::LiveEventKind;
use crate::repository::{PublishOutcome, RepositoryError};
use crate::revision::{RevisionDraft, RevisionOrigin, RevisionSummary, StoredRevision};
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use std::sync::Arc;
use tollgate_core::rules::edit::RuleEdit;
use tollgate_http::body::ErrorCode;
use utoipa::ToSchema;

/// The header with the message of a revision.
const X_MESSAGE: &str = "x-message";
/// The longest message of a revision, in characters.
pub(super) const MOST_MESSAGE_CHARACTERS: usize = 1_000;
/// How often a change without `If-Match` is tried while others publish too.
const ATTEMPTS: usize = 100;

/// The revision that a change made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PublishedRevision {
    /// Its number.
    pub(super) revision: u64,
}

/// A change of the rules by an operator.
#[derive(Debug)]
pub(super) struct RuleChange {
    pub(super) operator: Operator,
    pub(super) peer: AdminPeer,
    pub(super) message: String,
    /// For the audit log.
    pub(super) action: &'static str,
    pub(super) target: String,
}

/// What the rules become.
#[derive(Clone, Debug)]
pub(super) enum NewRules {
    /// This text.
    Text(Arc<str>),
    /// The newest text with this change.
    Edit(Arc<RuleEdit>),
}

/// The revisions that a request may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BaseRevision {
    /// Whatever is the newest.
    Any,
    /// The newest, if it is one of these.
    Numbers(Vec<u64>),
}

impl BaseRevision {
    /// What `If-Match` says; none if there is no such header.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let mut lines = headers.get_all(IF_MATCH).iter().peekable();
        if lines.peek().is_none() {
            return Ok(None);
        }
        let malformed =
            || Problem::malformed("`If-Match` must be the ETag of a revision, such as \"12\", or *");
        let mut numbers = Vec::new();
        for line in lines {
            for tag in line.to_str().map_err(|_| malformed())?.split(',').map(str::trim) {
                if tag == "*" {
                    return Ok(Some(Self::Any));
                }
                let number = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                numbers.push(number.and_then(|number| number.parse().ok()).ok_or_else(malformed)?);
            }
        }
        Ok(Some(Self::Numbers(numbers)))
    }

    /// The same, where the header is required.
    pub(super) fn required(headers: &HeaderMap) -> Result<Self, Problem> {
        Self::of(headers)?.ok_or_else(|| {
            let detail = "`If-Match` is required: the ETag of the revision that the change is based on, as `GET /v1/rules` shows it";
            Problem::new(ErrorCode::PreconditionRequired, detail)
        })
    }

    fn verify(&self, newest: Option<u64>) -> Result<(), Problem> {
        let number = newest.unwrap_or(0);
        let matches = match self {
            Self::Any => true,
            Self::Numbers(numbers) => numbers.contains(&number),
        };
        if matches { Ok(()) } else { Err(stale(newest)) }
    }
}

/// The message of a revision in the headers of a request.
pub(super) fn message(headers: &HeaderMap) -> Result<String, Problem> {
    let Some(line) = headers.get(X_MESSAGE) else { return Ok(String::new()) };
    let text = std::str::from_utf8(line.as_bytes())
        .map_err(|_| Problem::malformed("`X-Message` must be UTF-8 text"))?;
    checked_message(text)
}

/// A message that is not too long and is one line.
pub(super) fn checked_message(text: &str) -> Result<String, Problem> {
    if text.chars().count() > MOST_MESSAGE_CHARACTERS {
        let detail = format!("a message has at most {MOST_MESSAGE_CHARACTERS} characters");
        return Err(Problem::invalid(detail));
    }
    Ok(text.trim().replace(char::is_control, " "))
}

/// Whether `If-None-Match` names this entity tag, or any.
pub(super) fn has_tag(headers: &HeaderMap, tag: &[u8]) -> bool {
    let lines = headers.get_all(IF_NONE_MATCH).iter();
    let mut tags = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    tags.any(|known| {
        let known = known.trim_ascii();
        known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag
    })
}

/// The entity tag of a revision.
pub(super) fn entity_tag(revision: u64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{revision}\"")).unwrap_or(HeaderValue::from_static("\"0\""))
}

impl ControlPlane {
    /// Publishes the rules that `new` makes of the newest revision. If another publish comes in between, it is tried again
    /// with the newer revision, unless `base` does not allow that.
    pub(super) async fn publish(
        &self,
        base: BaseRevision,
        new: NewRules,
        change: RuleChange,
    ) -> Result<RevisionSummary, Problem> {
        let repository = self.published_rules()?;
        for _ in 0..ATTEMPTS {
            let newest = repository.newest().await?;
            let number = newest.as_ref().map(|newest| newest.summary.number);
            base.verify(number)?;
            if let (NewRules::Edit(_), BaseRevision::Any) = (&new, &base) {
                self.verify_in_force(newest.as_ref())?;
            }
            let old = newest.map_or_else(String::new, |newest| newest.text);
            let text = self.verified(new.clone(), old).await?;
            let draft = RevisionDraft {
                text,
                author: change.operator.name.clone(),
                message: change.message.clone(),
                origin: RevisionOrigin::Published,
            };
            match repository.publish(number, draft).await? {
                PublishOutcome::Published(summary) => {
                    // The same text again is not a change.
                    if Some(summary.number) != number {
                        self.record_publish(&change, &summary).await;
                    }
                    return Ok(summary);
                }
                PublishOutcome::Stale(_) => {}
            }
        }
        let newest = repository.newest().await?;
        Err(stale(newest.map(|newest| newest.summary.number)))
    }

    /// An error if an edit of the newest revision would put other rules in force on this node. As long as nothing is
    /// published, each node uses its own rule file, and the newest revision may be the file of another node.
    fn verify_in_force(&self, newest: Option<&StoredRevision>) -> Result<(), Problem> {
        let Some(in_force) = self.repository.in_force() else { return Ok(()) };
        let newest = newest.map(|newest| &newest.summary);
        if newest.is_some_and(|newest| {
            newest.origin == RevisionOrigin::Published || newest.digest == in_force.summary.digest
        }) {
            return Ok(());
        }
        let number = newest.map_or(0, |newest| newest.number);
        let hint = "publish the rules for all nodes first, such as with `tollgate rules publish rules.yaml`";
        let detail = match newest {
            Some(newest) => format!(
                "the newest revision, {number}, is the rule file of another node ({}), and this node has other rules in \
                 force; {hint}, or name the revision to change with `If-Match: \"{number}\"`",
                newest.message
            ),
            None => format!("the rules in force on this node are not a revision yet; try again, or {hint}"),
        };
        Err(Problem::conflict(detail).with_current(Some(number)))
    }

    /// The new rules; an error if they are invalid or their tests fail.
    async fn verified(&self, new: NewRules, old: String) -> Result<String, Problem> {
        let doors = self.doors.clone();
        let verify = move || {
            let text = match &new {
                NewRules::Text(text) => Arc::clone(text),
                NewRules::Edit(edit) => Arc::from(edit.apply(SOURCE, &old)?),
            };
            let loaded = CheckedRules::of(&text, &doors).publishable()?;
            if let NewRules::Edit(edit) = &new {
                edit.verify_effect(SOURCE, &old, &loaded.rules)?;
            }
            Ok(String::from(&*text))
        };
        super::beside(verify).await?
    }

    async fn record_publish(&self, change: &RuleChange, summary: &RevisionSummary) {
        let action = AuditedAction {
            action: change.action,
            target: change.target.clone(),
            detail: summary.message.clone(),
            revision: Some(summary.number),
        };
        let kind = match change.action {
            "rules.rollback" => LiveEventKind::RolledBack,
            _ => LiveEventKind::Published,
        };
        let mut text = format!("revision {} published by {}", summary.number, change.operator.name);
        if !summary.message.is_empty() {
            text += &format!(": {}", summary.message);
        }
        self.live.reporter().report(kind, text);
        self.record(&change.operator, change.peer, action).await;
    }
}

fn stale(newest: Option<u64>) -> Problem {
    let detail = match newest {
        Some(number) => format!("the rules have changed since: the newest revision is {number}"),
        None => "there is no revision yet; use `If-Match: \"0\"`".to_owned(),
    };
    Problem::new(ErrorCode::PreconditionFailed, detail).with_current(newest)
}

impl From<RepositoryError> for Problem {
    fn from(error: RepositoryError) -> Self {
        match error {
            RepositoryError::TooLarge { .. } => Self::invalid(error.to_string()),
            RepositoryError::TooMany { .. } => Self::conflict(error.to_string()),
            RepositoryError::File { .. }
            | RepositoryError::Unavailable(_)
            | RepositoryError::OutcomeUnknown(_)
            | RepositoryError::Invalid(_)
            | RepositoryError::Contention => {
                tracing::warn!(%error, "admin request failed");
                Self::unavailable(error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_match_names_revisions() {
        for (lines, expected) in [
            (&[][..], Some(None)),
            (&["\"12\""], Some(Some(BaseRevision::Numbers(vec![12])))),
            (&["\"1\", \"2\"", "\"3\""], Some(Some(BaseRevision::Numbers(vec![1, 2, 3])))),
            (&["*"], Some(Some(BaseRevision::Any))),
            (&["12"], None),
            (&["W/\"12\""], None),
            (&["\"-1\""], None),
            (&[""], None),
        ] {
            let mut map = HeaderMap::new();
            for line in lines {
                map.append(IF_MATCH, line.parse().unwrap());
            }
            assert_eq!(BaseRevision::of(&map).ok(), expected, "{lines:?}");
        }
    }
}
