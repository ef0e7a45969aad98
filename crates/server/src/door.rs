//! The HTTP door: which path leads where.

use crate::ready::Readiness;
use crate::{batch, check};
use http::{Method, Request};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_core::rules::{Ability, OpenDoor};
use tollgate_http::{Answer, Entrance, Fault, HeaderOptions, ServeOptions, answer, origin, read, serve};
use tollgate_limiter::Limiter;

/// How long a body may take.
const BODY_TIME: Duration = Duration::from_secs(10);

/// What the door needs to answer.
#[derive(Debug)]
pub struct Door {
    /// Decides.
    pub limiter: Arc<Limiter>,
    /// Which headers go with an answer.
    pub headers: HeaderOptions,
    /// What `/readyz` says.
    pub readiness: Arc<Readiness>,
}

/// What this door can do for rules: callers name identities, tiers and priorities themselves, and it neither waits nor
/// sees requests end.
pub fn open_door() -> OpenDoor {
    let abilities = BTreeSet::from([Ability::Domain, Ability::Tier, Ability::Priority]);
    OpenDoor { name: "the check API", abilities, identities: None }
}

/// Serves the door until `shutdown`, then drains. Answers how many connections had to be cut.
pub async fn run(
    listener: TcpListener,
    door: Arc<Door>,
    shutdown: impl Future<Output = ()>,
    options: ServeOptions,
) -> usize {
    let readiness = Arc::clone(&door.readiness);
    let shutdown = async move {
        shutdown.await;
        readiness.drain();
    };
    serve(listener, Entrance::default(), |_peer| service(Arc::clone(&door)), shutdown, options).await
}

/// The service of one connection.
pub fn service(
    door: Arc<Door>,
) -> impl Service<
    Request<Incoming>,
    Response = Answer,
    Error = Infallible,
    Future: Future<Output = Result<Answer, Infallible>> + Send,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |request| {
        let door = Arc::clone(&door);
        async move { Ok(door.answer(request).await) }
    })
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Check,
    Batch,
    Health,
    Ready,
}

impl Route {
    const ALL: [(&'static str, Self); 4] = [
        ("/v1/check", Self::Check),
        ("/v1/check/batch", Self::Batch),
        ("/healthz", Self::Health),
        ("/readyz", Self::Ready),
    ];

    fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == path).map(|(_, route)| route)
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

impl Door {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (asked, body) = request.into_parts();
        let Some(route) = Route::of(asked.uri.path()) else { return not_found(asked.uri.path()) };
        if !route.allows(&asked.method) {
            return answer::method_not_allowed(route.allow());
        }
        if matches!(route, Route::Check | Route::Batch)
            && let Err(fault) = origin::verify(&asked.headers)
        {
            return fault.answer();
        }
        match route {
            Route::Check => match read::whole(body, check::MOST_BYTES, BODY_TIME).await {
                Ok(json) => check::answer(self, &asked.headers, &json).await,
                Err(fault) => fault.answer(),
            },
            Route::Batch => match read::whole(body, batch::MOST_BYTES, BODY_TIME).await {
                Ok(json) => batch::answer(self, &json).await,
                Err(fault) => fault.answer(),
            },
            Route::Health => answer::text("ok"),
            Route::Ready => {
                self.readiness.missing().map_or_else(|| answer::text("ready"), answer::unavailable)
            }
        }
    }
}

fn not_found(path: &str) -> Answer {
    let known = Route::ALL.map(|(path, route)| {
        let method = route.allow().split(',').next().unwrap_or_default();
        format!("{method} {path}")
    });
    Fault::not_found(path).with_hint(format!("known are {}", known.join(", "))).answer()
}
