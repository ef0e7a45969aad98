//! One connection, from its first byte to its last.

use crate::connection_activity::{ConnectionActivity, HeadTiming, OpenRequest, SlowClientDetector};
use crate::connection_limits::CountedConnection;
use crate::connection_signal::ConnectionSignal;
use crate::framing::FramingWatch;
use crate::http2_streams::{StreamExecutor, StreamMeter};
use crate::listener_counters::OpenConnection;
use crate::min_rate::SendLimits;
use crate::observed_stream::{ObservedBody, ObservedStream};
use crate::protocol::{self, DetectedProtocol, ProtocolBuilders};
use crate::refusal_fast_path::FastPathStream;
use crate::serve::{BoxError, ServerPhase};
use crate::tls_handshake::accept_tls;
use crate::{ConnectionService, Framing, ServeOptions};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, Service, service_fn};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use tollgate_http::response;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
const ALPN_HTTP2: &[u8] = b"h2";

/// A connection that was accepted.
pub(crate) struct AcceptedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    pub(crate) permits: ConnectionPermits,
    pub(crate) activity: Arc<ConnectionActivity>,
    pub(crate) phase: watch::Receiver<ServerPhase>,
    pub(crate) options: ServeOptions,
}

/// What a connection holds for as long as it is open.
pub(crate) struct ConnectionPermits {
    /// One of the listener's connections.
    pub(crate) _slot: OwnedSemaphorePermit,
    pub(crate) open: OpenConnection,
    /// None if its address is not counted.
    pub(crate) counted: Option<Arc<CountedConnection>>,
}

impl AcceptedConnection {
    /// Serves it to its end.
    pub(crate) async fn run(
        mut self,
        builders: Arc<ProtocolBuilders>,
        tls: Option<Arc<ServerConfig>>,
        service: impl ConnectionService,
    ) {
        if let Some(tls) = tls {
            // Boxed, as HTTP/2 is below: a task is as large as the largest thing that it may become.
            return Box::pin(self.run_tls(builders, tls, service)).await;
        }
        let Some(protocol) = self.detect_protocol(&builders).await else { return };
        let Self { stream, address, permits, activity, phase, options } = self;
        let negotiated = NegotiatedConnection { protocol, permits, address, activity, phase, options };
        negotiated.serve(stream, &builders, service).await;
    }

    async fn run_tls(
        self,
        builders: Arc<ProtocolBuilders>,
        tls: Arc<ServerConfig>,
        service: impl ConnectionService,
    ) {
        let Self { stream, address, permits, activity, mut phase, options } = self;
        let counters = permits.open.counters();
        let accepted = accept_tls(stream, address, tls, counters, options.head_time, &mut phase).await;
        let Some(stream) = accepted else { return };
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(ALPN_HTTP2) => DetectedProtocol::Http2(Vec::new()),
            _ => DetectedProtocol::Http1(Vec::new()),
        };
        let negotiated = NegotiatedConnection { protocol, permits, address, activity, phase, options };
        negotiated.serve(stream, &builders, service).await;
    }

    /// None if the client sends nothing in time.
    async fn detect_protocol(&mut self, builders: &ProtocolBuilders) -> Option<DetectedProtocol> {
        if builders.http2.is_none() {
            return Some(DetectedProtocol::Http1(Vec::new()));
        }
        let detected = timeout(self.options.head_time, protocol::detect(&mut self.stream));
        tokio::select! {
            biased;
            detected = detected => detected.ok()?.ok(),
            _ = self.phase.changed() => None,
        }
    }
}

/// A connection whose protocol is known.
struct NegotiatedConnection {
    protocol: DetectedProtocol,
    address: SocketAddr,
    permits: ConnectionPermits,
    activity: Arc<ConnectionActivity>,
    phase: watch::Receiver<ServerPhase>,
    options: ServeOptions,
}

impl NegotiatedConnection {
    async fn serve<I>(self, stream: I, builders: &ProtocolBuilders, service: impl ConnectionService)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { protocol, address, permits, activity, phase, options } = self;
        let observed = |head_timing, unread, framing| {
            ObservedStream::new(stream, head_timing, unread, framing, &activity, permits)
        };
        let service = {
            let activity = Arc::clone(&activity);
            service_fn(move |request: Request<Incoming>| call(&service, request, &activity))
        };
        let driver = ConnectionDriver { address, activity: Arc::clone(&activity), phase, options };
        match (protocol, &builders.http2) {
            (DetectedProtocol::Http2(unread), Some(http2)) => {
                let stream = TokioIo::new(observed(HeadTiming::Untimed, unread, None));
                let served = http2.serve_connection(stream, service);
                Box::pin(driver.drive(served, HeadTiming::Untimed)).await;
            }
            (DetectedProtocol::Http1(unread) | DetectedProtocol::Http2(unread), _) => {
                let framing = (options.framing == Framing::Strict).then(FramingWatch::new);
                let stream = FastPathStream::new(observed(HeadTiming::Timed, unread, framing));
                let served = builders.http1.serve_connection(TokioIo::new(stream), service);
                driver.drive(served.with_upgrades(), HeadTiming::Timed).await;
            }
        }
    }
}

/// Calls the service, and records the beginning and the end of the request.
fn call<S, B>(
    service: &S,
    request: Request<Incoming>,
    activity: &Arc<ConnectionActivity>,
) -> PendingResponse<S::Future>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
{
    let open = OpenRequest::new(activity);
    let version = request.version();
    PendingResponse { response: service.call(request), open: Some(open), version }
}

pin_project_lite::pin_project! {
    /// A request that is being answered.
    struct PendingResponse<F> {
        #[pin]
        response: F,
        // Handed to the body of the response.
        open: Option<OpenRequest>,
        version: Version,
    }
}

impl<F, B, E> Future for PendingResponse<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ObservedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.response.poll(cx))?;
        let mut open = this.open.take().expect("a future is not polled after it was ready");
        open.record_response_head();
        if response::switches_protocols(&response) {
            open.activity().upgrade();
        }
        let is_http2 = *this.version == Version::HTTP_2;
        if open.activity().closes_after_response() && !is_http2 {
            response.headers_mut().insert(CONNECTION, CLOSE);
        }
        let limits = response.extensions_mut().remove::<SendLimits>();
        let meter = if is_http2 { StreamMeter::current() } else { None };
        match (limits, &meter) {
            (None, _) => {}
            (Some(limits), Some(meter)) => meter.set_limits(limits),
            (Some(limits), None) => open.activity().set_send_limits(limits),
        }
        Poll::Ready(Ok(response.map(|body| ObservedBody { body, open, meter })))
    }
}

/// Drives a connection, and closes it when it has to be.
struct ConnectionDriver {
    address: SocketAddr,
    activity: Arc<ConnectionActivity>,
    phase: watch::Receiver<ServerPhase>,
    options: ServeOptions,
}

/// What happens to a connection.
enum ConnectionEvent {
    Ended(Result<(), hyper::Error>),
    /// The server drains or stops. None if it is gone altogether.
    PhaseChanged(Option<ServerPhase>),
    /// The next look at the activity is due.
    LookDue,
}

impl ConnectionDriver {
    async fn drive(mut self, served: impl HyperConnection, head_timing: HeadTiming) {
        let mut served = pin!(served);
        let mut detector = SlowClientDetector::new(&self.options, head_timing);
        let mut looks = interval_at(Instant::now() + detector.period, detector.period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let peer = self.address;
        let mut is_shutting_down = false;
        loop {
            let mut signal = None;
            let mut rare = pin!(next_rare_event(&mut self.phase, &mut looks));
            let activity = &self.activity;
            let event = poll_fn(|cx| {
                let mut polled = served.as_mut().poll(cx);
                if polled.is_pending() && activity.is_flooded() {
                    tracing::debug!(%peer, "connection closed: the client cancels most of its requests");
                    polled = Poll::Ready(Ok(()));
                }
                // On HTTP/1.1 the header `Connection: close` has the same effect.
                if polled.is_pending() && !is_shutting_down && activity.closes_after_response() {
                    is_shutting_down = true;
                    served.as_mut().shut_down();
                    polled = served.as_mut().poll(cx);
                }
                match polled {
                    Poll::Ready(ended) => Poll::Ready(ConnectionEvent::Ended(ended)),
                    Poll::Pending => ConnectionSignal::of_task(&mut signal, cx).poll_if_woken(rare.as_mut()),
                }
            });
            match event.await {
                ConnectionEvent::Ended(Ok(())) => return,
                ConnectionEvent::Ended(Err(error)) => {
                    return tracing::debug!(%peer, %error, "connection error");
                }
                ConnectionEvent::PhaseChanged(Some(ServerPhase::Serving)) => {}
                ConnectionEvent::PhaseChanged(Some(ServerPhase::Draining)) => served.as_mut().shut_down(),
                ConnectionEvent::PhaseChanged(Some(ServerPhase::Stopped) | None) => return,
                ConnectionEvent::LookDue if detector.is_too_slow(&self.activity) => {
                    return tracing::debug!(%peer, "connection closed: client too slow, or idle timeout");
                }
                ConnectionEvent::LookDue => {}
            }
        }
    }
}

/// The events that come every few seconds at most.
async fn next_rare_event(phase: &mut watch::Receiver<ServerPhase>, looks: &mut Interval) -> ConnectionEvent {
    tokio::select! {
        biased;
        // Without a sender the server is gone altogether.
        changed = phase.changed() => {
            ConnectionEvent::PhaseChanged(changed.ok().map(|()| *phase.borrow_and_update()))
        }
        _ = looks.tick() => ConnectionEvent::LookDue,
    }
}

/// A connection that hyper serves.
trait HyperConnection: Future<Output = Result<(), hyper::Error>> {
    /// Ends it after the requests in flight.
    fn shut_down(self: Pin<&mut Self>);
}

impl<I, S> HyperConnection for http1::UpgradeableConnection<TokioIo<I>, S>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: HttpService<Incoming, ResBody: 'static, Error: Into<BoxError>>,
    <S::ResBody as Body>::Error: Into<BoxError>,
{
    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S> HyperConnection for http2::Connection<TokioIo<I>, S, StreamExecutor>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody: Send + 'static, Error: Into<BoxError>, Future: Send + 'static>,
    <S::ResBody as Body>::Error: Into<BoxError>,
    <S::ResBody as Body>::Data: Send,
{
    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
