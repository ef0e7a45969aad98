//! Comparison of globs: whether one covers another, and whether two may overlap.

use super::pattern::Glob;

impl Glob {
    /// Whether this glob matches every text that `other` matches. Not all such pairs are recognised.
    pub(super) fn covers(&self, other: &Self) -> bool {
        // As a text, the wildcards of `other` are matched only by wildcards; but a `?` does not cover a star.
        let is_sound = !self.as_str().contains('?') || !other.as_str().contains('*');
        is_sound && self.matches(other.as_str())
    }

    /// Whether a text may match both.
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
    fn coverage_and_overlap_of_globs() {
        for (one, other, covers, overlaps) in [
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
            assert_eq!(one.may_overlap(&other), overlaps, "{one_text} overlaps {other_text}");
        }
    }
}
