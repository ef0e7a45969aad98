//! One connection: from its first byte to its last, with an eye on its progress and an ear for the drain.

use crate::connection_activity::{ConnectionActivity, HeadTiming, OpenRequest, SlowClientDetector};
use crate::connection_limits::CountedConnection;
use crate::connection_signal::ConnectionSignal;
use crate::framing::FramingWatch;
use crate::http2_streams::{StreamExecutor, StreamMeter};
use crate::min_rate::SendLimits;
use crate::observed_stream::{ObservedBody, ObservedStream};
use crate::protocol::{self, DetectedProtocol, ProtocolBuilders};
use crate::serve::{BoxError, ServerPhase};
use crate::{ConnectionService, Framing, ServeOptions};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
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
use tokio_rustls::TlsAcceptor;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
const HTTP2: &[u8] = b"h2";

/// A connection that was accepted.
pub(crate) struct AcceptedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    pub(crate) permits: ConnectionPermits,
    pub(crate) activity: Arc<ConnectionActivity>,
    pub(crate) phase: watch::Receiver<ServerPhase>,
    pub(crate) options: ServeOptions,
}

/// What a connection takes up, for as long as it is open.
pub(crate) struct ConnectionPermits {
    pub(crate) _slot: OwnedSemaphorePermit,
    pub(crate) counted: Option<Arc<CountedConnection>>,
}

impl AcceptedConnection {
    /// Serves it to its end.
    pub(crate) async fn run(
        mut self,
        speakers: Arc<ProtocolBuilders>,
        tls: Option<Arc<ServerConfig>>,
        service: impl ConnectionService,
    ) {
        if let Some(tls) = tls {
            // In a box of its own, as HTTP/2 is below: a task is as large as the largest thing that it may become.
            return Box::pin(self.run_tls(speakers, tls, service)).await;
        }
        let Some(beginning) = self.beginning(&speakers).await else { return };
        let Self { stream, address, permits, activity, phase, options } = self;
        let ready = NegotiatedConnection { beginning, permits, address, activity, phase, options };
        ready.serve(stream, &speakers, service).await;
    }

    async fn run_tls(
        self,
        speakers: Arc<ProtocolBuilders>,
        tls: Arc<ServerConfig>,
        service: impl ConnectionService,
    ) {
        let Self { stream, address, permits, activity, mut phase, options } = self;
        let greeting = timeout(options.head_time, TlsAcceptor::from(tls).accept(stream));
        let stream = tokio::select! {
            biased;
            greeted = greeting => match greeted {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(peer = %address, %error, "TLS did not come about"),
                Err(_) => return tracing::debug!(peer = %address, "TLS took too long"),
            },
            // A drain waits for requests, not for those who may send one.
            _ = phase.changed() => return,
        };
        let beginning = match stream.get_ref().1.alpn_protocol() {
            Some(HTTP2) => DetectedProtocol::Http2(Vec::new()),
            _ => DetectedProtocol::Http1(Vec::new()),
        };
        let ready = NegotiatedConnection { beginning, permits, address, activity, phase, options };
        ready.serve(stream, &speakers, service).await;
    }

    /// Finds out what a client speaks; none if it says nothing in time.
    async fn beginning(&mut self, speakers: &ProtocolBuilders) -> Option<DetectedProtocol> {
        if speakers.http2.is_none() {
            return Some(DetectedProtocol::Http1(Vec::new()));
        }
        tokio::select! {
            biased;
            heard = timeout(self.options.head_time, protocol::listen(&mut self.stream)) => heard.ok()?.ok(),
            _ = self.phase.changed() => None,
        }
    }
}

/// A connection of which is known what it speaks.
struct NegotiatedConnection {
    beginning: DetectedProtocol,
    address: SocketAddr,
    permits: ConnectionPermits,
    activity: Arc<ConnectionActivity>,
    phase: watch::Receiver<ServerPhase>,
    options: ServeOptions,
}

impl NegotiatedConnection {
    async fn serve<I>(self, stream: I, speakers: &ProtocolBuilders, service: impl ConnectionService)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { beginning, address, permits, activity, phase, options } = self;
        let marked = |heads, heard, watch| {
            TokioIo::new(ObservedStream::new(stream, heads, heard, watch, &activity, permits))
        };
        let answering = {
            let activity = Arc::clone(&activity);
            service_fn(move |request: Request<Incoming>| answer(&service, request, &activity))
        };
        let course = ConnectionDriver { address, activity: Arc::clone(&activity), phase, options };
        match (beginning, &speakers.http2) {
            (DetectedProtocol::Http2(heard), Some(http2)) => {
                let served = http2.serve_connection(marked(HeadTiming::Untimed, heard, None), answering);
                Box::pin(course.follow(served, HeadTiming::Untimed)).await;
            }
            (DetectedProtocol::Http1(heard) | DetectedProtocol::Http2(heard), _) => {
                let watch = (options.framing == Framing::Strict).then(FramingWatch::new);
                let served =
                    speakers.http1.serve_connection(marked(HeadTiming::Timed, heard, watch), answering);
                course.follow(served.with_upgrades(), HeadTiming::Timed).await;
            }
        }
    }
}

/// Calls the service, and activity the request's beginning and end.
fn answer<S, B>(
    service: &S,
    request: Request<Incoming>,
    activity: &Arc<ConnectionActivity>,
) -> PendingResponse<S::Future>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
{
    let open = OpenRequest::new(activity);
    let version = request.version();
    PendingResponse { answer: service.call(request), open: Some(open), version }
}

pin_project_lite::pin_project! {
    /// A request that is being answered.
    struct PendingResponse<F> {
        #[pin]
        answer: F,
        // Goes with the body of the answer.
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
        let mut answer = ready!(this.answer.poll(cx))?;
        let mut open = this.open.take().expect("a future is not polled after it was ready");
        open.answered();
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            open.activity().upgrade();
        }
        if open.activity().closes_after_response() && *this.version != Version::HTTP_2 {
            answer.headers_mut().insert(CONNECTION, CLOSE);
        }
        let pace = answer.extensions_mut().remove::<SendLimits>();
        let meter = if *this.version == Version::HTTP_2 { StreamMeter::current() } else { None };
        match (pace, &meter) {
            (None, _) => {}
            (Some(pace), Some(meter)) => meter.set_pace(pace),
            (Some(pace), None) => open.activity().set_pace(pace),
        }
        Poll::Ready(Ok(answer.map(|body| ObservedBody { body, open, meter })))
    }
}

/// A connection on its way.
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
    Look,
}

impl ConnectionDriver {
    /// Follows it to its end.
    async fn follow(mut self, served: impl HyperConnection, heads: HeadTiming) {
        let mut served = pin!(served);
        let mut patience = SlowClientDetector::new(&self.options, heads);
        let mut looks = interval_at(Instant::now() + patience.every, patience.every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let peer = self.address;
        let mut is_closing = false;
        loop {
            let mut signal = None;
            let mut rare = pin!(rare(&mut self.phase, &mut looks));
            let activity = &self.activity;
            let event = poll_fn(|cx| {
                let mut polled = served.as_mut().poll(cx);
                if polled.is_pending() && activity.is_flooded() {
                    tracing::debug!(%peer, "the connection takes back most of what it asks");
                    polled = Poll::Ready(Ok(()));
                }
                // On HTTP/1.1 the answer itself says that it is the last.
                if polled.is_pending() && !is_closing && activity.closes_after_response() {
                    is_closing = true;
                    served.as_mut().finish();
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
                    return tracing::debug!(%peer, %error, "the connection broke");
                }
                ConnectionEvent::PhaseChanged(Some(ServerPhase::Serving)) => {}
                ConnectionEvent::PhaseChanged(Some(ServerPhase::Draining)) => served.as_mut().finish(),
                ConnectionEvent::PhaseChanged(Some(ServerPhase::Stopped) | None) => return,
                ConnectionEvent::Look if patience.ends(&self.activity) => {
                    return tracing::debug!(%peer, "the connection was too slow or too long silent");
                }
                ConnectionEvent::Look => {}
            }
        }
    }
}

/// What happens every few seconds at most.
async fn rare(phase: &mut watch::Receiver<ServerPhase>, looks: &mut Interval) -> ConnectionEvent {
    tokio::select! {
        biased;
        // No sender means that the server is gone altogether.
        changed = phase.changed() => ConnectionEvent::PhaseChanged(changed.ok().map(|()| *phase.borrow_and_update())),
        _ = looks.tick() => ConnectionEvent::Look,
    }
}

/// A connection that hyper serves.
trait HyperConnection: Future<Output = Result<(), hyper::Error>> {
    /// Ends after what is in flight.
    fn finish(self: Pin<&mut Self>);
}

impl<I, S> HyperConnection for http1::UpgradeableConnection<TokioIo<I>, S>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: HttpService<Incoming, ResBody: 'static, Error: Into<BoxError>>,
    <S::ResBody as Body>::Error: Into<BoxError>,
{
    fn finish(self: Pin<&mut Self>) {
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
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
