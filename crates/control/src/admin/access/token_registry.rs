//! All tokens that are valid at this node: the operate token in its file, and those of the repository.

use super::operate_token::{OPERATE_TOKEN, OperateTokenFile};
use super::secret::SecretDigest;
use super::{Credential, Operator};
use crate::access_token::{StoredToken, TokenRole};
use crate::repository::{RepositoryError, RuleRepository};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tollgate_core::time::UnixTime;

/// How long the tokens of the repository are used before they are read again. What another node revokes is refused
/// here after this time.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Knows the valid tokens.
#[derive(Debug)]
pub(crate) struct TokenRegistry {
    file: OperateTokenFile,
    repository: RuleRepository,
    known: Mutex<KnownTokens>,
}

/// The tokens of the repository when they were last read.
#[derive(Debug, Default)]
struct KnownTokens {
    tokens: Arc<[StoredToken]>,
    read: Option<Instant>,
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
        Self { file, repository, known: Mutex::default() }
    }

    /// The token with this digest, if it is valid. Each known token is compared, so that the time tells nothing.
    pub(crate) async fn find(&self, digest: SecretDigest, now: UnixTime) -> Option<ValidToken> {
        if self.file.digest().is_some_and(|known| digest.matches(known)) {
            return Some(ValidToken {
                name: OPERATE_TOKEN.to_owned(),
                role: TokenRole::Operate,
                expires: None,
            });
        }
        let tokens = self.known_tokens().await;
        let mut found = None;
        for token in tokens.iter() {
            if digest.matches_hex(&token.hash) {
                found = Some(token);
            }
        }
        let token = found.filter(|token| token.expires.is_none_or(|expires| expires > now))?;
        Some(ValidToken { name: token.name.clone(), role: token.role, expires: token.expires })
    }

    /// The tokens of the repository. While it is unavailable, those that were read last stay valid: an operator must be
    /// able to act during an outage.
    async fn known_tokens(&self) -> Arc<[StoredToken]> {
        let mut known = self.known.lock().await;
        if known.read.is_none_or(|read| read.elapsed() >= READ_AGAIN_AFTER) {
            match self.repository.tokens().await {
                Ok(tokens) => known.tokens = tokens.into(),
                Err(error) => tracing::warn!(%error, "tokens cannot be read; those read last stay valid"),
            }
            known.read = Some(Instant::now());
        }
        Arc::clone(&known.tokens)
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
        self.known.lock().await.read = None;
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
