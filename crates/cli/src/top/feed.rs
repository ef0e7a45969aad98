//! Asks the control plane for live figures, once a second.

use http::Method;
use serde::de::DeserializeOwned;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tollgate_control::live::{FleetNodes, LiveReport, NodeTop};
use tollgate_control::{HttpCall, HttpClient, HttpClientError};

const INTERVAL: Duration = Duration::from_secs(1);
/// Between two attempts after a failure: it doubles up to the last.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];
/// Messages that wait to be drawn.
const QUEUE: usize = 16;

/// What is known at one time.
#[derive(Clone, Debug, Default)]
pub struct LiveSnapshot {
    pub live: LiveReport,
    pub nodes: FleetNodes,
    pub top: NodeTop,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// No reply.
    #[error("{0}")]
    Client(#[from] HttpClientError),
    /// A reply that is an error.
    #[error("{path} was answered with {status}{hint}")]
    Status { path: &'static str, status: http::StatusCode, hint: &'static str },
    /// A reply that is not what was asked for.
    #[error("{path} was answered with something else: {error}")]
    Body { path: &'static str, error: serde_json::Error },
    /// The runtime cannot be started.
    #[error("cannot start a thread: {0}")]
    Runtime(#[from] io::Error),
}

/// What the thread that draws gets.
#[derive(Debug)]
pub enum FeedMessage {
    /// New figures.
    Snapshot(Box<LiveSnapshot>),
    /// There are none, and when the next attempt is.
    Failed(String, Duration),
    /// A signal: the program has to end.
    Stop,
}

/// The thread that asks. It ends when this is dropped.
#[derive(Debug)]
pub struct Feed {
    _runtime: tokio::runtime::Runtime,
}

impl Feed {
    /// Begins to ask.
    pub fn start(client: HttpClient) -> io::Result<(Self, Receiver<FeedMessage>)> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (sender, messages) = sync_channel(QUEUE);
        let stop = sender.clone();
        runtime.block_on(async {
            let (mut terminated, mut hung_up) =
                (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
            tokio::spawn(async move {
                tokio::select! {
                    _ = terminated.recv() => {}
                    _ = hung_up.recv() => {}
                }
                let _ = stop.try_send(FeedMessage::Stop);
            });
            io::Result::Ok(())
        })?;
        runtime.spawn(keep_asking(client, sender));
        Ok((Self { _runtime: runtime }, messages))
    }
}

async fn keep_asking(client: HttpClient, sender: SyncSender<FeedMessage>) {
    let [first, last] = RETRY;
    let mut retry = first;
    loop {
        let (message, wait) = match fetch(&client).await {
            Ok(snapshot) => {
                retry = first;
                (FeedMessage::Snapshot(Box::new(snapshot)), INTERVAL)
            }
            Err(error) => {
                let wait = retry;
                retry = (retry * 2).min(last);
                (FeedMessage::Failed(error.to_string(), wait), wait)
            }
        };
        // A full queue means that the terminal is slow: the next figures are newer.
        let _ = sender.try_send(message);
        tokio::time::sleep(wait).await;
    }
}

/// Asks once.
pub fn fetch_once(client: &HttpClient) -> Result<LiveSnapshot, FeedError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(fetch(client))
}

async fn fetch(client: &HttpClient) -> Result<LiveSnapshot, FeedError> {
    let (live, nodes, top) = tokio::try_join!(
        get(client, "/v1/live?range=5m"),
        get(client, "/v1/nodes"),
        get(client, "/v1/top?count=20")
    )?;
    Ok(LiveSnapshot { live, nodes, top })
}

async fn get<T: DeserializeOwned>(client: &HttpClient, path: &'static str) -> Result<T, FeedError> {
    let reply = client.send(HttpCall::new(Method::GET, path)).await?;
    if !reply.status.is_success() {
        let hint = match reply.status.as_u16() {
            401 => {
                "\n  hint: give a token with TOLLGATE_TOKEN or --token-file; the start message of the node says where it is"
            }
            404 => "\n  hint: is it the admin address of a node, and of this version?",
            _ => "",
        };
        return Err(FeedError::Status { path, status: reply.status, hint });
    }
    serde_json::from_slice(&reply.body).map_err(|error| FeedError::Body { path, error })
}
