//! Whether a node should receive traffic, and the health endpoints that report it.

use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_http::{FullResponse, response};

/// Whether a node should receive traffic: from the moment rules are installed until it drains.
#[derive(Debug, Default)]
pub struct Readiness {
    rules_installed: AtomicBool,
    draining: AtomicBool,
}

/// Why a node is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// No rules are in force yet.
    NoRules,
    /// The node is about to stop.
    Draining,
}

impl Readiness {
    /// Records that rules are in force.
    pub fn set_rules_installed(&self) {
        self.rules_installed.store(true, Ordering::Release);
    }

    /// Records that the node is about to stop, so that load balancers stop sending while it still responds. There is
    /// no way back.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The response of `/readyz`.
    pub fn response(&self) -> FullResponse {
        match self.check() {
            Ok(()) => response::text("ready"),
            Err(reason) => response::unavailable(reason.message()),
        }
    }

    /// Fails with the reason if the node is not ready.
    pub fn check(&self) -> Result<(), NotReady> {
        if self.draining.load(Ordering::Acquire) {
            Err(NotReady::Draining)
        } else if !self.rules_installed.load(Ordering::Acquire) {
            Err(NotReady::NoRules)
        } else {
            Ok(())
        }
    }
}

impl NotReady {
    /// The body of the `/readyz` response.
    pub fn message(self) -> &'static str {
        match self {
            Self::NoRules => "not ready: no rules are installed yet\n",
            Self::Draining => "not ready: the node is draining\n",
        }
    }
}

/// The response of `/healthz`: the process answers.
pub fn health_response() -> FullResponse {
    response::text("ok")
}
