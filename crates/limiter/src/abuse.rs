//! Abuse detection: hot keys and penalties.
//!
//! - *Hot keys.* A sample of the checks finds keys above [`AbuseSettings::hot_per_second`], which are
//!   reported. A key that stays hot and is mostly refused can be *denied* for a limited time.
//! - *Penalties.* Under rules with a penalty, a client that ignores `Retry-After` gets growing cooldowns
//!   ([`tollgate_core::penalty`]).
//!
//! Both add an entry to the table of holds ([`holds`]). A held client is refused like a client over a limit, with the
//! exact wait. A hold always ends, and its status is never 403. Holds are local to a node, also if the limits are shared.

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
pub(crate) use hot::fingerprint;
pub(crate) use label::Label;
pub(crate) use samples::{ONE_IN, SampleOutcome};

/// The settings of hot keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbuseSettings {
    /// A key with more requests in a second is reported.
    pub hot_per_second: u32,
    /// Whether a key that stays hot and is mostly refused is denied for a time. Not by default.
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
    /// The time for which it must be hot without a break, with nine in ten of its requests refused.
    pub after: Duration,
    /// The length of the denial. The next one needs the full time of `after` again.
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

/// Counts of abuse detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbuseCounts {
    /// Keys that were hot, counted once for each second.
    pub hot_keys: u64,
    /// Denials of hot keys.
    pub denials: u64,
    /// Cooldowns.
    pub cooldowns: u64,
    /// The number of clients that are denied or in a cooldown now.
    pub held: usize,
}

/// The holds of this node, and its hot keys.
#[derive(Debug)]
pub(crate) struct Abuse {
    settings: AbuseSettings,
    /// The terms in the refusal of a denied client.
    terms: LimitTerms,
    holds: Holds,
    /// Set if a rule has a penalty.
    conducts: OnceLock<Conducts>,
    /// In a box of its own: it is written with every sample, and the fields beside it are read with every check.
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

    /// Allocates what `rules` need, so that no check has to.
    pub(crate) fn prepare(&self, rules: &RuleSet) {
        if rules.has_penalties() {
            self.conducts.get_or_init(Conducts::new);
        }
    }

    /// Whether any client may be held, or the emergency limit is on.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.holds.is_holding()
    }

    /// Has every check look at the emergency limit, or not.
    pub(crate) fn set_guarded(&self, guarded: bool) {
        self.holds.set_guarded(guarded);
    }

    /// Records that a sampled check, counted before it was decided, is refused.
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
    /// Sets the settings of hot keys.
    #[must_use]
    pub fn watching(mut self, settings: AbuseSettings) -> Self {
        self.abuse = Abuse::new(settings, self.clock().now());
        self.switch_emergency(Some(self.emergency()));
        self
    }

    /// The hot keys of the last second, the hottest first, at most 64.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.abuse.hot.lock().list(self.clock().now())
    }

    /// The hot key of the client of `request`, if it is hot.
    pub fn hot_key(&self, request: &Request<'_>) -> Option<HotKey> {
        let (key, _) = watched(self.seed(), request);
        self.abuse.hot.lock().find(key, self.clock().now())
    }

    /// The counts of abuse detection.
    pub fn abuse_counts(&self) -> AbuseCounts {
        let counts = &self.abuse.counts;
        AbuseCounts {
            hot_keys: counts.hot_keys.load(Ordering::Relaxed),
            denials: counts.denials.load(Ordering::Relaxed),
            cooldowns: counts.cooldowns.load(Ordering::Relaxed),
            held: self.abuse.holds.count(self.clock().now()),
        }
    }

    /// Ends all holds of the client of `request` and removes its records. Returns whether it was held.
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

    /// The holds of the client of `request` on this node: why, and for how many microseconds more.
    pub fn holds_of(&self, request: &Request<'_>) -> Vec<(&'static str, u64)> {
        let now = self.clock().now();
        let denial = self.denial(request, now).and_then(|status| status.wait_us());
        let denial = denial.map(|wait_us| ("denied as a hot key", wait_us));
        let until = self.conduct_keys(request).into_iter().map(|key| self.abuse.holds.until(key));
        let cooldown = until.max().filter(|until| *until > now);
        let cooldown = cooldown.map(|until| ("cooldown after ignored waits", until.since(now)));
        denial.into_iter().chain(cooldown).collect()
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

    /// Counts a sampled request. Returns the key of its client.
    pub(crate) fn count_sample(&self, request: &Request<'_>, outcome: SampleOutcome) -> u64 {
        let (key, identity) = watched(self.seed(), request);
        self.abuse.hot.lock().add(key, &identity, outcome);
        key
    }

    /// The refusal of a held client, with the longest wait of its holds and of the limits that apply. Spends nothing and
    /// calls no store. Called only while any client is held.
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
        // A request that can never be admitted is invalid, and gets no wait.
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

    /// The refusal of a client that is denied as a hot key.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse_denied(&self, request: &Request<'_>) -> Option<Decision> {
        let now = self.clock().now();
        Some(refusal(self.denial(request, now)?, self.abuse.terms, now))
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

    /// Records a refusal by a rule with a penalty. It may start a cooldown, which is then the wait of the refusal.
    ///
    /// `charge_of` finds the charge that was refused; none if other clients spend from its state as well.
    #[inline]
    pub(crate) fn note_refusal<'r>(
        &self,
        rules: &'r RulesInForce,
        decision: &mut Decision,
        charge_of: impl FnOnce(LimitId) -> Option<Charge<'r>>,
    ) {
        if let Outcome::Limited(standing) = &mut decision.outcome
            && rules.set.has_penalties()
            // Without the store the wait is a guess.
            && !decision.degraded
            && let Some(charge) = charge_of(standing.limit)
        {
            self.penalize(&rules.set, charge, standing, decision.now);
        }
    }

    // By value: the charge of an admitted request can then stay in registers.
    #[inline(never)]
    fn penalize(&self, rules: &RuleSet, charge: Charge<'_>, standing: &mut LimitStatus, now: UnixTime) {
        let (Some(penalty), Some(key)) = (&rules.rule_of(charge.id).penalty, rules.penalty_key(&charge))
        else {
            return;
        };
        let conducts = self.abuse.conducts.get_or_init(Conducts::new);
        // Without a retry time there is none to ignore.
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
        granted: false,
    }
}

/// The key and identity that a request is counted by: its user, else its API key, else its address, else any other identity.
pub(crate) fn watched<'a>(seed: &KeySeed, request: &Request<'a>) -> (u64, Identity<'a>) {
    let identity = identity(&Dimension::Named(NamedIdentity::User), Ipv6Prefix::default(), request, 0);
    (seed.chain(0, &identity), identity)
}
