//! The HTTP door: routes requests to the check API, forward-auth and the health endpoints.

use crate::auth::{self, ForwardAuth};
use crate::{batch, check};
use http::header::CONNECTION;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_core::rules::{DoorCapability, OpenDoor};
use tollgate_http::endpoint::{EndpointMethods, EndpointTable};
use tollgate_http::{FullResponse, HeaderOptions, origin};
use tollgate_limiter::Limiter;
use tollgate_listen::{
    DiscardedBody, ListenerSetup, Peer, Readiness, ServeOptions, discard_body, health_response, read_body,
    serve,
};

/// The time within which a request body must arrive.
const BODY_TIME: Duration = Duration::from_secs(10);
/// More than nginx accepts from its clients by default, which is 32 KiB.
const MOST_HEAD_BYTES: usize = 64 * 1024;

/// What the HTTP door needs to respond.
#[derive(Debug)]
pub struct HttpDoor {
    /// Makes the decisions.
    pub limiter: Arc<Limiter>,
    /// Which rate limit headers responses carry.
    pub headers: HeaderOptions,
    /// Answers `/v1/auth`.
    pub forward_auth: ForwardAuth,
    /// What `/readyz` reports.
    pub readiness: Arc<Readiness>,
}

impl HttpDoor {
    /// What the check API supports, for the rule compiler: callers state identities, tiers and priorities themselves; it
    /// neither queues requests nor sees them end.
    pub fn describe() -> OpenDoor {
        let capabilities =
            BTreeSet::from([DoorCapability::Domain, DoorCapability::Tier, DoorCapability::Priority]);
        OpenDoor { name: "the check API", capabilities, identities: None }
    }

    /// The bounds of its listener. A proxy that asks passes on the headers of its client, and adds its own.
    pub fn default_options() -> ServeOptions {
        ServeOptions { most_head_bytes: MOST_HEAD_BYTES, ..ServeOptions::default() }
    }

    /// Serves until `shutdown` resolves, then drains. Returns the number of connections that were cut because they were
    /// still busy at the end of the grace period.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
        options: ServeOptions,
    ) -> usize {
        let readiness = Arc::clone(&self.readiness);
        let shutdown = async move {
            shutdown.await;
            readiness.set_draining();
        };
        let connect = |peer: Peer| service(Arc::clone(&self), peer.address.ip());
        serve(listener, ListenerSetup::default(), connect, shutdown, options).await
    }
}

/// The service of one connection.
fn service(
    door: Arc<HttpDoor>,
    peer: IpAddr,
) -> impl Service<
    Request<Incoming>,
    Response = FullResponse,
    Error = Infallible,
    Future: Future<Output = Result<FullResponse, Infallible>> + Send,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |request| {
        let door = Arc::clone(&door);
        async move { Ok(door.respond(request, peer).await) }
    })
}

/// An endpoint of the HTTP door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckEndpoint {
    Check,
    Batch,
    Auth,
    Health,
    Ready,
}

const ENDPOINTS: EndpointTable<CheckEndpoint> = EndpointTable(&[
    ("/v1/check", EndpointMethods::Post, CheckEndpoint::Check),
    ("/v1/check/batch", EndpointMethods::Post, CheckEndpoint::Batch),
    ("/v1/auth", EndpointMethods::ReadOrPost, CheckEndpoint::Auth),
    ("/healthz", EndpointMethods::Read, CheckEndpoint::Health),
    ("/readyz", EndpointMethods::Read, CheckEndpoint::Ready),
]);

impl HttpDoor {
    async fn respond(&self, request: Request<Incoming>, peer: IpAddr) -> FullResponse {
        let (head, body) = request.into_parts();
        let endpoint = match ENDPOINTS.find(&head.method, head.uri.path()) {
            Ok(endpoint) => endpoint,
            Err(response) => return *response,
        };
        if matches!(endpoint, CheckEndpoint::Check | CheckEndpoint::Batch)
            && let Err(error) = origin::verify(&head.headers)
        {
            return error.response();
        }
        match endpoint {
            CheckEndpoint::Check => match read_body(body, check::MOST_BYTES, BODY_TIME).await {
                Ok(json) => check::respond(self, &head.headers, &json).await,
                Err(error) => error.response(),
            },
            CheckEndpoint::Batch => match read_body(body, batch::MOST_BYTES, BODY_TIME).await {
                Ok(json) => batch::respond(self, &json).await,
                Err(error) => error.response(),
            },
            CheckEndpoint::Auth => {
                let discarded = discard_body(body, auth::MOST_BYTES, BODY_TIME).await;
                let mut response = self.forward_auth.respond(head, peer).await;
                if discarded == DiscardedBody::Part {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response
            }
            CheckEndpoint::Health => health_response(),
            CheckEndpoint::Ready => self.readiness.response(),
        }
    }
}
