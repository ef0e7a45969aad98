//! The first operate token: it is in a file that only the user of the process can read.
//!
//! Without it a new node could not be operated at all. It belongs to the node, not to the repository: it is valid also
//! while the repository is unavailable. Revoking it removes the file; the next start writes a new one.

use super::secret::{SecretDigest, SecretText};
use parking_lot::Mutex;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tollgate_limiter::file;

/// The name of the file, and of the token.
pub(crate) const OPERATE_TOKEN: &str = "operate.token";
/// A shorter one could be guessed.
const LEAST_CHARACTERS: usize = 32;
const MOST_CHARACTERS: usize = 512;

/// The operate token of a node.
#[derive(Debug)]
pub struct OperateTokenFile {
    path: PathBuf,
    /// None if it was revoked.
    digest: Mutex<Option<SecretDigest>>,
    /// The folder to remove at the end, if there is no data folder.
    temporary: Option<PathBuf>,
}

impl OperateTokenFile {
    /// Reads the token in the data folder, or writes a new one. Without a data folder, it is in a new folder for temporary
    /// files, which is removed at the end.
    pub fn open(data: Option<&Path>) -> io::Result<Self> {
        let temporary = if data.is_none() { Some(temporary_folder()?) } else { None };
        let folder = data.or(temporary.as_deref()).unwrap_or(Path::new("."));
        // The start message names it, wherever the node was started.
        let path = std::path::absolute(folder)?.join(OPERATE_TOKEN);
        if !path.exists() {
            let token = SecretText::random_token().ok_or_else(no_random_numbers)?;
            // Another node with the same folder may be faster; then its token counts.
            file::create_private(&path, format!("{}\n", token.as_str()).as_bytes())?;
        }
        let digest = Mutex::new(Some(read_token(&path)?.digest()));
        Ok(Self { path, digest, temporary })
    }

    /// Where the token is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The digest of the token; none if it was revoked.
    pub(crate) fn digest(&self) -> Option<SecretDigest> {
        *self.digest.lock()
    }

    /// Makes the token invalid at once, and removes its file. Returns whether it was valid.
    pub(crate) fn revoke(&self) -> io::Result<bool> {
        let was_valid = self.digest.lock().take().is_some();
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(was_valid),
        }
    }
}

impl Drop for OperateTokenFile {
    fn drop(&mut self) {
        if let Some(folder) = &self.temporary {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_dir(folder);
        }
    }
}

fn read_token(path: &Path) -> io::Result<SecretText> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(file = %path.display(), "other users could read the operate token; only its owner can now");
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    let text = file::text(file::read_at_most(path, MOST_CHARACTERS as u64 + 2)?)?;
    let token = text.trim();
    let is_token = (LEAST_CHARACTERS..=MOST_CHARACTERS).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_token { Ok(SecretText::read(token)) } else { Err(not_a_token()) }
}

fn temporary_folder() -> io::Result<PathBuf> {
    let name = SecretText::random().ok_or_else(no_random_numbers)?;
    let folder = std::env::temp_dir().join(format!("tollgate-{}", &name.as_str()[..16]));
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

fn not_a_token() -> io::Error {
    let message = format!(
        "it is no token of at least {LEAST_CHARACTERS} characters without spaces; remove it, and the next start writes a new one"
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn no_random_numbers() -> io::Error {
    io::Error::other("the system has no random numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_private_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let first = OperateTokenFile::open(Some(&data)).unwrap();
        let text = fs::read_to_string(first.path()).unwrap();
        assert_eq!(fs::metadata(first.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(first.digest().unwrap().matches(SecretDigest::of(text.trim())));
        fs::set_permissions(first.path(), Permissions::from_mode(0o644)).unwrap();
        let second = OperateTokenFile::open(Some(&data)).unwrap();
        assert_eq!(second.digest(), first.digest(), "kept over a restart");
        assert_eq!(fs::metadata(first.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(second.revoke().unwrap() && second.digest().is_none() && !second.path().exists());
        assert!(!second.revoke().unwrap());
        let third = OperateTokenFile::open(Some(&data)).unwrap();
        assert_ne!(third.digest(), first.digest(), "a new one after it was revoked");
        for text in ["", "short", "with spaces with spaces with spaces with spaces", &"x".repeat(600)] {
            fs::write(third.path(), text).unwrap();
            assert!(OperateTokenFile::open(Some(&data)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn without_a_data_folder_it_is_temporary() {
        let token = OperateTokenFile::open(None).unwrap();
        let (path, folder) = (token.path().to_owned(), token.path().parent().unwrap().to_owned());
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(path.exists());
        drop(token);
        assert!(!path.exists() && !folder.exists());
    }
}
