//! The HTTP door: routes requests to the check API and the health endpoints.

use crate::readiness::Readiness;
use crate::{batch, check};
use http::{Method, Request};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_core::rules::{DoorCapability, OpenDoor};
use tollgate_http::{FullResponse, HeaderOptions, HttpError, origin, response};
use tollgate_limiter::Limiter;
use tollgate_listen::{ListenerSetup, ServeOptions, read_body, serve};

/// The time within which a request body must arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// What the HTTP door needs to respond.
#[derive(Debug)]
pub struct HttpDoor {
    /// Makes the decisions.
    pub limiter: Arc<Limiter>,
    /// Which rate limit headers responses carry.
    pub headers: HeaderOptions,
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
        serve(listener, ListenerSetup::default(), |_peer| service(Arc::clone(&self)), shutdown, options).await
    }
}

/// The service of one connection.
fn service(
    door: Arc<HttpDoor>,
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
        async move { Ok(door.respond(request).await) }
    })
}

/// An endpoint of the HTTP door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpEndpoint {
    Check,
    Batch,
    Health,
    Ready,
}

impl HttpEndpoint {
    const ALL: [(&'static str, Self); 4] = [
        ("/v1/check", Self::Check),
        ("/v1/check/batch", Self::Batch),
        ("/healthz", Self::Health),
        ("/readyz", Self::Ready),
    ];

    fn at(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == path).map(|(_, endpoint)| endpoint)
    }

    /// The methods, as the `Allow` header lists them.
    fn allow(self) -> &'static str {
        match self {
            Self::Check | Self::Batch => "POST",
            Self::Health | Self::Ready => "GET, HEAD",
        }
    }

    fn allows(self, method: &Method) -> bool {
        match self {
            Self::Check | Self::Batch => method == Method::POST,
            Self::Health | Self::Ready => method == Method::GET || method == Method::HEAD,
        }
    }
}

impl HttpDoor {
    async fn respond(&self, request: Request<Incoming>) -> FullResponse {
        let (head, body) = request.into_parts();
        let Some(endpoint) = HttpEndpoint::at(head.uri.path()) else { return not_found(head.uri.path()) };
        if !endpoint.allows(&head.method) {
            return response::method_not_allowed(endpoint.allow());
        }
        if matches!(endpoint, HttpEndpoint::Check | HttpEndpoint::Batch)
            && let Err(error) = origin::verify(&head.headers)
        {
            return error.response();
        }
        match endpoint {
            HttpEndpoint::Check => match read_body(body, check::MOST_BYTES, BODY_TIME).await {
                Ok(json) => check::respond(self, &head.headers, &json).await,
                Err(error) => error.response(),
            },
            HttpEndpoint::Batch => match read_body(body, batch::MOST_BYTES, BODY_TIME).await {
                Ok(json) => batch::respond(self, &json).await,
                Err(error) => error.response(),
            },
            HttpEndpoint::Health => response::text("ok"),
            HttpEndpoint::Ready => match self.readiness.check() {
                Ok(()) => response::text("ready"),
                Err(reason) => response::unavailable(reason.message()),
            },
        }
    }
}

fn not_found(path: &str) -> FullResponse {
    let known = HttpEndpoint::ALL.map(|(path, endpoint)| {
        let method = endpoint.allow().split(',').next().unwrap_or_default();
        format!("{method} {path}")
    });
    HttpError::not_found(path).with_hint(format!("the endpoints are {}", known.join(", "))).response()
}
