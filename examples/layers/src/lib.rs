//! The limiter of the examples.

use std::error::Error;
use std::sync::Arc;
use tollgate_limiter::{Clock, Limiter, MemoryStore};

/// A limiter with these rules and the embedded store.
pub fn limiter(rules: &str) -> Result<Arc<Limiter>, Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new(64 << 20), Clock::system());
    // The report has every error in the rules, with its position.
    let loaded = tollgate_core::rules::load("rules", rules).map_err(|report| report.to_string())?;
    limiter.install(loaded.rules, loaded.lists)?;
    Ok(Arc::new(limiter))
}
