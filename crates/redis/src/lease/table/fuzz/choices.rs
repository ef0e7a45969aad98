//! Choices read from the bytes of an input, and damage done to a reply.

/// The bytes of an input, read as choices.
pub(super) struct FuzzChoices<'b> {
    bytes: &'b [u8],
}

impl<'b> FuzzChoices<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// 0 when the input is over.
    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// One of `count`, which is at least 1.
    pub(super) fn below(&mut self, count: usize) -> usize {
        let count = count.max(1);
        match count {
            ..=256 => usize::from(self.byte()) % count,
            _ => usize::from(u16::from_be_bytes([self.byte(), self.byte()])) % count,
        }
    }

    /// At most `most`, evenly over its range in steps of one in 65,536.
    pub(super) fn up_to(&mut self, most: u64) -> u64 {
        let part = u64::from(u16::from_be_bytes([self.byte(), self.byte()]));
        (u128::from(most) * u128::from(part) / u128::from(u16::MAX)) as u64
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Noise that may begin as a reply does.
    pub(super) fn noise(&mut self) -> Vec<u8> {
        let length = self.below(64);
        let mut bytes: Vec<u8> = (0..length).map(|_| self.byte()).collect();
        if let Some(first) = bytes.first_mut() {
            *first = [b'+', b'=', b'-', *first][self.below(4)];
        }
        bytes
    }

    /// Damages `bytes` in one to three places.
    pub(super) fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(6) {
                _ if bytes.is_empty() => {}
                0 | 1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes[at] = self.byte(),
                3 => {
                    // A number of one to eight bytes becomes nothing, or as large as it can be.
                    let end = (at + 1 + self.below(8)).min(bytes.len());
                    bytes[at..end].fill([0, u8::MAX][self.below(2)]);
                }
                4 => bytes[at] = bytes[at].wrapping_add([1, u8::MAX][self.below(2)]),
                _ => bytes.truncate(at),
            }
        }
    }
}
