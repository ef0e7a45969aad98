//! The path of a request: from a connection, through scrubber and limits, to the forwarder.

use crate::access_log::{AccessLog, LoggedRequest, PendingLogEntry};
use crate::body::{GatewayBody, RoutedBody};
use crate::client_address::ClientAddresses;
use crate::forward::{Forwarder, ThreadForwarder};
use crate::forwarding_state::ForwardingState;
use crate::headers::ClientOrigin;
use crate::measured_body::MeasuredBody;
use crate::metrics::{ResponseResult, ThreadCounters};
use crate::request_id::{self, X_REQUEST_ID};
use crate::route_table::RouteIndex;
use crate::scrub::Scrubber;
use crate::settings::{LookalikeHeaders, RequestIds};
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use ipnet::IpNet;
use pin_project_lite::pin_project;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;
use tollgate_http::RateLimitLayer;
use tollgate_http::body::ErrorCode;
use tollgate_http::layer::{DecisionSummary, RateLimit, ResponseBody, ResponseSource};
use tollgate_http::response::{StoreUnavailableRefusal, is_limited};
use tollgate_listen::{AddressVerdict, Peer, RefusedRepeat, RepeatedRequest};
use tower::{Layer, Service};

/// Builds the services of one thread. Layers are put in front of the forwarder here and nowhere else.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    pub(crate) limits: RateLimitLayer,
    pub(crate) forwarder: ThreadForwarder,
    pub(crate) trusted: Arc<[IpNet]>,
    pub(crate) lookalikes: LookalikeHeaders,
    pub(crate) request_ids: RequestIds,
    pub(crate) log: Option<AccessLog>,
}

impl Stack {
    /// The service of one connection.
    pub(crate) fn service(&self, peer: Peer) -> GatewayService {
        let scheme = if peer.secure { Scheme::HTTPS } else { Scheme::HTTP };
        let origin = ClientOrigin::new(peer.address, &scheme, &self.trusted);
        let scrubber = Scrubber::new(self.forwarder.reserved(), self.lookalikes, &origin);
        let limits = self.limits.for_peer(peer.address);
        let clients = ClientAddresses::of_peer(peer.address.ip(), &self.limits);
        let peer = Arc::new(peer);
        let log = self.log.clone().map(|log| ConnectionLog { log, clients: clients.clone() });
        let service = limits.layer(self.forwarder.for_connection(Arc::clone(&peer), origin, clients));
        let (state, counters) = (Arc::clone(self.forwarder.state()), Arc::clone(self.forwarder.counters()));
        GatewayService {
            scrubber,
            limits,
            service,
            peer,
            request_ids: self.request_ids,
            state,
            counters,
            log,
        }
    }
}

/// The service of one connection.
#[derive(Debug)]
pub(crate) struct GatewayService {
    scrubber: Scrubber,
    limits: RateLimitLayer,
    service: RateLimit<Forwarder>,
    peer: Arc<Peer>,
    request_ids: RequestIds,
    state: Arc<ForwardingState>,
    counters: Arc<ThreadCounters>,
    log: Option<ConnectionLog>,
}

/// The access log, for the requests of one connection.
#[derive(Clone, Debug)]
struct ConnectionLog {
    log: AccessLog,
    clients: ClientAddresses,
}

impl ConnectionLog {
    /// Starts the entry of `request`, which began at `start` and whose target was `target`.
    fn start_entry<B>(
        &self,
        request: &Request<B>,
        target: &Uri,
        request_id: Option<HeaderValue>,
        start: Instant,
    ) -> PendingLogEntry {
        let request = LoggedRequest {
            client: self.clients.address(request.headers()),
            method: request.method(),
            target,
            version: request.version(),
            headers: request.headers(),
            request_id,
        };
        self.log.start_entry(request, start)
    }
}

impl hyper::service::Service<Request<Incoming>> for GatewayService {
    type Response = Response<MeasuredBody<ResponseBody<RoutedBody>>>;
    type Error = Infallible;
    type Future = GatewayFuture;

    fn call(&self, mut request: Request<Incoming>) -> GatewayFuture {
        let start = Instant::now();
        // Before hop-by-hop headers are removed: they decide whether the fast path can refuse repeats.
        let repeated = self.peer.keep_request(&self.limits, &request);
        let route = self.state.route_of(&request);
        let repeated = repeated.map(|repeated| self.with_id_and_counts(repeated, &request, route));
        // What decides about a request, and writes into it, sees what the server will see.
        self.scrubber.scrub(&mut request);
        let request_id = match self.request_ids {
            RequestIds::Forwarded => None,
            RequestIds::Assigned => Some(request_id::assign(request.headers_mut())),
        };
        let entry = self.log.as_ref().map(|log| {
            let id = request_id.as_ref().or_else(|| request_id::of_client(request.headers()));
            let entry = log.start_entry(&request, request.uri(), id.cloned(), start);
            request.extensions_mut().insert(Arc::clone(entry.trace()));
            Box::new(entry)
        });
        // The forwarder is always ready.
        let response = self.service.clone().call(request);
        let (peer, counters) = (Arc::clone(&self.peer), Some(Arc::clone(&self.counters)));
        GatewayFuture { response, start, route, peer, counters, entry, request_id, repeated }
    }
}

impl GatewayService {
    /// Gives the refusals of repeats the id of `request`, counts them and writes them into the access log. A repeat has the same headers,
    /// and so the same id; without one it gets none, because all refusals are the same bytes.
    fn with_id_and_counts<B>(
        &self,
        repeated: Box<RepeatedRequest>,
        request: &Request<B>,
        route: RouteIndex,
    ) -> Box<RepeatedRequest> {
        let request_id = request_id::of_client(request.headers()).cloned();
        let repeated = match &request_id {
            Some(id) if self.request_ids == RequestIds::Assigned => {
                repeated.with_header(X_REQUEST_ID.clone(), id.clone())
            }
            _ => repeated,
        };
        let (counters, log) = (Arc::clone(&self.counters), self.log.clone());
        repeated.on_refusal(move |mut repeat: RefusedRepeat<'_>| {
            let status = ErrorCode::RateLimitExceeded.status();
            counters.record_refused_repeat(route, status, repeat.body_bytes);
            if let Some(log) = &log {
                let (summary, id) = (repeat.summarize(), request_id.clone());
                let entry = log.start_entry(repeat.request(), repeat.target, id, Instant::now());
                entry.end_as_refused(summary, repeat.body_bytes);
            }
        })
    }
}

pin_project! {
    /// A request in progress.
    pub(crate) struct GatewayFuture {
        #[pin]
        response: <RateLimit<Forwarder> as Service<Request<Incoming>>>::Future,
        start: Instant,
        // Of a request that does not reach the forwarder.
        route: RouteIndex,
        peer: Arc<Peer>,
        // Handed to the body of the response.
        counters: Option<Arc<ThreadCounters>>,
        entry: Option<Box<PendingLogEntry>>,
        request_id: Option<HeaderValue>,
        repeated: Option<Box<RepeatedRequest>>,
    }
}

impl Future for GatewayFuture {
    type Output = Result<Response<MeasuredBody<ResponseBody<RoutedBody>>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.response.poll(cx))?;
        let counters = this.counters.take().expect("a future is not polled after it was ready");
        let (route, result) = match response.body().source() {
            ResponseSource::Service(body) => (body.route, ResponseResult::Admitted),
            ResponseSource::Refusal | ResponseSource::InvalidRequest => {
                (*this.route, ResponseResult::Refused)
            }
        };
        counters.record_response(route, result, response.status(), this.start.elapsed());
        if let Some(id) = this.request_id.take() {
            response.headers_mut().insert(&X_REQUEST_ID, id);
        }
        if let Some(entry) = this.entry
            && let Some(summary) = response.extensions_mut().remove::<DecisionSummary>()
        {
            entry.record_decision(summary);
        }
        if response.extensions().get::<StoreUnavailableRefusal>().is_some() {
            // An unavailable store counts neither for nor against the client.
            return Poll::Ready(Ok(MeasuredBody::wrap(counters, this.entry.take(), response)));
        }
        match response.body().source() {
            ResponseSource::Refusal => {
                // A denied client is refused whatever it requests, so nothing of the request is remembered.
                if is_limited(&response) {
                    this.peer.record_refusal(this.repeated.take());
                } else {
                    this.peer.record_other_response();
                }
                let verdict = this.peer.counted.as_ref().map(|counted| counted.record_refusal());
                if verdict == Some(AddressVerdict::Refused) {
                    this.peer.close_after_response();
                }
            }
            // An invalid request says nothing about whether a valid one would have been refused.
            ResponseSource::InvalidRequest
            | ResponseSource::Service(RoutedBody { body: GatewayBody::InvalidRequest(_), .. }) => {
                this.peer.record_other_response()
            }
            ResponseSource::Service(_) => {
                this.peer.record_other_response();
                this.peer.counted.as_ref().inspect(|counted| counted.record_admission());
            }
        }
        Poll::Ready(Ok(MeasuredBody::wrap(counters, this.entry.take(), response)))
    }
}
