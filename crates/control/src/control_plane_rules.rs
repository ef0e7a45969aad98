//! The rules of another control plane, for a node without a shared store: followed over HTTP, with server-sent events and
//! a poll for what they miss. The control state is followed with them (`control_plane_state.rs`).
//!
//! The last good revision is kept on disk. A node never goes back to a lower number; with equal numbers and different
//! digests the control plane is right.

use crate::control_plane_state::{ControlPlaneState, refusal};
use crate::control_state::ControlState;
use crate::http_client::{HttpCall, HttpClient};
use crate::revision::{RevisionId, RevisionOrigin, RevisionSummary, StoredRevision, text_digest};
use crate::rule_installer::{
    FirstRules, InstallSettings, RuleInstaller, RuleSourceError, RuleStatus, SourcedRevision, SourcedRules,
};
use crate::rule_owner::FollowedControlPlane;
use crate::source_thread::{FollowedRules, SourceHealth, SourceSignals};
use http::header::{ACCEPT, IF_NONE_MATCH};
use http::{HeaderValue, Method};
use serde::Deserialize;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tollgate_core::time::UnixTime;
use tollgate_limiter::Limiter;

const RULES: &str = "/v1/rules";
/// Only changes: live figures would be sent every second.
const EVENTS: &str = "/v1/events/stream?only=changes";
/// A stream without any event or comment for so long is dead.
const QUIET_STREAM: Duration = Duration::from_secs(45);
/// A control plane that takes longer to answer is unavailable.
const REPLY_TIME: Duration = Duration::from_secs(5);
/// Between two attempts to open the stream.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// The rules of a control plane, in force in a limiter.
pub struct ControlPlaneRules {
    client: HttpClient,
    /// The name of the control plane as a source.
    place: String,
    installer: RuleInstaller,
    limiter: Arc<Limiter>,
    current: Option<RevisionId>,
    /// The revision in force, as others see it.
    in_force: watch::Sender<Option<Arc<StoredRevision>>>,
    /// The control state in force, as others see it.
    state: watch::Sender<Option<Arc<ControlState>>>,
    /// A revision that is older than the one in force, so that it is reported once.
    older: Option<RevisionId>,
    health: SourceHealth,
    poll_every: Duration,
}

/// The rules as a control plane sends them.
#[derive(Deserialize)]
struct RulesReply {
    revision: u64,
    #[serde(default)]
    author: String,
    #[serde(default)]
    time: String,
    #[serde(default)]
    message: String,
    origin: RevisionOrigin,
    yaml: String,
}

impl fmt::Debug for ControlPlaneRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlaneRules").field("client", &self.client).finish_non_exhaustive()
    }
}

impl ControlPlaneRules {
    /// Puts the rules of the control plane in force, or, if it cannot be read, the last good ones. Without these it is
    /// an error. May block on the disk.
    pub async fn open(
        client: HttpClient,
        poll_every: Duration,
        settings: InstallSettings,
        limiter: Arc<Limiter>,
    ) -> Result<Self, RuleSourceError> {
        let place = client.url();
        let installer = RuleInstaller::new(settings, Arc::clone(&limiter));
        let installer = installer.map_err(|error| RuleSourceError::Read { origin: place.clone(), error })?;
        let mut rules = Self {
            client,
            place,
            installer,
            limiter,
            current: None,
            in_force: watch::Sender::default(),
            state: watch::Sender::default(),
            older: None,
            health: SourceHealth::default(),
            poll_every,
        };
        let read = match rules.fetch().await {
            Ok(Some(revision)) => Ok(revision),
            Ok(None) => Err(io::Error::other("it sent no rules")),
            Err(error) => Err(error),
        };
        if read.is_err() {
            rules.health.record_failure();
        }
        let origin = rules.place.clone();
        let read = read.map_err(|error| RuleSourceError::Read { origin, error });
        let fetched = read.as_ref().ok().cloned();
        let kept = rules.installer.last_good(&rules.place).and_then(|kept| kept.revision);
        if let (Some(fetched), Some(kept)) = (&fetched, &kept)
            && fetched.summary.number < kept.number
        {
            tracing::warn!(
                control_plane = rules.place,
                revision = fetched.summary.number,
                last = kept.number,
                "control plane has an older revision than this node had before its restart; it is used"
            );
        }
        let read = read.map(|revision| rules.sourced(revision));
        let first = match rules.installer.load_first(&rules.place, read)? {
            FirstRules::OfSource => fetched,
            FirstRules::LastGood(kept) => {
                kept.revision.map(|summary| StoredRevision { summary, text: kept.text })
            }
        };
        if let Some(first) = first {
            rules.note_in_force(first);
        }
        Ok(rules)
    }

    fn note_in_force(&mut self, revision: StoredRevision) {
        self.current = Some(revision.summary.id());
        self.in_force.send_replace(Some(Arc::new(revision)));
    }

    /// What the node has of the control plane, now and after every change.
    pub fn followed(&self) -> FollowedControlPlane {
        FollowedControlPlane {
            url: self.place.clone(),
            revision: self.in_force.subscribe(),
            state: self.state.subscribe(),
        }
    }

    /// The state of the source, now and after every change.
    pub fn status(&self) -> watch::Receiver<RuleStatus> {
        self.installer.status()
    }

    /// How the polls fare.
    pub fn health(&self) -> SourceHealth {
        self.health.clone()
    }

    /// Follows the control plane, in a thread of its own, until it is dropped. Needs a tokio runtime.
    pub fn follow(self) -> io::Result<FollowedRules> {
        FollowedRules::start(Handle::current(), |signals| self.run(signals))
    }

    async fn run(mut self, mut signals: SourceSignals) {
        let told = ChangeSignals::default();
        // Tasks of their own: while rules are tested, this one blocks.
        let events = tokio::spawn(keep_listening(self.client.clone(), told.clone()));
        let state = ControlPlaneState {
            client: self.client.clone(),
            limiter: Arc::clone(&self.limiter),
            state: self.state.clone(),
            is_told: told.control_state,
            poll_every: self.poll_every,
        };
        let state = tokio::spawn(state.follow());
        let reload = signals.reload();
        tokio::select! {
            biased;
            () = signals.stopped() => {}
            () = self.follow_events(&told.rules, &reload) => {}
        }
        events.abort();
        state.abort();
    }

    async fn follow_events(&mut self, is_told: &Notify, reload: &Notify) {
        loop {
            tokio::select! {
                () = is_told.notified() => {}
                () = reload.notified() => {}
                () = sleep(self.poll_every) => {}
            }
            self.poll().await;
        }
    }

    async fn poll(&mut self) {
        match self.fetch().await {
            Ok(revision) => {
                let failed = self.health.record_success();
                if failed > 0 {
                    tracing::info!(failed, control_plane = self.place, "control plane answers again");
                }
                if let Some(revision) = revision {
                    self.consider(revision);
                }
            }
            Err(error) => {
                if self.health.record_failure() == 0 {
                    tracing::warn!(
                        control_plane = self.place,
                        %error,
                        "control plane cannot be polled; the rules in force stay"
                    );
                }
            }
        }
    }

    fn consider(&mut self, revision: StoredRevision) {
        let id = revision.summary.id();
        if let Some(current) = &self.current {
            if id == *current && self.installer.is_current() {
                return;
            }
            if id.number < current.number {
                if self.older.as_ref() != Some(&id) {
                    tracing::error!(
                        control_plane = self.place,
                        revision = id.number,
                        in_force = current.number,
                        "control plane has an older revision than this node; it is not used"
                    );
                }
                self.older = Some(id);
                return;
            }
            if id.number == current.number && id.digest != current.digest {
                tracing::warn!(
                    revision = id.number,
                    "control plane has another revision of this number than this node; using the one of the control plane"
                );
            }
        }
        if self.installer.update(&self.place, Ok(self.sourced(revision.clone()))) {
            self.note_in_force(revision);
        }
    }

    fn sourced(&self, revision: StoredRevision) -> SourcedRules {
        let StoredRevision { summary, text } = revision;
        let origin = format!("revision {} of {}", summary.number, self.place);
        SourcedRules { text, revision: SourcedRevision::Stored(summary), origin }
    }

    /// The newest revision; none if it is the one in force.
    async fn fetch(&self) -> io::Result<Option<StoredRevision>> {
        let current = self.current.as_ref().filter(|_| self.installer.is_current());
        // Two revisions may have the same number, if the control plane was restored from a backup.
        let path = match current {
            Some(current) => format!("{RULES}?digest={}", current.digest),
            None => RULES.to_owned(),
        };
        let mut call = HttpCall::new(Method::GET, path)
            .with_header(ACCEPT, HeaderValue::from_static("application/json"));
        let tag = current.and_then(|current| HeaderValue::from_str(&format!("\"{}\"", current.number)).ok());
        let is_conditional = tag.is_some();
        if let Some(tag) = tag {
            call = call.with_header(IF_NONE_MATCH, tag);
        }
        let reply = timeout(REPLY_TIME, self.client.send(call)).await;
        let reply = reply.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)?;
        if is_conditional && reply.status.is_redirection() {
            return Ok(None);
        }
        if !reply.status.is_success() {
            return Err(io::Error::other(refusal(reply.status)));
        }
        let rules: RulesReply = serde_json::from_slice(&reply.body).map_err(io::Error::other)?;
        Ok(Some(rules.into()))
    }
}

impl From<RulesReply> for StoredRevision {
    fn from(reply: RulesReply) -> Self {
        let RulesReply { revision, author, time, message, origin, yaml } = reply;
        let time = humantime::parse_rfc3339_weak(&time).ok();
        let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let time = UnixTime::from_us(since.map_or(0, |since| since.as_micros() as u64));
        let digest = text_digest(&yaml);
        let summary = RevisionSummary { number: revision, digest, author, time, message, origin };
        Self { summary, text: yaml }
    }
}

/// What the events of the control plane tell.
#[derive(Clone, Debug, Default)]
struct ChangeSignals {
    /// There may be a new revision.
    rules: Arc<Notify>,
    /// The control state may have changed.
    control_state: Arc<Notify>,
}

/// Tells of each change, and whenever one may have been missed.
async fn keep_listening(client: HttpClient, told: ChangeSignals) {
    let mut has_failed = false;
    loop {
        match client.events(EVENTS).await {
            Ok(mut events) => {
                has_failed = false;
                told.rules.notify_one();
                told.control_state.notify_one();
                while let Ok(Some(event)) = timeout(QUIET_STREAM, events.next()).await {
                    match event.name.as_str() {
                        "revision" => told.rules.notify_one(),
                        "control_state" => told.control_state.notify_one(),
                        _ => {}
                    }
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(%error, "events of the control plane cannot be read; polling instead");
                }
            }
        }
        sleep(REOPEN_AFTER).await;
    }
}
