//! Applies the control state of a repository, grants and the emergency limit, to the limiter of a node.

use crate::control_state::{ControlState, EmergencySwitch};
use crate::repository::RuleRepository;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_limiter::{ActiveGrant, Emergency, Limiter};

/// Follows the control state until it is dropped.
#[derive(Debug)]
pub struct ControlStateFollower(JoinHandle<()>);

impl ControlStateFollower {
    /// Applies the state as it is, then each change: when the repository announces one, and at least every `poll`.
    pub fn start(repository: RuleRepository, limiter: Arc<Limiter>, poll: Duration) -> Self {
        let changes = repository.changes();
        Self(tokio::spawn(follow(repository, limiter, changes, poll)))
    }
}

impl Drop for ControlStateFollower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn follow(
    repository: RuleRepository,
    limiter: Arc<Limiter>,
    mut changes: watch::Receiver<u64>,
    poll: Duration,
) {
    let mut applied = None;
    loop {
        changes.borrow_and_update();
        match repository.control_state().await {
            Ok(state) => {
                if applied.as_ref() != Some(&state) {
                    apply(&limiter, &state);
                    applied = Some(state);
                }
            }
            // What was applied stays in force; grants end by themselves.
            Err(error) => tracing::debug!(%error, "control state cannot be read; retrying"),
        }
        // An error means that the repository is closed.
        if let Ok(Err(_)) = tokio::time::timeout(poll, changes.changed()).await {
            return;
        }
    }
}

/// Switches the emergency limit of the node.
pub(crate) fn switch_emergency(limiter: &Limiter, switch: Option<EmergencySwitch>) {
    limiter.switch_emergency(switch.map(|switch| match switch {
        EmergencySwitch::Off => Emergency::Off,
        EmergencySwitch::OnOutage => Emergency::OnOutage,
        EmergencySwitch::On => Emergency::On,
    }));
}

/// Puts `state` in force.
pub(crate) fn apply(limiter: &Limiter, state: &ControlState) {
    switch_emergency(limiter, state.emergency);
    let now = limiter.clock().now();
    let in_force = state.grants.iter().filter(|grant| grant.expires > now);
    let grants = in_force.map(|grant| ActiveGrant {
        id: grant.id.clone(),
        kind: grant.kind.clone(),
        value: grant.value.clone(),
        rule: grant.rule.clone(),
        tokens: grant.tokens,
        expires: grant.expires,
    });
    limiter.set_grants(grants.collect());
}
