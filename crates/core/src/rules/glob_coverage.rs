//! How two globs lie to each other: whether one covers the other, and whether they may meet.

use super::pattern::Glob;

impl Glob {
    /// Whether all texts that `other` matches match this one. A few pairs of which that is true are not recognised.
    pub(super) fn covers(&self, other: &Self) -> bool {
        // Read as a text, the other's wildcards are matched by wildcards only; but one `?` is not enough for a star.
        let is_sound = !self.as_str().contains('?') || !other.as_str().contains('*');
        is_sound && self.matches(other.as_str())
    }

    /// Whether there may be a text that both match.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        if self.is_exact() || other.is_exact() {
            return self.matches(other.as_str()) || other.matches(self.as_str());
        }
        let literal = |glob: &Self| glob.as_str().split(['*', '?']).next().unwrap_or_default().to_owned();
        let (one, other) = (literal(self), literal(other));
        one.starts_with(&other) || other.starts_with(&one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_cover_and_meet_each_other() {
        for (one, other, covers, meets) in [
            ("*", "a", true, true),
            ("a*", "a", true, true),
            ("a*", "ab*", true, true),
            ("ab*", "a*", false, true),
            ("a*", "b*", false, false),
            ("a", "a", true, true),
            ("a", "a*", false, true),
            ("a?", "a*", false, true),
            ("a?", "a?", true, true),
            ("a*c", "abc", true, true),
            ("a*c", "a*bc", true, true),
            ("*c", "a*", false, true),
            ("a", "b", false, false),
        ] {
            let (one, other) = (Glob::new(one), Glob::new(other));
            let (one_text, other_text) = (one.as_str(), other.as_str());
            assert_eq!(one.covers(&other), covers, "{one_text} covers {other_text}");
            assert_eq!(one.may_overlap(&other), meets, "{one_text} meets {other_text}");
        }
    }
}
