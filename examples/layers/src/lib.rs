//! What the examples share: a limiter with rules.

use std::error::Error;
use std::sync::Arc;
use tollgate_limiter::{Clock, Limiter, MemoryStore};

/// A limiter that keeps its states in this process, with these rules.
pub fn limiter(rules: &str) -> Result<Arc<Limiter>, Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new(64 << 20), Clock::system());
    // The report says everything that is wrong with the rules, and where.
    let loaded = tollgate_core::rules::load("rules", rules).map_err(|report| report.to_string())?;
    limiter.install(loaded.rules, loaded.lists);
    Ok(Arc::new(limiter))
}
