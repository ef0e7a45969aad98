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

/// Keeps what was used, as long as the rule stays; another rule finds the room that was left.
macro_rules! keeps_what_was_used {
    ($algorithm:ident) => {
        #[derive(Default)]
        pub struct $algorithm {
            used: Option<Counted>,
        }

        impl Oracle for $algorithm {
            draws_buckets!($algorithm);

            fn settle(&mut self, rule: &Bucket, now_us: u64) {
                if self.used.is_some_and(|used| used.is_beyond(rule, now_us)) {
                    let parts = used_under(self.used, rule);
                    self.used = Some(Counted { rule: *rule, parts, at_us: rule.clock(now_us) });
                }
            }

            fn admits(&self, rule: &Bucket, now_us: u64, cost: u32) -> bool {
                level(self.used, rule, now_us) + i128::from(cost) * rule.parts() <= rule.full()
            }

            fn spend(&mut self, rule: &Bucket, now_us: u64, cost: u32) {
                let parts = level(self.used, rule, now_us) + i128::from(cost) * rule.parts();
                let at_us = Counted::since(self.used, rule, now_us).max(rule.clock(now_us));
                self.used = Some(Counted { rule: *rule, parts, at_us });
            }

            fn remaining(&self, rule: &Bucket, now_us: u64) -> u32 {
                ((rule.full() - level(self.used, rule, now_us)) / rule.parts()) as u32
            }

            fn is_fresh(&self, rule: &Bucket, now_us: u64) -> bool {
                level(self.used, rule, now_us) == 0
            }
        }
    };
}

keeps_what_was_used!(LeakyBucket);
keeps_what_was_used!(Gcra);

/// What was used when it was counted, read under this rule: a fraction of room in another unit is lost.
fn used_under(used: Option<Counted>, rule: &Bucket) -> i128 {
    let Some(used) = used else { return 0 };
    let room = Counted { parts: used.rule.full() - used.parts, ..used };
    let (whole, fraction) = room.split(rule);
    rule.full() - (whole * rule.parts() + fraction.unwrap_or(0)).min(rule.full())
}

fn level(used: Option<Counted>, rule: &Bucket, now_us: u64) -> i128 {
    let elapsed = rule.clock(now_us) - Counted::since(used, rule, now_us);
    (used_under(used, rule) - rule.flow(elapsed)).max(0)
}
