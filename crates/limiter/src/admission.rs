//! Letting requests in: as [`Limiter::check`], but for doors that can wait and that know when a request ends.
//!
//! Most requests meet no rule for which that matters, and are decided as by `check`. The others are charged step
//! by step: first a place among the requests in flight, then everything else, all or nothing. A request over a limit
//! may wait in a [`wait_queue`], be let pass because the node has room (a [`rule_load`]), or be refused late. What is
//! held until the request ends is its [`Permit`].

mod attempt;
mod in_flight;
mod permit;
mod rule_load;
mod wait_queue;
mod waiting;

use crate::decision::{Check, Decision};
use crate::limit_names::LimitNames;
use crate::limiter::Limiter;
use crate::memo::Caches;
use crate::metrics::DecisionOutcome;
use crate::pending::Pending;
use crate::prepare::{Prepared, charges};
use crate::refusal::DoorKind;
use crate::snapshot::{Snapshot, takes_time};
use attempt::PendingAdmission;
use in_flight::InFlight;
pub use permit::Permit;
use rule_load::RuleLoads;
use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use tollgate_core::decision::{InvalidRequest, validate};
use tollgate_core::request::Request;
use tollgate_core::rules::written::OnExceed;
use wait_queue::WaitQueues;

/// What a limiter knows of requests that wait or are in flight.
#[derive(Debug, Default)]
pub(crate) struct Admissions {
    pub(crate) wait_queues: WaitQueues,
    pub(crate) in_flight: InFlight,
    pub(crate) rule_loads: RuleLoads,
}

impl Admissions {
    pub(crate) fn tidy(&self, now_us: u64) {
        self.in_flight.tidy(now_us);
    }
}

/// What [`Limiter::admit`] answers.
#[derive(Debug)]
pub enum Admit<'l> {
    /// It is decided.
    Decided(Admission),
    /// The shared store has to be heard first, or a rule lets the request wait.
    Pending(Admitting<'l>),
}

/// An admission on its way. Dropped, it gives up its place.
#[must_use = "it has to be awaited"]
pub struct Admitting<'l>(AdmissionWait<'l>);

enum AdmissionWait<'l> {
    Store(Pending<'l>),
    Long(Pin<Box<dyn Future<Output = Admission> + Send>>),
}

/// A decision, and what the request holds until it has ended.
#[derive(Debug)]
pub struct Admission {
    /// The decision.
    pub decision: Decision,
    /// To be kept until the request has ended, and dropped then.
    pub permit: Option<Permit>,
    /// Why the decision came late, if a rule delayed it.
    pub delay: Option<AdmissionDelay>,
}

/// Why a decision came late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionDelay {
    /// The request waited in a queue.
    Queued,
    /// The answer was held back.
    Tarpitted,
}

impl Admission {
    /// The outcome, as metrics and logs name it.
    pub fn outcome(&self) -> DecisionOutcome {
        match (DecisionOutcome::of(&self.decision), self.delay) {
            (DecisionOutcome::Degraded, _) => DecisionOutcome::Degraded,
            (_, Some(AdmissionDelay::Tarpitted)) => DecisionOutcome::Tarpitted,
            (_, Some(AdmissionDelay::Queued)) if self.decision.allowed() => DecisionOutcome::Queued,
            (outcome, _) => outcome,
        }
    }
}

/// What the upstream is to be told of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flagged {
    /// The header, in lower case.
    pub header: &'static str,
    /// The rule that flags it.
    pub rule: &'static str,
    /// It is within the limit, but in the soft part.
    pub is_soft: bool,
}

impl Flagged {
    /// What the header says: the rule, and `;soft` if the request is within the limit.
    pub fn value(&self) -> Cow<'static, str> {
        if self.is_soft { format!("{};soft", self.rule).into() } else { self.rule.into() }
    }
}

impl Decision {
    /// What the upstream is to be told.
    pub fn flags(&self) -> impl Iterator<Item = Flagged> {
        let flag = |names: &'static LimitNames, said: &'static OnExceed, is_soft| match said {
            OnExceed::Flag(flag) => Some(Flagged { header: &flag.header, rule: &names.rule, is_soft }),
            _ => None,
        };
        let over = self.flagged_by.and_then(|names| flag(names, &names.on_exceed, false));
        let soft = self.soft.and_then(|names| flag(names, &names.soft.as_ref()?.then, true));
        // Of two in the same header, that of the limit which is exceeded.
        let soft = soft.filter(|soft| over.is_none_or(|over| over.header != soft.header));
        over.into_iter().chain(soft)
    }
}

impl Admit<'_> {
    /// The admission, waiting for it if need be.
    pub async fn admission(self) -> Admission {
        match self {
            Self::Decided(admission) => admission,
            Self::Pending(admitting) => admitting.admission().await,
        }
    }
}

impl Admitting<'_> {
    /// Waits for it.
    pub async fn admission(self) -> Admission {
        match self.0 {
            AdmissionWait::Store(pending) => pending.decision().await.into(),
            AdmissionWait::Long(admission) => admission.await,
        }
    }
}

impl fmt::Debug for Admitting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admitting(…)")
    }
}

impl From<Decision> for Admission {
    fn from(decision: Decision) -> Self {
        Self { decision, permit: None, delay: None }
    }
}

impl Limiter {
    /// Lets `request` in, now or when its turn comes, or refuses it. Waiting needs a tokio runtime with time.
    pub fn admit(self: &Arc<Self>, request: &Request<'_>) -> Result<Admit<'_>, InvalidRequest> {
        validate(request)?;
        let found = self.with_snapshot(|snapshot, caches| {
            if snapshot.rules.takes_time
                && let Some(found) = self.prepare_wait(snapshot, caches, request)?
            {
                return Ok(found);
            }
            self.judge(snapshot, caches, request).map(AdmitPath::Checked)
        })?;
        Ok(match found {
            AdmitPath::Checked(Check::Decided(decision)) => Admit::Decided(decision.into()),
            AdmitPath::Checked(Check::Pending(pending)) => {
                Admit::Pending(Admitting(AdmissionWait::Store(pending)))
            }
            AdmitPath::PendingAdmission(asked) => {
                let admission = Box::pin(waiting::admission(Arc::clone(self), *asked));
                Admit::Pending(Admitting(AdmissionWait::Long(admission)))
            }
        })
    }

    /// What becomes of a request under rules that take time; none if it meets no such rule.
    fn prepare_wait(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        request: &Request<'_>,
    ) -> Result<Option<AdmitPath<'_>>, InvalidRequest> {
        let hashes = self.hashes(request);
        let selection = match self.prepare(snapshot, caches, request, &hashes, DoorKind::CanWait) {
            Prepared::Decided(decision) => {
                let mut check = decision.into();
                if caches.is_sampled() {
                    self.note_sample(request, &mut check);
                }
                return Ok(Some(AdmitPath::Checked(check)));
            }
            Prepared::Selected(selection) => selection,
        };
        let rules = &snapshot.rules;
        let charges = charges(rules, selection, request, &hashes, DoorKind::CanWait)?;
        if !charges.iter().any(|charge| takes_time(rules.set.rule_of(charge.id), charge.limit)) {
            return Ok(None);
        }
        let mut asked = PendingAdmission::new(self, snapshot, &charges, request, selection.route());
        asked.watched = caches.is_sampled().then(|| self.count_sample(request, false));
        Ok(Some(AdmitPath::PendingAdmission(Box::new(asked))))
    }

    /// Says how loaded this node is, in thousandths, from what else is known of it. Rules that shed take the higher
    /// of this and of what they count themselves.
    pub fn set_load(&self, permille: u32) {
        self.admissions.rule_loads.set_load(permille);
    }
}

enum AdmitPath<'l> {
    Checked(Check<'l>),
    PendingAdmission(Box<PendingAdmission>),
}
