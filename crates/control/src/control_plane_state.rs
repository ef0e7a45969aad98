//! The control state of another control plane, grants and the emergency limit, applied to the limiter of a node that
//! follows it. What was applied stays in force while the control plane cannot be asked; grants end by themselves.

use crate::control_state::ControlState;
use crate::control_state_follower::apply;
use crate::http_client::{HttpCall, HttpClient};
use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Method, StatusCode};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tollgate_limiter::Limiter;

const CONTROL_STATE: &str = "/v1/control-state";

/// Follows the control state of a control plane.
#[derive(Debug)]
pub(crate) struct ControlPlaneState {
    pub(crate) client: HttpClient,
    pub(crate) limiter: Arc<Limiter>,
    /// What is in force.
    pub(crate) state: watch::Sender<Option<Arc<ControlState>>>,
    /// A change may have been made.
    pub(crate) is_told: Arc<Notify>,
    pub(crate) poll_every: Duration,
}

impl ControlPlaneState {
    /// Applies the state as it is, then each change: when `is_told` says so, and at least every `poll_every`.
    pub(crate) async fn follow(self) {
        let mut tag = None;
        let mut has_failed = false;
        loop {
            match self.fetch(tag.as_ref()).await {
                Ok(fetched) => {
                    if std::mem::take(&mut has_failed) {
                        tracing::info!("control state is followed again");
                    }
                    if let Some((state, new_tag)) = fetched {
                        apply(&self.limiter, &state);
                        self.state.send_replace(Some(Arc::new(state)));
                        tag = new_tag;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(
                            control_plane = self.client.url(),
                            %error,
                            "control state cannot be read: grants and the emergency limit stay as they are"
                        );
                    }
                }
            }
            // The next poll is due, or a change was announced.
            let _ = timeout(self.poll_every, self.is_told.notified()).await;
        }
    }

    /// The state and its entity tag; none if it is the one with `known`.
    async fn fetch(
        &self,
        known: Option<&HeaderValue>,
    ) -> io::Result<Option<(ControlState, Option<HeaderValue>)>> {
        let mut call = HttpCall::new(Method::GET, CONTROL_STATE);
        if let Some(tag) = known {
            call = call.with_header(IF_NONE_MATCH, tag.clone());
        }
        let reply = self.client.send(call).await.map_err(io::Error::other)?;
        if known.is_some() && reply.status.is_redirection() {
            // 304: it has not changed.
            return Ok(None);
        }
        if !reply.status.is_success() {
            return Err(io::Error::other(refusal(reply.status)));
        }
        let state = serde_json::from_slice(&reply.body).map_err(io::Error::other)?;
        Ok(Some((state, reply.headers.get(ETAG).cloned())))
    }
}

/// What an answer that is no success means for a node that follows.
pub(crate) fn refusal(status: StatusCode) -> String {
    let hint = if status.is_client_error() {
        "; a node that follows needs a token with the role `follow`: `tollgate token create NAME --role follow`"
    } else {
        ""
    };
    format!("it answered {status}{hint}")
}
