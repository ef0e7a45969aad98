//! The sessions of the page: who logged in, by the digest of the cookie.

use super::secret::{SecretDigest, SecretText};
use parking_lot::Mutex;
use std::collections::HashMap;
use tollgate_core::time::UnixTime;

/// How long a session lasts.
pub(crate) const SESSION_SECONDS: u64 = 12 * 3600;
/// The most sessions at once; then the oldest ends.
const MOST_SESSIONS: usize = 1_000;

/// The open sessions of a node. A session is valid as long as the token that it was opened with.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    sessions: Mutex<HashMap<SecretDigest, OpenSession>>,
}

/// A session.
#[derive(Clone, Debug)]
struct OpenSession {
    /// The digest of the token that it was opened with.
    token: SecretDigest,
    expires: UnixTime,
}

impl SessionTable {
    /// Opens a session for the owner of `token`. Returns the value of its cookie, and when it ends.
    pub(crate) fn open(&self, token: SecretDigest, now: UnixTime) -> Option<(SecretText, UnixTime)> {
        let cookie = SecretText::random()?;
        let expires = now + SESSION_SECONDS * 1_000_000;
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, session| session.expires > now);
        if sessions.len() >= MOST_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.expires).map(|(key, _)| *key);
            oldest.map(|key| sessions.remove(&key));
        }
        sessions.insert(cookie.digest(), OpenSession { token, expires });
        Some((cookie, expires))
    }

    /// The token of the session with this cookie, and when the session ends.
    ///
    /// The cookie is looked up by its digest: what the time of a look-up tells about a digest tells nothing about the
    /// cookie.
    pub(crate) fn find(&self, cookie: &str, now: UnixTime) -> Option<(SecretDigest, UnixTime)> {
        let sessions = self.sessions.lock();
        let session = sessions.get(&SecretDigest::of(cookie)).filter(|session| session.expires > now)?;
        Some((session.token, session.expires))
    }

    /// Ends the session with this cookie.
    pub(crate) fn close(&self, cookie: &str) {
        self.sessions.lock().remove(&SecretDigest::of(cookie));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_and_are_bounded() {
        let table = SessionTable::default();
        let token = SecretDigest::of("token");
        let start = UnixTime::from_us(1);
        let (first, expires) = table.open(token, start).unwrap();
        assert_eq!(table.find(first.as_str(), start), Some((token, expires)));
        assert_eq!(table.find(first.as_str(), expires), None, "it has expired");
        assert_eq!(table.find("forged", start), None);
        for second in 1..=MOST_SESSIONS as u64 {
            table.open(token, start + second).unwrap();
        }
        assert_eq!(table.sessions.lock().len(), MOST_SESSIONS);
        assert_eq!(table.find(first.as_str(), start), None, "the oldest has ended");
        let (last, _) = table.open(token, start + 2_000).unwrap();
        table.close(last.as_str());
        assert_eq!(table.find(last.as_str(), start), None, "it was closed");
    }
}
