//! What every rule source relies on: a source that is neither a file nor follows anything.

use crate::followed_file::{limiter, quota, rules};
use std::io;
use std::sync::Arc;
use tollgate_control::{
    InstallSettings, RevisionOrigin, RevisionSummary, RuleInstaller, RuleMetrics, RuleSourceError,
    SourceHealth, SourcedRevision, SourcedRules, text_digest,
};
use tollgate_core::time::UnixTime;
use tollgate_limiter::metrics::{MetricSamples, catalog};

const SOURCE: &str = "store:/rules";

fn sourced(capacity: u32, revision: Option<u64>) -> SourcedRules {
    let text = rules(capacity);
    let summary = |number| RevisionSummary {
        number,
        digest: text_digest(&text),
        author: "ana".to_owned(),
        time: UnixTime::from_us(0),
        message: String::new(),
        origin: RevisionOrigin::Published,
    };
    let revision =
        revision.map_or(SourcedRevision::Counted, |number| SourcedRevision::Stored(summary(number)));
    SourcedRules { text, revision, origin: SOURCE.to_owned() }
}

fn unreadable() -> RuleSourceError {
    let error = io::Error::from(io::ErrorKind::ConnectionRefused);
    RuleSourceError::Read { origin: "store:/rules".to_owned(), error }
}

#[test]
fn a_node_counts_revisions_unless_its_source_does() {
    let limiter = limiter();
    let settings = InstallSettings::default();
    let installer = RuleInstaller::open(SOURCE, Ok(sourced(1, None)), settings, limiter).unwrap();
    let mut revisions = Vec::new();
    for revision in [None, Some(17), None, Some(4)] {
        installer.update(SOURCE, Ok(sourced(2, revision)));
        revisions.push(installer.status().borrow().revision);
    }
    assert_eq!(revisions, [2, 17, 18, 4], "a rollback of the source may lower the number");
}

#[test]
fn rules_in_force_stay_while_their_source_cannot_be_read() {
    let limiter = limiter();
    let settings = InstallSettings::default();
    let installer =
        RuleInstaller::open(SOURCE, Ok(sourced(5, Some(1))), settings, Arc::clone(&limiter)).unwrap();
    installer.update(SOURCE, Err(unreadable()));
    assert_eq!((quota(&limiter, "a"), installer.is_current()), (Some(5), false));
    let status = installer.status().borrow().clone();
    assert_eq!(status.revision, 1);
    assert_eq!(status.error.unwrap().to_string(), "error: cannot read store:/rules: connection refused");
    installer.update(SOURCE, Ok(sourced(6, Some(2))));
    assert_eq!((quota(&limiter, "a"), installer.is_current()), (Some(6), true));
}

#[test]
fn the_digest_is_that_of_the_rules_in_force() {
    // printf abc | sha256sum
    let digest_of = |text: &str| text_digest(text)[..16].to_owned();
    assert_eq!(digest_of("abc"), "ba7816bf8f01cfea");
    let settings = InstallSettings::default();
    let installer = RuleInstaller::open(SOURCE, Ok(sourced(5, None)), settings, limiter()).unwrap();
    let metrics = RuleMetrics::new(installer.status(), SourceHealth::default());
    let digests = || {
        let samples = MetricSamples::of([&metrics as _]);
        let samples = samples.of_metric(&catalog::RULES_INFO);
        samples.iter().map(|sample| sample.labels.join(",")).collect::<Vec<_>>()
    };
    let (five, six) = (digest_of(&rules(5)), digest_of(&rules(6)));
    assert_eq!(digests(), [five.as_str()]);
    installer.update(SOURCE, Ok(sourced(6, None)));
    assert_eq!(digests(), [six.as_str()], "the old one disappears");
    installer.update(SOURCE, Err(unreadable()));
    installer.update(SOURCE, Ok(SourcedRules { text: "rules: 7".to_owned(), ..sourced(7, None) }));
    assert_eq!(digests(), [six.as_str()]);
    installer.update(SOURCE, Ok(sourced(5, None)));
    assert_eq!(digests(), [five.as_str()], "equal rules have equal digests");
}
