//! Posts the status of a node to the control plane that it follows, which lists it among its nodes.

use crate::control_plane_state::refusal;
use crate::http_client::{HttpCall, HttpClient};
use crate::live::LiveView;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde::Deserialize;
use std::io;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Between two looks for the first status of the node.
const FIRST_STATUS_EVERY: Duration = Duration::from_millis(100);
/// After a post that failed.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The times that a control plane may ask for, in seconds.
const LEAST_SECONDS: u64 = 1;
const MOST_SECONDS: u64 = 60;

/// Posts the status until it is dropped.
#[derive(Debug)]
pub struct StatusPoster(JoinHandle<()>);

/// What the control plane answers.
#[derive(Deserialize)]
struct PostedStatus {
    /// When the next status is due.
    #[serde(default)]
    next_seconds: u64,
}

impl StatusPoster {
    /// Posts the status that `live` shows of this node as often as the control plane asks for. Needs a tokio runtime.
    pub fn start(client: HttpClient, live: LiveView) -> Self {
        Self(tokio::spawn(keep_posting(client, live)))
    }
}

impl Drop for StatusPoster {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_posting(client: HttpClient, live: LiveView) {
    let mut has_failed = false;
    loop {
        let Some(status) = live.own_status() else {
            sleep(FIRST_STATUS_EVERY).await;
            continue;
        };
        let wait = match post(&client, &status.id, status.to_text()).await {
            Ok(posted) => {
                if std::mem::take(&mut has_failed) {
                    tracing::info!(control_plane = client.url(), "status of this node is posted again");
                }
                Duration::from_secs(posted.next_seconds.clamp(LEAST_SECONDS, MOST_SECONDS))
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(
                        control_plane = client.url(),
                        %error,
                        "status of this node cannot be posted; its control plane does not list it"
                    );
                }
                RETRY_AFTER
            }
        };
        sleep(wait).await;
    }
}

async fn post(client: &HttpClient, id: &str, status: String) -> io::Result<PostedStatus> {
    let call = HttpCall::new(Method::POST, format!("/v1/nodes/{id}/status"))
        .with_header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .with_body(status);
    let reply = client.send(call).await.map_err(io::Error::other)?;
    if !reply.status.is_success() {
        return Err(io::Error::other(refusal(reply.status)));
    }
    serde_json::from_slice(&reply.body).map_err(io::Error::other)
}
