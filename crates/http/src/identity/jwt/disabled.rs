//! Replaces the verifier in builds without the cargo feature `jwt`.

use super::{JwtOptions, VerifiedClaims};
use crate::identity::options::{IdentityError, IdentityProblem};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tollgate_core::time::UnixTime;

/// A verifier that cannot be opened: settings that verify tokens are an error.
#[derive(Debug)]
pub(in crate::identity) enum DisabledTokenVerifier {}

impl DisabledTokenVerifier {
    pub(in crate::identity) fn open(_: &JwtOptions, _: &Path, _: Vec<String>) -> Result<Self, IdentityError> {
        Err(IdentityError::new("jwt", IdentityProblem::NoJwtSupport))
    }

    pub(in crate::identity) fn key_file(&self) -> &Path {
        match *self {}
    }

    pub(in crate::identity) fn replace_keys(&self, _: io::Result<Vec<u8>>) -> Result<(), IdentityError> {
        match *self {}
    }

    pub(in crate::identity) fn claims(&self, _: &str, _: UnixTime) -> Option<Arc<VerifiedClaims>> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::document::Document;

    #[test]
    fn settings_with_tokens_name_the_missing_feature() {
        let mut document =
            Document::parse("identity.yaml", "{ algorithm: HS256, secret_file: secret }").unwrap();
        let options: JwtOptions = document.decode().unwrap();
        let error = DisabledTokenVerifier::open(&options, Path::new(""), Vec::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "identity.jwt: built without JWT support; enable the cargo feature `jwt` of `tollgate-http`"
        );
    }
}
