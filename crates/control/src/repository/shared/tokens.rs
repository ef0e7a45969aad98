//! The access tokens of the repository. Each node keeps them, so that it can store again what the store has lost.

use super::scripts::SCRIPTS;
use super::token_set::{LostTokens, MOST_REVOKED, TokenSet};
use super::{SharedCore, SharedRepository};
use crate::access_token::StoredToken;
use crate::repository::{MOST_TOKENS, RepositoryError, from_json, to_json};
use std::hash::{BuildHasher, RandomState};
use tollgate_redis::ControlValue;

/// How often the tokens are read while others change them.
const ATTEMPTS: usize = 10;

impl SharedRepository {
    /// All tokens. What the store has lost is stored again.
    pub(in crate::repository) async fn tokens(&self) -> Result<Vec<StoredToken>, RepositoryError> {
        let core = &self.0;
        for _ in 0..ATTEMPTS {
            let lost = match core.read_tokens().await? {
                Some(stored) => core.tokens.lock().merge(stored, core.clock.now()),
                None => LostTokens::default(),
            };
            if lost.is_empty() {
                return Ok(self.known_tokens());
            }
            core.restore_tokens(lost).await?;
        }
        Err(RepositoryError::Contention)
    }

    /// The tokens that this node has read.
    pub(in crate::repository) fn known_tokens(&self) -> Vec<StoredToken> {
        self.0.tokens.lock().tokens.values().cloned().collect()
    }

    pub(in crate::repository) async fn put_token(&self, token: StoredToken) -> Result<(), RepositoryError> {
        let document = to_json("the token", &token)?;
        // If tokens cannot be read, a new one would be refused everywhere.
        self.tokens().await?;
        if self.0.change_token(&token.id, document).await? == -1 {
            return Err(RepositoryError::TooMany { what: "tokens", most: MOST_TOKENS });
        }
        self.0.tokens.lock().add(token);
        Ok(())
    }

    pub(in crate::repository) async fn remove_token(&self, id: &str) -> Result<bool, RepositoryError> {
        // A token that the store has lost must not come back after it was revoked.
        self.tokens().await?;
        let is_removed = self.0.change_token(id, String::new()).await? == 1;
        if is_removed {
            self.0.tokens.lock().revoke(id, self.0.now_ms());
        }
        Ok(is_removed)
    }
}

impl SharedCore {
    fn token_keys(&self) -> [String; 3] {
        [self.keys.tokens.clone(), self.keys.revoked.clone(), self.keys.state.clone()]
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().as_us() / 1_000
    }

    /// The tokens in the store; none if this node has the same version.
    async fn read_tokens(&self) -> Result<Option<TokenSet>, RepositoryError> {
        let known = self.tokens.lock().version.clone();
        let reply = self.call(&SCRIPTS.list_tokens, &self.token_keys(), &[known.into_bytes()]).await?;
        let mut reply = reply.into_list().into_iter();
        let invalid = || RepositoryError::Invalid("the list of tokens".to_owned());
        let version = reply.next().and_then(ControlValue::into_text).ok_or_else(invalid)?;
        let (Some(tokens), Some(revoked)) = (reply.next(), reply.next()) else { return Ok(None) };
        let mut stored = TokenSet { version, ..TokenSet::default() };
        for json in super::texts(tokens) {
            // One of a newer version must not keep the revocations from being read.
            match from_json::<StoredToken>("token", &json) {
                Ok(token) => drop(stored.tokens.insert(token.id.clone(), token)),
                Err(error) => tracing::warn!(%error, "access token skipped"),
            }
        }
        for pair in super::texts(revoked).chunks_exact(2) {
            let time = pair[1].parse().map_err(|_| invalid())?;
            stored.revoked.insert(pair[0].clone(), time);
        }
        Ok(Some(stored))
    }

    /// Stores a token, or revokes it if `document` is empty.
    async fn change_token(&self, id: &str, document: String) -> Result<i64, RepositoryError> {
        let arguments = [
            id.into(),
            document.into_bytes(),
            MOST_TOKENS.to_string().into_bytes(),
            self.keys.channel.clone().into_bytes(),
            new_version().into_bytes(),
            self.now_ms().to_string().into_bytes(),
            MOST_REVOKED.to_string().into_bytes(),
        ];
        let changed = self.call(&SCRIPTS.change_token, &self.token_keys(), &arguments).await?;
        self.note_change();
        changed.as_number().ok_or_else(|| RepositoryError::Invalid("the reply to a token".to_owned()))
    }

    async fn restore_tokens(&self, lost: LostTokens) -> Result<(), RepositoryError> {
        let LostTokens { tokens, revoked } = lost;
        let mut arguments = vec![
            self.keys.channel.clone().into_bytes(),
            new_version().into_bytes(),
            MOST_REVOKED.to_string().into_bytes(),
            revoked.len().to_string().into_bytes(),
        ];
        for (id, time) in &revoked {
            arguments.extend([id.clone().into_bytes(), time.to_string().into_bytes()]);
        }
        for token in &tokens {
            arguments.extend([token.id.clone().into_bytes(), to_json("the token", token)?.into_bytes()]);
        }
        let restored = self.call(&SCRIPTS.restore_tokens, &self.token_keys(), &arguments).await?;
        if restored.as_number().is_some_and(|restored| restored > 0) {
            tracing::warn!(
                tokens = tokens.len(),
                revocations = revoked.len(),
                "the repository had lost access tokens or revocations; they were stored again"
            );
        }
        Ok(())
    }
}

/// A version that no other change has.
fn new_version() -> String {
    let random = RandomState::new();
    format!("{:016x}{:016x}", random.hash_one(1), random.hash_one(2))
}
