//! All tokens that are valid at this node: the operate token in its file, and those of the repository.

use super::operate_token::{OPERATE_TOKEN, OperateTokenFile};
use super::secret::SecretDigest;
use super::{Credential, Operator};
use crate::access_token::{StoredToken, TokenRole};
use crate::repository::{RepositoryError, RuleRepository};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tollgate_core::time::UnixTime;

/// How long the tokens of the repository are used before they are read again. What another node revokes is refused
/// here after this time.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The least time between two reads because of an unknown token, which may have been created a moment ago at another
/// node. Requests with unknown tokens wait for the next read and share it: however many there are, they cause no more
/// than twenty reads a second.
const UNKNOWN_READ_EVERY: Duration = Duration::from_millis(50);

/// Knows the valid tokens.
#[derive(Debug)]
pub(crate) struct TokenRegistry {
    file: OperateTokenFile,
    repository: RuleRepository,
    known: Mutex<KnownTokens>,
    /// Held while tokens are read.
    reading: tokio::sync::Mutex<()>,
}

/// The tokens of the repository when they were last read.
#[derive(Clone, Debug, Default)]
struct KnownTokens {
    tokens: Arc<[StoredToken]>,
    /// When the last read began.
    read: Option<Instant>,
    /// Until when they are used without reading them again.
    fresh_until: Option<Instant>,
    /// Whether the last read failed.
    has_failed: bool,
}

impl KnownTokens {
    /// The token with this digest. Each is compared, so that the time tells nothing.
    fn find(&self, digest: SecretDigest) -> Option<&StoredToken> {
        let mut found = None;
        for token in self.tokens.iter() {
            if digest.matches_hex(&token.hash) {
                found = Some(token);
            }
        }
        found
    }
}

/// A valid token.
#[derive(Clone, Debug)]
pub(crate) struct ValidToken {
    name: String,
    role: TokenRole,
    expires: Option<UnixTime>,
}

impl TokenRegistry {
    pub(crate) fn new(file: OperateTokenFile, repository: RuleRepository) -> Self {
        Self { file, repository, known: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    /// The token with this digest, if it is valid.
    pub(crate) async fn find(&self, digest: SecretDigest, now: UnixTime) -> Option<ValidToken> {
        if self.file.digest().is_some_and(|known| digest.matches(known)) {
            return Some(ValidToken {
                name: OPERATE_TOKEN.to_owned(),
                role: TokenRole::Operate,
                expires: None,
            });
        }
        let asked = Instant::now();
        let mut known = self.known.lock().clone();
        if known.fresh_until.is_none_or(|until| until <= asked) {
            known = self.read_since(asked, None).await;
        }
        if known.find(digest).is_none() {
            known = self.read_since(asked, Some(UNKNOWN_READ_EVERY)).await;
        }
        let token = known.find(digest)?;
        let is_valid = token.expires.is_none_or(|expires| expires > now);
        is_valid.then(|| ValidToken { name: token.name.clone(), role: token.role, expires: token.expires })
    }

    /// The tokens of the repository as they were at `asked` or later, read at least `pause` after the read before. While
    /// it is unavailable, those that were read last stay valid: an operator must be able to act during an outage.
    async fn read_since(&self, asked: Instant, pause: Option<Duration>) -> KnownTokens {
        let _turn = self.reading.lock().await;
        let known = self.known.lock().clone();
        // Another request has read them meanwhile.
        if known.read.is_some_and(|read| read >= asked) {
            return known;
        }
        if let (Some(read), Some(pause)) = (known.read, pause) {
            sleep_until(read + pause).await;
        }
        let began = Instant::now();
        let read = self.repository.tokens().await;
        let mut known = self.known.lock();
        match read {
            Ok(tokens) => {
                known.tokens = tokens.into();
                known.fresh_until = Some(began + READ_AGAIN_AFTER);
                known.has_failed = false;
            }
            Err(error) => {
                if let Some(tokens) = self.repository.known_tokens() {
                    known.tokens = tokens.into();
                }
                // A store that does not answer delays one request a second.
                known.fresh_until = Some(Instant::now() + READ_AGAIN_AFTER);
                if !std::mem::replace(&mut known.has_failed, true) {
                    tracing::warn!(%error, "tokens cannot be read; those read last stay valid");
                }
            }
        }
        known.read = Some(began);
        known.clone()
    }

    /// All tokens of the repository, read now.
    pub(crate) async fn list(&self) -> Result<Vec<StoredToken>, RepositoryError> {
        self.repository.tokens().await
    }

    /// The operate token of this node; none if it was revoked.
    pub(crate) fn file(&self) -> Option<&OperateTokenFile> {
        Some(&self.file).filter(|file| file.digest().is_some())
    }

    /// Forgets what was read, so that a change of the tokens is in force at once.
    pub(crate) async fn read_again(&self) {
        // What a read that has begun finds is older than the change.
        let _turn = self.reading.lock().await;
        self.known.lock().fresh_until = None;
    }
}

impl ValidToken {
    /// What it allows.
    pub(crate) fn role(&self) -> TokenRole {
        self.role
    }

    /// The caller with this token.
    pub(crate) fn operator(self, credential: Credential) -> Operator {
        Operator { name: self.name, role: self.role, expires: self.expires, credential }
    }
}
