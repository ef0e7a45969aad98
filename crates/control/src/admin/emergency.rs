//! `/v1/emergency`: a limit of each client address, on all nodes.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::audit::AuditedAction;
use super::problem::Problem;
use super::request_parts::JsonBody;
use crate::control_state::EmergencySwitch;
use crate::control_state_follower::switch_emergency;
use crate::live::LiveEventKind;
use crate::repository::Switched;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// When each client address is to be limited, on all nodes.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewEmergency {
    /// When.
    mode: EmergencyMode,
}

/// When each client address is limited, on all nodes.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct EmergencyState {
    /// When.
    mode: EmergencyMode,
    /// The requests per second of one address then, on this node: its setting `emergency_per_second`.
    per_second: u32,
    /// Whether the mode is stored for all nodes. False if it was set while the repository was unavailable: it is in force
    /// on this node only, and is stored when the repository answers again, unless the emergency limit was changed there
    /// meanwhile.
    stored: bool,
}

/// When each client address is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum EmergencyMode {
    /// As the settings of each node say.
    Default,
    /// Never.
    Off,
    /// While no shard of the store is available.
    OnOutage,
    /// Always.
    On,
}

impl EmergencyMode {
    fn of(switch: Option<EmergencySwitch>) -> Self {
        match switch {
            None => Self::Default,
            Some(EmergencySwitch::Off) => Self::Off,
            Some(EmergencySwitch::OnOutage) => Self::OnOutage,
            Some(EmergencySwitch::On) => Self::On,
        }
    }

    fn switch(self) -> Option<EmergencySwitch> {
        match self {
            Self::Default => None,
            Self::Off => Some(EmergencySwitch::Off),
            Self::OnOutage => Some(EmergencySwitch::OnOutage),
            Self::On => Some(EmergencySwitch::On),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Off => "off",
            Self::OnOutage => "on_outage",
            Self::On => "on",
        }
    }
}

/// When each client address is limited.
#[utoipa::path(get, path = "/v1/emergency", tag = "emergency", responses((status = 200, body = EmergencyState)))]
pub(super) async fn show_emergency(
    State(plane): State<Arc<ControlPlane>>,
) -> Result<Json<EmergencyState>, Problem> {
    let state = plane.control_state_in_force().await?;
    Ok(Json(plane.emergency(EmergencyMode::of(state.emergency))))
}

/// Sets when each client address is limited, on all nodes; on this node at once. While the repository is unavailable, on
/// this node only, and the response has `"stored": false`.
#[utoipa::path(put, path = "/v1/emergency", tag = "emergency",
    request_body = NewEmergency, responses((status = 200, body = EmergencyState)))]
pub(super) async fn put_emergency(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    JsonBody(wanted): JsonBody<NewEmergency>,
) -> Result<Json<EmergencyState>, Problem> {
    let repository = plane.shared_state()?;
    let switch = wanted.mode.switch();
    let mut detail = wanted.mode.name().to_owned();
    // This node does not wait for a store that does not answer.
    switch_emergency(&plane.limiter, switch);
    match repository.update_control_state(|state| state.emergency = switch).await {
        Ok(_) => {}
        Err(error) => {
            if repository.switch_unstored(switch) == Switched::Refused {
                if let Ok(state) = repository.control_state().await {
                    switch_emergency(&plane.limiter, state.emergency);
                }
                return Err(error.into());
            }
            detail += ", on this node only: the repository is unavailable";
            tracing::warn!(%error, mode = wanted.mode.name(), "emergency limit cannot be stored; it is in force on this node only");
        }
    }
    let action = AuditedAction {
        action: "emergency.set",
        target: "emergency limit".to_owned(),
        detail,
        revision: None,
    };
    let (kind, text) = match wanted.mode {
        EmergencyMode::On => (LiveEventKind::EmergencyOn, "emergency limit switched on"),
        EmergencyMode::Default | EmergencyMode::Off | EmergencyMode::OnOutage => {
            (LiveEventKind::EmergencyOff, "emergency limit switched off, or to what outages and settings say")
        }
    };
    plane.live.reporter().report(kind, text);
    plane.record(&operator, peer, action).await;
    Ok(Json(plane.emergency(wanted.mode)))
}

impl ControlPlane {
    fn emergency(&self, mode: EmergencyMode) -> EmergencyState {
        EmergencyState {
            mode,
            per_second: self.limiter.emergency_per_second(),
            stored: !self.repository.known_control_state().is_unstored,
        }
    }
}
