//! The bucket family. Tokens are counted in 1/(seconds · 10^6), of which one microsecond brings `tokens`.

use super::Oracle;
use crate::sample::Bucket;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::Limit;

impl Bucket {
    /// The parts of which one token is made.
    fn parts(&self) -> i128 {
        i128::from(self.seconds) * 1_000_000
    }

    fn full(&self) -> i128 {
        i128::from(self.capacity) * self.parts()
    }

    /// The parts that flow in so many microseconds.
    fn flow(&self, us: i128) -> i128 {
        us.max(0) * i128::from(self.tokens)
    }

    /// The limit's clock: the start of the tick.
    fn clock(&self, now_us: u64) -> i128 {
        i128::from(now_us - now_us % self.tick_us)
    }

    /// A stored instant on that clock: the next tick, if it was written on a finer one.
    fn stored(&self, us: i128) -> i128 {
        let tick_us = i128::from(self.tick_us);
        (us + tick_us - 1) / tick_us * tick_us
    }

    /// The ticks from empty to full, in microseconds.
    fn span_us(&self) -> i128 {
        let tokens = i128::from(self.tokens);
        self.stored((self.full() + tokens - 1) / tokens)
    }

    /// Tokens per period of whole ticks, in lowest terms.
    fn amount_and_period(&self) -> (i128, i128) {
        let amount = i128::from(self.tokens) * i128::from(self.tick_us);
        let (mut divisor, mut rest) = (amount, self.parts());
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        (amount / divisor, self.parts() / divisor)
    }

    /// Whether a fraction of a token means the same under both rules.
    fn same_fractions(&self, other: &Self) -> bool {
        self.tick_us == other.tick_us && self.amount_and_period().1 == other.amount_and_period().1
    }

    /// Whether a fraction of a tick means the same under both rules.
    fn same_remainders(&self, other: &Self) -> bool {
        self.tick_us == other.tick_us && self.amount_and_period().0 == other.amount_and_period().0
    }
}

/// `value / from` in parts of 1/`to`, which comes out even.
fn converted(value: i128, from: i128, to: i128) -> i128 {
    assert_eq!(value * to % from, 0, "a fraction of the same unit has to come out even");
    value * to / from
}

/// Parts that were counted under a rule, at an instant of its clock.
#[derive(Clone, Copy)]
struct Counted {
    rule: Bucket,
    parts: i128,
    at_us: i128,
}

impl Counted {
    /// The whole tokens and, if its unit still means the same, the fraction in parts of the new rule.
    fn split(&self, rule: &Bucket) -> (i128, Option<i128>) {
        let (whole, fraction) = (self.parts / self.rule.parts(), self.parts % self.rule.parts());
        let known = fraction == 0 || self.rule.same_fractions(rule);
        (whole, known.then(|| converted(fraction, self.rule.parts(), rule.parts())))
    }

    fn is_beyond(&self, rule: &Bucket, now_us: u64) -> bool {
        rule.stored(self.at_us) - rule.clock(now_us) > rule.span_us()
    }

    /// The instant from which time counts, which is ahead of the clock after it stepped back.
    fn since(stored: Option<Self>, rule: &Bucket, now_us: u64) -> i128 {
        let clock = rule.clock(now_us);
        stored.map_or(clock, |stored| rule.stored(stored.at_us))
    }
}

macro_rules! draws_buckets {
    ($algorithm:ident) => {
        type Rule = Bucket;
        const ALGORITHM: Algorithm = Algorithm::$algorithm;

        fn draw(rng: &mut fastrand::Rng) -> Bucket {
            Bucket::draw(rng)
        }
        fn edited(rule: &Bucket, rng: &mut fastrand::Rng) -> Bucket {
            rule.edited(rng)
        }
        fn limit(rule: &Bucket) -> Limit {
            rule.limit(Self::ALGORITHM)
        }
    };
}

/// Keeps what is left.
#[derive(Default)]
pub struct TokenBucket {
    left: Option<Counted>,
}

impl TokenBucket {
    /// What was left when it was counted, read under this rule: a fraction of another unit is lost.
    fn carried(&self, rule: &Bucket) -> i128 {
        let Some(left) = self.left else { return rule.full() };
        let (whole, fraction) = left.split(rule);
        (whole * rule.parts() + fraction.unwrap_or(0)).min(rule.full())
    }

    fn level(&self, rule: &Bucket, now_us: u64) -> i128 {
        let elapsed = rule.clock(now_us) - Counted::since(self.left, rule, now_us);
        (self.carried(rule) + rule.flow(elapsed)).min(rule.full())
    }
}

impl Oracle for TokenBucket {
    draws_buckets!(TokenBucket);

    fn settle(&mut self, rule: &Bucket, now_us: u64) {
        if self.left.is_some_and(|left| left.is_beyond(rule, now_us)) {
            let parts = self.carried(rule);
            self.left = Some(Counted { rule: *rule, parts, at_us: rule.clock(now_us) });
        }
    }

    fn admits(&self, rule: &Bucket, now_us: u64, cost: u32) -> bool {
        self.level(rule, now_us) >= i128::from(cost) * rule.parts()
    }

    fn spend(&mut self, rule: &Bucket, now_us: u64, cost: u32) {
        let parts = self.level(rule, now_us) - i128::from(cost) * rule.parts();
        let at_us = Counted::since(self.left, rule, now_us).max(rule.clock(now_us));
        self.left = Some(Counted { rule: *rule, parts, at_us });
    }

    fn remaining(&self, rule: &Bucket, now_us: u64) -> u32 {
        (self.level(rule, now_us) / rule.parts()) as u32
    }

    fn is_fresh(&self, rule: &Bucket, now_us: u64) -> bool {
        self.level(rule, now_us) == rule.full()
    }
}

/// Keeps what was used.
#[derive(Default)]
pub struct LeakyBucket {
    used: Option<Counted>,
}

impl LeakyBucket {
    /// What was used when it was counted, read under this rule: a fraction of another unit is a whole.
    fn carried(&self, rule: &Bucket) -> i128 {
        let Some(used) = self.used else { return 0 };
        let (whole, fraction) = used.split(rule);
        (whole * rule.parts() + fraction.unwrap_or(rule.parts())).min(rule.full())
    }

    fn level(&self, rule: &Bucket, now_us: u64) -> i128 {
        let elapsed = rule.clock(now_us) - Counted::since(self.used, rule, now_us);
        (self.carried(rule) - rule.flow(elapsed)).max(0)
    }
}

impl Oracle for LeakyBucket {
    draws_buckets!(LeakyBucket);

    fn settle(&mut self, rule: &Bucket, now_us: u64) {
        if self.used.is_some_and(|used| used.is_beyond(rule, now_us)) {
            let parts = self.carried(rule);
            self.used = Some(Counted { rule: *rule, parts, at_us: rule.clock(now_us) });
        }
    }

    fn admits(&self, rule: &Bucket, now_us: u64, cost: u32) -> bool {
        self.level(rule, now_us) + i128::from(cost) * rule.parts() <= rule.full()
    }

    fn spend(&mut self, rule: &Bucket, now_us: u64, cost: u32) {
        let parts = self.level(rule, now_us) + i128::from(cost) * rule.parts();
        let at_us = Counted::since(self.used, rule, now_us).max(rule.clock(now_us));
        self.used = Some(Counted { rule: *rule, parts, at_us });
    }

    fn remaining(&self, rule: &Bucket, now_us: u64) -> u32 {
        ((rule.full() - self.level(rule, now_us)) / rule.parts()) as u32
    }

    fn is_fresh(&self, rule: &Bucket, now_us: u64) -> bool {
        self.level(rule, now_us) == 0
    }
}

/// Keeps until when it is booked.
#[derive(Default)]
pub struct Gcra {
    booked: Option<Booked>,
}

/// A theoretical arrival time, in 1/`rule.tokens` µs: one token is then `rule.parts()` of these.
#[derive(Clone, Copy)]
struct Booked {
    rule: Bucket,
    until: i128,
}

impl Booked {
    /// The same under this rule, which reads the tick and the remainder apart.
    fn under(&self, rule: &Bucket) -> i128 {
        let whole_tick = i128::from(self.rule.tokens) * i128::from(self.rule.tick_us);
        let (ticks, remainder) = (self.until / whole_tick, self.until % whole_tick);
        let at = rule.stored(ticks * i128::from(self.rule.tick_us)) * i128::from(rule.tokens);
        if remainder == 0 {
            at
        } else if self.rule.same_remainders(rule) {
            at + converted(remainder, i128::from(self.rule.tokens), i128::from(rule.tokens))
        } else {
            at + i128::from(rule.tokens) * i128::from(rule.tick_us)
        }
    }
}

impl Gcra {
    /// What is booked beyond the present.
    fn owed(&self, rule: &Bucket, now_us: u64) -> i128 {
        let now = rule.clock(now_us) * i128::from(rule.tokens);
        self.booked.map_or(0, |booked| (booked.under(rule) - now).max(0))
    }
}

impl Oracle for Gcra {
    draws_buckets!(Gcra);

    /// Nobody is booked further ahead than one capacity beyond what can be booked.
    fn settle(&mut self, rule: &Bucket, now_us: u64) {
        let beyond = |booked: Booked| {
            let tick = i128::from(booked.rule.tokens) * i128::from(booked.rule.tick_us);
            let at_us = booked.until / tick * i128::from(booked.rule.tick_us);
            rule.stored(at_us) - rule.clock(now_us) > 2 * rule.span_us()
        };
        if self.booked.is_some_and(beyond) {
            let now = rule.clock(now_us) * i128::from(rule.tokens);
            self.booked = Some(Booked { rule: *rule, until: now + rule.full() });
        }
    }

    fn admits(&self, rule: &Bucket, now_us: u64, cost: u32) -> bool {
        self.owed(rule, now_us) + i128::from(cost) * rule.parts() <= rule.full()
    }

    fn spend(&mut self, rule: &Bucket, now_us: u64, cost: u32) {
        let now = rule.clock(now_us) * i128::from(rule.tokens);
        let until = now + self.owed(rule, now_us) + i128::from(cost) * rule.parts();
        self.booked = Some(Booked { rule: *rule, until });
    }

    fn remaining(&self, rule: &Bucket, now_us: u64) -> u32 {
        ((rule.full() - self.owed(rule, now_us)).max(0) / rule.parts()) as u32
    }

    fn is_fresh(&self, rule: &Bucket, now_us: u64) -> bool {
        self.owed(rule, now_us) == 0
    }
}
