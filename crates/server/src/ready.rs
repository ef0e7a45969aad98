//! Whether a node should get traffic. Shared by those who know a part of it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Not ready until rules are installed, and not again once the node drains.
#[derive(Debug, Default)]
pub struct Readiness {
    rules_installed: AtomicBool,
    draining: AtomicBool,
}

impl Readiness {
    /// Says that rules are in force.
    pub fn rules_installed(&self) {
        self.rules_installed.store(true, Ordering::Release);
    }

    /// Says that the node is about to stop, so that balancers turn away while it still answers.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// What keeps the node from being ready; none if it is.
    pub fn missing(&self) -> Option<&'static str> {
        if self.draining.load(Ordering::Acquire) {
            Some("not ready: the node is draining\n")
        } else if !self.rules_installed.load(Ordering::Acquire) {
            Some("not ready: no rules are installed yet\n")
        } else {
            None
        }
    }
}
