//! The admin listener of a node: the REST API of the control plane, health and metrics.
//!
//! A group of endpoints has a file in `admin/`, and its lines in [`endpoints`]: which role a caller needs is decided by
//! where the line is. Everything runs on a thread of its own, so that it takes no time from threads that decide.

mod access;
mod audit;
mod change_numbers;
mod control_state;
mod emergency;
mod events;
mod grants;
mod health;
mod keys;
mod lists;
mod live;
mod metrics;
mod openapi;
mod problem;
mod publish;
mod request_parts;
mod revisions;
mod rule_check;
mod rule_edits;
mod rule_questions;
mod rule_summary;
mod rules;
mod security_headers;
mod session;
mod tokens;
mod top;
mod views;

use crate::live::LiveView;
use crate::page;
use crate::repository::RuleRepository;
use crate::revision::RevisionId;
use crate::rule_owner::RuleOwner;
pub use access::OperateTokenFile;
use access::{Access, AdminPeer, HostPolicy, LoginLimit, SessionTable, TokenRegistry};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::future::RouteFuture;
use change_numbers::ChangeNumbers;
use hyper::body::Incoming;
use metrics::MetricsRenderer;
pub use metrics::{MetricsSource, RenderedMetrics};
pub(crate) use problem::Problem;
use rule_summary::RuleSummary;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, thread};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, Semaphore, oneshot, watch};
use tollgate_core::rules::OpenDoor;
use tollgate_core::time::UnixTime;
use tollgate_http::body::ErrorCode;
use tollgate_limiter::Limiter;
use tollgate_listen::{ListenerSetup, Peer, Protocols, Readiness, ServeOptions, serve};
use tower_service::Service;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The most open connections: scrapers, probes, operators, nodes that follow.
const MOST_CONNECTIONS: u32 = 512;
/// How long a request in flight may take at shutdown. The doors are drained before.
const GRACE: Duration = Duration::from_secs(1);
/// The most threads for what takes long: rule tests, metrics.
const MOST_BLOCKING_THREADS: usize = 8;

/// What the admin listener needs to respond.
pub struct AdminListener {
    /// What `/readyz` reports.
    pub readiness: Arc<Readiness>,
    /// What `/metrics` reports.
    pub metrics: Arc<dyn MetricsSource>,
    /// What keys and top keys are asked of.
    pub limiter: Arc<Limiter>,
    /// The live figures of the fleet.
    pub live: LiveView,
    /// The revisions of the rules, the tokens and the audit log.
    pub repository: RuleRepository,
    /// What owns the rules.
    pub rule_owner: RuleOwner,
    /// The doors of the node: rules with a feature that one of them does not support get a warning.
    pub doors: Vec<OpenDoor>,
    /// The first operate token.
    pub operate_token: OperateTokenFile,
    /// The names by which the listener may be addressed, beside its address and loopback.
    pub hosts: Vec<String>,
    /// TLS, and the limits of connections.
    pub setup: ListenerSetup,
}

/// Everything that endpoints use.
struct ControlPlane {
    readiness: Arc<Readiness>,
    metrics: MetricsRenderer,
    limiter: Arc<Limiter>,
    live: LiveView,
    /// Held while top keys are listed.
    top_turn: Arc<Mutex<()>>,
    repository: RuleRepository,
    rule_owner: RuleOwner,
    doors: Vec<OpenDoor>,
    access: Access,
    openapi: OpenApi,
    /// The rules of the newest revision that was asked for.
    summaries: Mutex<Option<(RevisionId, Vec<RuleSummary>)>>,
    /// What streams of events tell of changes.
    changes: watch::Sender<ChangeNumbers>,
    /// One permit for each stream of events.
    streams: Arc<Semaphore>,
    /// True when the node stops.
    stopping: watch::Receiver<bool>,
}

impl fmt::Debug for AdminListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminListener").field("readiness", &self.readiness).finish_non_exhaustive()
    }
}

/// All endpoints, by the role that they need.
fn endpoints() -> OpenApiRouter<Arc<ControlPlane>> {
    let open = OpenApiRouter::new()
        .routes(routes!(health::show_health))
        .routes(routes!(health::show_readiness))
        .routes(routes!(openapi::show_openapi))
        .routes(routes!(session::log_in));
    let open_to_this_host = OpenApiRouter::new()
        .routes(routes!(health::show_metrics))
        .route_layer(from_fn(access::require_read_from_elsewhere));
    let read = OpenApiRouter::new()
        .routes(routes!(session::show_session, session::log_out))
        .routes(routes!(rules::validate_rules))
        .routes(routes!(rule_edits::show_rule))
        .routes(routes!(lists::show_lists))
        .routes(routes!(rule_questions::diff_revisions))
        .routes(routes!(rule_questions::diff_rules))
        .routes(routes!(rule_questions::explain_request))
        .routes(routes!(rule_questions::preview_rules))
        .routes(routes!(revisions::list_revisions))
        .routes(routes!(revisions::show_revision))
        .routes(routes!(top::list_top))
        .routes(routes!(keys::show_key))
        .routes(routes!(grants::list_grants))
        .routes(routes!(emergency::show_emergency))
        .routes(routes!(live::show_live))
        .routes(routes!(live::list_nodes))
        .routes(routes!(audit::list_audit))
        .routes(routes!(tokens::list_tokens))
        .route_layer(from_fn(access::require_read));
    let read_or_follow = OpenApiRouter::new()
        .routes(routes!(rules::show_rules))
        .routes(routes!(events::stream_events))
        .route_layer(from_fn(access::require_read_or_follow));
    let follow = OpenApiRouter::new()
        .routes(routes!(control_state::show_control_state))
        .routes(routes!(live::post_status))
        .route_layer(from_fn(access::require_follow));
    let operate = OpenApiRouter::new()
        .routes(routes!(rules::put_rules))
        .routes(routes!(rule_edits::put_rule, rule_edits::patch_rule, rule_edits::remove_rule))
        .routes(routes!(rule_edits::put_tier))
        .routes(routes!(lists::add_entry, lists::remove_entry))
        .routes(routes!(revisions::roll_back))
        .routes(routes!(keys::reset_key))
        .routes(routes!(keys::block_key))
        .routes(routes!(keys::allow_key))
        .routes(routes!(grants::add_grant))
        .routes(routes!(grants::end_grant))
        .routes(routes!(grants::end_grant_by_id))
        .routes(routes!(emergency::put_emergency))
        .routes(routes!(tokens::create_token))
        .routes(routes!(tokens::revoke_token))
        .route_layer(from_fn(access::require_operate));
    open.merge(open_to_this_host).merge(read).merge(read_or_follow).merge(follow).merge(operate)
}

impl AdminListener {
    /// Serves until `shutdown` resolves, then drains. Returns the number of connections that were cut because they were
    /// still busy at the end of the grace period.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<usize> {
        let address = listener.local_addr()?;
        let setup = self.setup.clone();
        // With TLS a client may negotiate HTTP/2.
        let protocols = if setup.tls.is_some() { Protocols::Http1And2 } else { Protocols::Http1 };
        let options = ServeOptions {
            most_connections: MOST_CONNECTIONS,
            grace: GRACE,
            protocols,
            ..ServeOptions::default()
        };
        let (stopping, watched) = watch::channel(false);
        let (router, plane) = self.into_router(address, watched);
        let listener = listener.into_std()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (finish, finished) = oneshot::channel();
        let run = move || {
            let served = admin_runtime().and_then(|runtime| {
                let served = runtime.block_on(async {
                    let listener = TcpListener::from_std(listener)?;
                    tokio::spawn(plane.follow_changes());
                    let connect = |peer: Peer| AdminConnection {
                        router: router.clone(),
                        peer: AdminPeer {
                            address: peer.address,
                            is_local_listener: address.ip().is_loopback(),
                        },
                    };
                    let stopped = async {
                        drop(stopped.await);
                        stopping.send_replace(true);
                    };
                    Ok(serve(listener, setup, connect, stopped, options).await)
                });
                // A disk that hangs does not delay the end.
                runtime.shutdown_background();
                served
            });
            // The node may be gone.
            let _ = finish.send(served);
        };
        thread::Builder::new().name("admin".to_owned()).spawn(run)?;
        shutdown.await;
        drop(stop);
        finished.await.unwrap_or(Ok(0))
    }

    fn into_router(
        self,
        address: SocketAddr,
        stopping: watch::Receiver<bool>,
    ) -> (Router, Arc<ControlPlane>) {
        let Self {
            readiness,
            metrics,
            limiter,
            live,
            repository,
            rule_owner,
            doors,
            operate_token,
            hosts,
            setup,
        } = self;
        let hosts = HostPolicy { address: address.ip(), hosts, is_secure: setup.tls.is_some() };
        let (router, openapi) = endpoints().split_for_parts();
        let access = Access {
            hosts,
            tokens: TokenRegistry::new(operate_token, repository.clone()),
            sessions: SessionTable::default(),
            logins: LoginLimit::new(limiter.clock().clone()),
        };
        let openapi = openapi::complete(openapi);
        let plane = Arc::new(ControlPlane {
            readiness,
            metrics: MetricsRenderer::new(metrics),
            limiter,
            live,
            top_turn: Arc::default(),
            repository,
            rule_owner,
            doors,
            access,
            openapi,
            summaries: Mutex::default(),
            changes: watch::Sender::default(),
            streams: Arc::new(Semaphore::new(events::MOST_STREAMS)),
            stopping,
        });
        let router = router
            .merge(page::routes())
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(from_fn_with_state(Arc::clone(&plane), access::authenticate))
            .layer(from_fn(security_headers::add))
            .with_state(Arc::clone(&plane));
        (router, plane)
    }
}

/// The runtime of the admin listener: one thread, and a few for what takes long.
fn admin_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MOST_BLOCKING_THREADS)
        .thread_name("admin-blocking")
        .build()
}

/// The description of the API, as `/openapi.json` shows it.
pub fn openapi_document() -> serde_json::Value {
    let (_, openapi) = endpoints().split_for_parts();
    serde_json::to_value(openapi::complete(openapi)).unwrap_or_default()
}

/// Answers the requests of one connection.
#[derive(Clone, Debug)]
struct AdminConnection {
    router: Router,
    peer: AdminPeer,
}

impl hyper::service::Service<http::Request<Incoming>> for AdminConnection {
    type Response = Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.peer);
        // A router is always ready.
        self.router.clone().call(request)
    }
}

/// A path that is not served. Only a caller with a token learns that.
async fn not_found(_: access::Operator, request: Request) -> Problem {
    let path: String = request.uri().path().chars().take(100).collect();
    Problem::not_found(format!("there is nothing at `{path}`; `GET /openapi.json` lists what there is"))
}

async fn method_not_allowed(_: access::Operator, request: Request) -> Problem {
    let detail =
        format!("the method {} is not answered here; `GET /openapi.json` lists what is", request.method());
    Problem::new(ErrorCode::MethodNotAllowed, detail)
}

/// Runs `work`, which takes long, beside the thread that answers.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "admin request failed");
        Problem::unavailable("the request failed; see the log")
    })
}

impl ControlPlane {
    /// The wall-clock time.
    fn now(&self) -> UnixTime {
        self.limiter.clock().now()
    }

    /// The repository with the state of the node or its fleet; an error if that is the state of another control plane.
    fn shared_state(&self) -> Result<&RuleRepository, Problem> {
        match &self.rule_owner {
            RuleOwner::Repository | RuleOwner::File => Ok(&self.repository),
            RuleOwner::ControlPlane(followed) => {
                let url = &followed.url;
                Err(Problem::conflict(format!("this node follows the control plane {url}; set it there")))
            }
        }
    }

    /// The repository, for a change of the rules; an error if they are owned by something else.
    fn published_rules(&self) -> Result<&RuleRepository, Problem> {
        match self.rule_owner.refusal() {
            None => Ok(&self.repository),
            Some(refusal) => Err(Problem::conflict(refusal)),
        }
    }
}
