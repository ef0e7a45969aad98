//! Admission: [`Limiter::check`] for doors that can wait and that know when a request ends.
//!
//! Requests without rules for which that matters are decided as by `check`. The others are charged in two steps: first
//! slots for requests in flight, then everything else, all or nothing. A request over a limit may wait in a
//! [`wait_queue`], be admitted because the node has capacity (a [`rule_load`]), or be refused after a delay. A [`Permit`]
//! holds the slots until the request ends.

mod attempt;
mod in_flight;
mod permit;
mod rule_load;
mod wait_queue;
mod waiting;

use crate::abuse::SampleOutcome;
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
use std::sync::atomic::AtomicUsize;
use tollgate_core::decision::{InvalidRequest, validate};
use tollgate_core::request::Request;
use tollgate_core::rules::written::OnExceed;
use tollgate_core::time::UnixTime;
use wait_queue::WaitQueues;

/// The requests that wait or are in flight.
#[derive(Debug, Default)]
pub(crate) struct Admissions {
    pub(crate) wait_queues: WaitQueues,
    pub(crate) in_flight: InFlight,
    pub(crate) rule_loads: RuleLoads,
    /// The slots that permits hold.
    pub(crate) slots: AtomicUsize,
}

impl Admissions {
    pub(crate) fn tidy(&self, now: UnixTime) {
        self.in_flight.tidy(now);
        self.rule_loads.tidy();
    }
}

/// The result of [`Limiter::admit`].
#[derive(Debug)]
pub enum Admit<'l> {
    /// It is decided.
    Decided(Admission),
    /// The shared store has to answer first, or a rule lets the request wait.
    Pending(Admitting<'l>),
}

/// An admission that is not decided yet. Dropped, it leaves its queue.
#[must_use = "it has to be awaited"]
pub struct Admitting<'l>(AdmissionWait<'l>);

enum AdmissionWait<'l> {
    Store(Pending<'l>),
    Long(Pin<Box<dyn Future<Output = Admission> + Send>>),
}

/// A decision, and the permit of the request.
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

/// A flag for the upstream.
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
    /// The value of the header: the rule, and `;soft` if the request is within the limit.
    pub fn value(&self) -> Cow<'static, str> {
        if self.is_soft { format!("{};soft", self.rule).into() } else { self.rule.into() }
    }
}

impl Decision {
    /// The flags for the upstream.
    pub fn flags(&self) -> impl Iterator<Item = Flagged> {
        let flag = |names: &'static LimitNames, action: &'static OnExceed, is_soft| match action {
            OnExceed::Flag(flag) => Some(Flagged { header: &flag.header, rule: &names.rule, is_soft }),
            OnExceed::Reject
            | OnExceed::Shadow
            | OnExceed::Queue(_)
            | OnExceed::Shed(_)
            | OnExceed::Tarpit(_) => None,
        };
        let over = self.flagged_by.and_then(|names| flag(names, &names.on_exceed, false));
        let soft = self.soft.and_then(|names| flag(names, &names.soft.as_ref()?.then, true));
        // Of two flags in one header, that of the exceeded limit is used.
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
    /// Admits `request`, now or when its turn comes, or refuses it. Waiting needs a tokio runtime with time.
    pub fn admit(self: &Arc<Self>, request: &Request<'_>) -> Result<Admit<'_>, InvalidRequest> {
        validate(request).map_err(|error| self.count_invalid(request.door, error))?;
        Ok(match self.find_path(request)? {
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

    fn find_path(&self, request: &Request<'_>) -> Result<AdmitPath<'_>, InvalidRequest> {
        self.with_snapshot(|snapshot, caches| {
            if snapshot.rules.takes_time
                && let Some(found) = self.prepare_wait(snapshot, caches, request)?
            {
                return Ok(found);
            }
            self.judge(snapshot, caches, request).map(AdmitPath::Checked)
        })
    }

    /// Prepares a request under rules that take time; none if no such rule applies.
    fn prepare_wait(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        request: &Request<'_>,
    ) -> Result<Option<AdmitPath<'_>>, InvalidRequest> {
        let hashes = self.hashes(request);
        let (selection, guarded) = match self.prepare(snapshot, caches, request, &hashes, DoorKind::CanWait) {
            Prepared::Decided(decision) => {
                self.count(&snapshot.rules, caches, request, &decision);
                self.sample_decided(&snapshot.rules, caches, request, decision);
                return Ok(Some(AdmitPath::Checked(decision.into())));
            }
            Prepared::Selected(selection) => (selection, None),
            Prepared::Guarded(selection, address) => (selection, Some(address)),
        };
        let rules = &snapshot.rules;
        let charges = charges(rules, selection, request, &hashes, DoorKind::CanWait);
        let charges = charges.map_err(|error| self.count_invalid(request.door, error))?;
        if !charges.iter().any(|charge| takes_time(rules.set.rule_of(charge.id), charge.limit)) {
            return Ok(None);
        }
        let mut asked = PendingAdmission::new(self, snapshot, &charges, request, selection.route());
        if let Some(address) = guarded {
            if let Err(refusal) = self.take_guard(address) {
                self.count(&snapshot.rules, caches, request, &refusal);
                return Ok(Some(AdmitPath::Checked(refusal.into())));
            }
            asked.guarded = guarded;
        }
        asked.labels = caches.labels(request.door);
        let due = caches.next_due(self.clock());
        asked.watched = due.is_sampled.then(|| self.count_sample(request, SampleOutcome::NotRefused));
        asked.late.request = self.copy_for_later(request);
        if let Some(weight) = due.weight.filter(|_| self.is_counting()) {
            self.keep_sample(request, weight);
            asked.late.weigh(weight, request);
        }
        Ok(Some(AdmitPath::PendingAdmission(Box::new(asked))))
    }

    /// Sets the load of this node, in thousandths, from another source. Rules that shed use the higher of this and of
    /// the load that they count.
    pub fn set_load(&self, permille: u32) {
        self.admissions.rule_loads.set_load(permille);
    }
}

enum AdmitPath<'l> {
    Checked(Check<'l>),
    PendingAdmission(Box<PendingAdmission>),
}
