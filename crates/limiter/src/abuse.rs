//! What is done about clients that ask far too much, or that do not listen.
//!
//! - *Hot keys.* A sample of the checks finds keys above [`AbuseSettings::hot_per_second`], which are
//!   reported. A key that stays hot and is mostly refused can be *denied* for a while.
//! - *Penalties.* Under rules that say so, a client that ignores `Retry-After` gets growing cooldowns
//!   ([`tollgate_core::penalty`]).
//!
//! Both end in a table of holds ([`holds`]). A client that is held is refused like a client over a limit,
//! with the true wait; it is never for ever, and never a 403. All of it is this node's own: nodes that share
//! their limits do not share their holds.

mod conducts;
mod holds;
mod hot;
mod label;
mod samples;

use crate::decision::{Check, Decision, NotedLimit};
use crate::limit_names::LimitNames;
use crate::limiter::Limiter;
use crate::prepare::charges;
use crate::refusal::{DoorKind, may_refuse};
use crate::snapshot::{LimitTerms, RulesInForce, Snapshot};
use conducts::Conducts;
use holds::Holds;
use hot::HotKeys;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;
use tollgate_core::decision::{LimitStatus, Outcome};
use tollgate_core::key::{Dimension, Identity, Ipv6Prefix, KeySeed, RequestHasher, identity};
use tollgate_core::request::{NamedIdentity, Request};
use tollgate_core::rules::{Charge, LimitId, RuleSet, Selection};
use tollgate_core::time::UnixTime;

pub use hot::HotKey;
pub(crate) use samples::{ONE_IN, SampleOutcome};

/// What is done about keys that ask far too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbuseSettings {
    /// A key that asks more often in a second is reported.
    pub hot_per_second: u32,
    /// Whether such a key is denied for a while if it goes on, and is mostly refused anyway. Not by default.
    pub deny: Option<TemporaryDeny>,
}

impl Default for AbuseSettings {
    fn default() -> Self {
        Self { hot_per_second: 10_000, deny: None }
    }
}

/// When a hot key is denied, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemporaryDeny {
    /// After it was hot, and nine in ten of its requests were refused, for so long without a break.
    pub after: Duration,
    /// For so long. It then has to earn the next one anew.
    pub lasts: Duration,
}

impl Default for TemporaryDeny {
    fn default() -> Self {
        Self { after: Duration::from_secs(10), lasts: Duration::from_secs(60) }
    }
}

impl TemporaryDeny {
    fn after_us(&self) -> u64 {
        self.after.as_micros().min(u64::MAX.into()) as u64
    }

    /// At least a second, at most a day: longer bans belong on the deny list.
    fn lasts_us(&self) -> u64 {
        self.lasts.clamp(Duration::from_secs(1), Duration::from_secs(86_400)).as_micros() as u64
    }
}

/// How often something was done about abuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbuseCounts {
    /// Keys that were hot, counted once for each second.
    pub hot_keys: u64,
    /// Times a hot key was denied for a while.
    pub denials: u64,
    /// Times a client got a cooldown.
    pub cooldowns: u64,
    /// How many clients are denied or in a cooldown now.
    pub held: usize,
}

/// The holds of this node, and its hot keys.
#[derive(Debug)]
pub(crate) struct Abuse {
    settings: AbuseSettings,
    /// What a denied client is told about.
    terms: LimitTerms,
    holds: Holds,
    /// There if a rule has a penalty.
    conducts: OnceLock<Conducts>,
    /// Apart: it is written with every sample, and what stands beside it is read with every check.
    hot: Box<Mutex<HotKeys>>,
    counts: Box<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    hot_keys: AtomicU64,
    denials: AtomicU64,
    cooldowns: AtomicU64,
}

impl Abuse {
    pub(crate) fn new(settings: AbuseSettings, now: UnixTime) -> Self {
        let settings = AbuseSettings { hot_per_second: settings.hot_per_second.max(1), ..settings };
        static NAMES: LazyLock<LimitNames> = LazyLock::new(|| LimitNames::of_own("hot_key"));
        Self {
            settings,
            terms: LimitTerms { names: &NAMES, quota: settings.hot_per_second, window_seconds: 1 },
            holds: Holds::new(),
            conducts: OnceLock::new(),
            hot: Box::new(Mutex::new(HotKeys::new(now))),
            counts: Box::default(),
        }
    }

    /// Makes room for what `rules` need, so that no check has to.
    pub(crate) fn prepare(&self, rules: &RuleSet) {
        if rules.has_penalties() {
            self.conducts.get_or_init(Conducts::new);
        }
    }

    /// Whether any client may be held.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.holds.is_holding()
    }

    /// A sampled check turned out to be refused, later than it was counted.
    pub(crate) fn record_late_refusal(&self, key: u64) {
        self.hot.lock().record_refusal(key);
    }

    /// Looks at the samples once a second, and removes holds that have ended.
    pub(crate) fn tidy(&self, now: UnixTime) {
        self.holds.tidy(now);
        let Some(look) = self.hot.lock().look(&self.settings, now, |key| self.holds.until(key)) else {
            return;
        };
        for key in &look.denied {
            let lasts_us = self.settings.deny.unwrap_or_default().lasts_us();
            self.holds.hold(*key, now + lasts_us, now);
        }
        self.counts.hot_keys.fetch_add(look.hot as u64, Ordering::Relaxed);
        self.counts.denials.fetch_add(look.denied.len() as u64, Ordering::Relaxed);
        look.report();
    }
}

impl Limiter {
    /// Sets what is done about keys that ask far too often.
    #[must_use]
    pub fn watching(mut self, settings: AbuseSettings) -> Self {
        self.abuse = Abuse::new(settings, self.clock().now());
        self
    }

    /// The keys that asked more often than allowed in the last second, the hottest first. At most a few dozen.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.abuse.hot.lock().list(self.clock().now())
    }

    /// The same for the client of `request` alone.
    pub fn hot_key(&self, request: &Request<'_>) -> Option<HotKey> {
        let (key, _) = watched(self.seed(), request);
        self.abuse.hot.lock().find(key, self.clock().now())
    }

    /// How often something was done about abuse.
    pub fn abuse_counts(&self) -> AbuseCounts {
        let counts = &self.abuse.counts;
        AbuseCounts {
            hot_keys: counts.hot_keys.load(Ordering::Relaxed),
            denials: counts.denials.load(Ordering::Relaxed),
            cooldowns: counts.cooldowns.load(Ordering::Relaxed),
            held: self.abuse.holds.count(self.clock().now()),
        }
    }

    /// Lets the client of `request` go: neither a denial nor a cooldown that it would meet here holds it any longer,
    /// and its conduct is forgotten. Answers whether it was held.
    pub fn pardon(&self, request: &Request<'_>) -> bool {
        let (key, _) = watched(self.seed(), request);
        let mut was_held = self.abuse.holds.release(key);
        self.abuse.hot.lock().pardon(key);
        for key in self.conduct_keys(request) {
            was_held |= self.abuse.holds.release(key);
            if let Some(conducts) = self.abuse.conducts.get() {
                conducts.forget(key);
            }
        }
        was_held
    }

    /// Counts a check that was sampled.
    pub(crate) fn note_sample(&self, request: &Request<'_>, check: &mut Check<'_>) {
        let outcome = match check {
            Check::Decided(Decision { outcome: Outcome::Limited(_), .. }) => SampleOutcome::Refused,
            Check::Decided(_) | Check::Pending(_) => SampleOutcome::NotRefused,
        };
        let key = self.count_sample(request, outcome);
        if let Check::Pending(pending) = check {
            pending.watch(key);
        }
    }

    /// Counts a request that was sampled, and answers by what its client is known.
    pub(crate) fn count_sample(&self, request: &Request<'_>, outcome: SampleOutcome) -> u64 {
        let (key, identity) = watched(self.seed(), request);
        self.abuse.hot.lock().add(key, &identity, outcome);
        key
    }

    /// The refusal of a client that is held, with the longest wait of all that refuse it: of its holds, and of the
    /// limits that it meets, of which nothing is spent and no store is asked. Called only while any client is held.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse_held(
        &self,
        snapshot: &Snapshot,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        door: DoorKind,
    ) -> Option<Decision> {
        let rules = &snapshot.rules;
        let now = self.clock().now();
        let denied = self.denial(request, now);
        if denied.is_none() && !rules.set.has_penalties() {
            return None;
        }
        // A request that can never pass is told so, and not to wait.
        let mut charges = charges(rules, selection, request, hashes, DoorKind::CanWait).ok()?;
        let cooldown = self.cooldown(&rules.set, &charges, now);
        let hold = denied.into_iter().chain(cooldown).max_by_key(|standing| standing.retry_after_us)?;
        charges.retain(|charge| may_refuse(&rules.set, charge, request.cost, door));
        let limited = self.refusal_by_limits(snapshot, &charges, request.cost as u32, now);
        let standing = hold.or_longer(limited);
        let terms =
            if standing.limit == LimitId::NONE { self.abuse.terms } else { rules.terms(standing.limit) };
        Some(refusal(standing, terms, now))
    }

    /// The temporary denial of a key that is hot.
    fn denial(&self, request: &Request<'_>, now: UnixTime) -> Option<LimitStatus> {
        let Abuse { settings, holds, .. } = &self.abuse;
        let longest_us = settings.deny.as_ref()?.lasts_us();
        let (key, _) = watched(self.seed(), request);
        Some(LimitStatus::held(LimitId::NONE, holds.wait_us(key, now, longest_us)?))
    }

    /// The longest cooldown under the rules of `charges`.
    fn cooldown(&self, rules: &RuleSet, charges: &[Charge<'_>], now: UnixTime) -> Option<LimitStatus> {
        let cooldowns = charges.iter().filter_map(|charge| {
            let key = rules.penalty_key(charge)?;
            let longest_us = rules.rule_of(charge.id).penalty?.longest_us;
            Some(LimitStatus::held(charge.id, self.abuse.holds.wait_us(key, now, longest_us)?))
        });
        cooldowns.max_by_key(|standing| standing.retry_after_us)
    }

    /// Takes note of a refusal by a rule with a penalty. It may turn into the first of a cooldown.
    ///
    /// `charge_of` finds the charge that was refused; none if that was not the client's own doing.
    #[inline]
    pub(crate) fn note_refusal<'r>(
        &self,
        rules: &'r RulesInForce,
        decision: &mut Decision,
        charge_of: impl FnOnce(LimitId) -> Option<Charge<'r>>,
    ) {
        if let Outcome::Limited(standing) = &mut decision.outcome
            && rules.set.has_penalties()
            // Without the store it is not known whether the wait was true.
            && !decision.degraded
            && let Some(charge) = charge_of(standing.limit)
        {
            self.penalize(&rules.set, charge, standing, decision.now);
        }
    }

    // The charge as a value: where nothing is refused, it then never has to be written down.
    #[inline(never)]
    fn penalize(&self, rules: &RuleSet, charge: Charge<'_>, standing: &mut LimitStatus, now: UnixTime) {
        let (Some(penalty), Some(key)) = (&rules.rule_of(charge.id).penalty, rules.penalty_key(&charge))
        else {
            return;
        };
        let conducts = self.abuse.conducts.get_or_init(Conducts::new);
        // A client that was told no time ignores none.
        let Some(wait_us) = standing.wait_us() else { return };
        let Some(cooldown_us) = conducts.record_refusal(key, penalty, now, wait_us) else { return };
        self.abuse.holds.hold(key, now + cooldown_us, now);
        self.abuse.counts.cooldowns.fetch_add(1, Ordering::Relaxed);
        standing.extend_wait(cooldown_us);
    }
}

/// The refusal of a client that is held.
fn refusal(standing: LimitStatus, terms: LimitTerms, now: UnixTime) -> Decision {
    Decision {
        outcome: Outcome::Limited(standing),
        terms: Some(terms),
        now,
        shadowed_by: None,
        flagged_by: None,
        soft: None,
        noted: NotedLimit::NONE,
        degraded: false,
        store_unavailable: false,
    }
}

/// The key and identity that a request is counted by: its user, else its API key, else its address, else whatever it names.
fn watched<'a>(seed: &KeySeed, request: &Request<'a>) -> (u64, Identity<'a>) {
    let identity = identity(&Dimension::Named(NamedIdentity::User), Ipv6Prefix::default(), request, 0);
    (seed.chain(0, &identity), identity)
}
