//! Division by a constant as one multiplication.
//!
//! Let d be the divisor and 2^l the first power of two that is not below it. With m = ⌈2^(53+l) / d⌉, for
//! every n < 2^53, ⌊n / d⌋ = ⌊n·m / 2^(53+l)⌋: m is too large by less than 1, so the quotient is too large
//! by less than n / 2^(53+l) < 1/2^l ≤ 1/d, and no multiple of 1/d is that close below the next whole number.

/// See the top of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    multiplier: u64,
    shift: u32,
}

impl Divisor {
    /// To divide by `divisor`, which is not 0.
    pub(crate) fn new(divisor: u32) -> Self {
        let shift = u32::BITS - (divisor - 1).leading_zeros();
        let multiplier = (1u128 << (53 + shift)).div_ceil(u128::from(divisor));
        // At most 2^54: the divisor is more than half of 2^shift.
        Self { multiplier: multiplier as u64, shift }
    }

    /// `dividend` by this, rounded down.
    #[inline]
    pub(super) fn divide(self, dividend: u64) -> u64 {
        debug_assert!(dividend < 1 << 53, "limits are bounded when they are built");
        // Moved up by the 11 bits it leaves free, the upper half of the product is n·m / 2^53.
        let product = u128::from(dividend << 11) * u128::from(self.multiplier);
        (product >> 64) as u64 >> self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides() {
        let mut random = fastrand::Rng::with_seed(1);
        let most = (1 << 53) - 1;
        for index in 0..200_000u32 {
            let divisor = match index {
                0..1_000 => index + 1,
                1_000..1_032 => 1 << (index - 1_000),
                1_032..1_064 => u32::MAX >> (index - 1_032),
                _ => random.u32(1..) >> random.u32(0..32),
            };
            let divisor = divisor.max(1);
            let d = u64::from(divisor);
            let whole = random.u64(..=most) >> random.u32(0..53);
            let edge = whole / d * d;
            for dividend in [0, 1, whole, edge, edge.saturating_sub(1), most / d * d, most / d * d - 1, most]
            {
                assert_eq!(Divisor::new(divisor).divide(dividend), dividend / d, "{dividend} by {divisor}");
            }
        }
    }
}
