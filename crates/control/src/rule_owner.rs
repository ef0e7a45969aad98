//! What owns the rules of a node, and with them the control state.

use crate::control_state::ControlState;
use crate::revision::StoredRevision;
use std::sync::Arc;
use tokio::sync::watch;

/// What owns the rules of a node.
#[derive(Clone, Debug)]
pub enum RuleOwner {
    /// Its repository: rules can be published.
    Repository,
    /// Its rule file.
    File,
    /// Another control plane.
    ControlPlane(FollowedControlPlane),
}

/// What a node has of the control plane that it follows. Clones show the same.
#[derive(Clone, Debug)]
pub struct FollowedControlPlane {
    pub(crate) url: String,
    /// The revision in force.
    pub(crate) revision: watch::Receiver<Option<Arc<StoredRevision>>>,
    /// The control state in force; none until the control plane has told it.
    pub(crate) state: watch::Receiver<Option<Arc<ControlState>>>,
}

impl RuleOwner {
    /// Why rules cannot be published at this node; none if they can.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Repository => None,
            Self::File => {
                Some("this node takes its rules from its rule file only: `repository` is off".to_owned())
            }
            Self::ControlPlane(followed) => {
                Some(format!("this node follows the control plane {}; publish there", followed.url))
            }
        }
    }

    /// The control plane that the node follows, if it follows one.
    pub(crate) fn followed(&self) -> Option<&FollowedControlPlane> {
        match self {
            Self::ControlPlane(followed) => Some(followed),
            Self::Repository | Self::File => None,
        }
    }
}

impl FollowedControlPlane {
    /// The revision in force.
    pub(crate) fn revision(&self) -> Option<Arc<StoredRevision>> {
        self.revision.borrow().clone()
    }

    /// The control state in force; none until the control plane has told it.
    pub(crate) fn state(&self) -> Option<Arc<ControlState>> {
        self.state.borrow().clone()
    }
}
