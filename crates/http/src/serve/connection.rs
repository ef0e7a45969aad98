//! One connection: from its first byte to its last, with an eye on its progress and an ear for the drain.

use super::bell::Bell;
use super::crowd::Seat;
use super::framing::Watch;
use super::marked::{Marked, MarkedBody};
use super::marks::{Heads, Marks, Open, Patience};
use super::pace::SendPace;
use super::protocol::{self, Beginning, Speakers};
use super::streams::{StreamExecutor, StreamMeter};
use super::{Answers, Anything, Framing, Phase, ServeOptions};
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
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) place: Place,
    pub(super) marks: Arc<Marks>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) options: ServeOptions,
}

/// What a connection takes up, for as long as it is open.
pub(super) struct Place {
    pub(super) _slot: OwnedSemaphorePermit,
    pub(super) seat: Option<Arc<Seat>>,
}

impl Connection {
    /// Serves it to its end.
    pub(super) async fn run(
        mut self,
        speakers: Arc<Speakers>,
        tls: Option<Arc<ServerConfig>>,
        service: impl Answers,
    ) {
        if let Some(tls) = tls {
            // In a box of its own, as HTTP/2 is below: a task is as large as the largest thing that it may become.
            return Box::pin(self.run_tls(speakers, tls, service)).await;
        }
        let Some(beginning) = self.beginning(&speakers).await else { return };
        let Self { stream, address, place, marks, phase, options } = self;
        let ready = Ready { beginning, place, address, marks, phase, options };
        ready.serve(stream, &speakers, service).await;
    }

    async fn run_tls(self, speakers: Arc<Speakers>, tls: Arc<ServerConfig>, service: impl Answers) {
        let Self { stream, address, place, marks, mut phase, options } = self;
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
            Some(HTTP2) => Beginning::Http2(Vec::new()),
            _ => Beginning::Http1(Vec::new()),
        };
        let ready = Ready { beginning, place, address, marks, phase, options };
        ready.serve(stream, &speakers, service).await;
    }

    /// Finds out what a client speaks; none if it says nothing in time.
    async fn beginning(&mut self, speakers: &Speakers) -> Option<Beginning> {
        if speakers.http2.is_none() {
            return Some(Beginning::Http1(Vec::new()));
        }
        tokio::select! {
            biased;
            heard = timeout(self.options.head_time, protocol::listen(&mut self.stream)) => heard.ok()?.ok(),
            _ = self.phase.changed() => None,
        }
    }
}

/// A connection of which is known what it speaks.
struct Ready {
    beginning: Beginning,
    address: SocketAddr,
    place: Place,
    marks: Arc<Marks>,
    phase: watch::Receiver<Phase>,
    options: ServeOptions,
}

impl Ready {
    async fn serve<I>(self, stream: I, speakers: &Speakers, service: impl Answers)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { beginning, address, place, marks, phase, options } = self;
        let marked =
            |heads, heard, watch| TokioIo::new(Marked::new(stream, heads, heard, watch, &marks, place));
        let answering = {
            let marks = Arc::clone(&marks);
            service_fn(move |request: Request<Incoming>| answer(&service, request, &marks))
        };
        let course = Course { address, marks: Arc::clone(&marks), phase, options };
        match (beginning, &speakers.http2) {
            (Beginning::Http2(heard), Some(http2)) => {
                let served = http2.serve_connection(marked(Heads::Untimed, heard, None), answering);
                Box::pin(course.follow(served, Heads::Untimed)).await;
            }
            (Beginning::Http1(heard) | Beginning::Http2(heard), _) => {
                let watch = (options.framing == Framing::Strict).then(Watch::new);
                let served = speakers.http1.serve_connection(marked(Heads::Timed, heard, watch), answering);
                course.follow(served.with_upgrades(), Heads::Timed).await;
            }
        }
    }
}

/// Calls the service, and marks the request's beginning and end.
fn answer<S, B>(service: &S, request: Request<Incoming>, marks: &Arc<Marks>) -> Answering<S::Future>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
{
    let open = Open::new(marks);
    let version = request.version();
    Answering { answer: service.call(request), open: Some(open), version }
}

pin_project_lite::pin_project! {
    /// A request that is being answered.
    struct Answering<F> {
        #[pin]
        answer: F,
        // Goes with the body of the answer.
        open: Option<Open>,
        version: Version,
    }
}

impl<F, B, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<MarkedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut answer = ready!(this.answer.poll(cx))?;
        let mut open = this.open.take().expect("a future is not polled after it was ready");
        open.answered();
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            open.marks().upgrade();
        }
        if open.marks().is_hung_up() && *this.version != Version::HTTP_2 {
            answer.headers_mut().insert(CONNECTION, CLOSE);
        }
        let pace = answer.extensions_mut().remove::<SendPace>();
        let meter = if *this.version == Version::HTTP_2 { StreamMeter::current() } else { None };
        match (pace, &meter) {
            (None, _) => {}
            (Some(pace), Some(meter)) => meter.set_pace(pace),
            (Some(pace), None) => open.marks().set_pace(pace),
        }
        Poll::Ready(Ok(answer.map(|body| MarkedBody { body, open, meter })))
    }
}

/// A connection on its way.
struct Course {
    address: SocketAddr,
    marks: Arc<Marks>,
    phase: watch::Receiver<Phase>,
    options: ServeOptions,
}

/// What happens to a connection.
enum Event {
    Ended(Result<(), hyper::Error>),
    /// The server drains or stops. None if it is gone altogether.
    Phase(Option<Phase>),
    Look,
}

impl Course {
    /// Follows it to its end.
    async fn follow(mut self, served: impl Served, heads: Heads) {
        let mut served = pin!(served);
        let mut patience = Patience::new(&self.options, heads);
        let mut looks = interval_at(Instant::now() + patience.every, patience.every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let peer = self.address;
        let mut hung_up = false;
        loop {
            let mut bell = None;
            let mut rare = pin!(rare(&mut self.phase, &mut looks));
            let marks = &self.marks;
            let event = poll_fn(|cx| {
                let mut polled = served.as_mut().poll(cx);
                if polled.is_pending() && marks.is_flooded() {
                    tracing::debug!(%peer, "the connection takes back most of what it asks");
                    polled = Poll::Ready(Ok(()));
                }
                // On HTTP/1.1 the answer itself says that it is the last.
                if polled.is_pending() && !hung_up && marks.is_hung_up() {
                    hung_up = true;
                    served.as_mut().finish();
                    polled = served.as_mut().poll(cx);
                }
                match polled {
                    Poll::Ready(ended) => Poll::Ready(Event::Ended(ended)),
                    Poll::Pending => Bell::of_task(&mut bell, cx).poll_if_rung(rare.as_mut()),
                }
            });
            match event.await {
                Event::Ended(Ok(())) => return,
                Event::Ended(Err(error)) => return tracing::debug!(%peer, %error, "the connection broke"),
                Event::Phase(Some(Phase::Serving)) => {}
                Event::Phase(Some(Phase::Draining)) => served.as_mut().finish(),
                Event::Phase(Some(Phase::Stopped) | None) => return,
                Event::Look if patience.ends(&self.marks) => {
                    return tracing::debug!(%peer, "the connection was too slow or too long silent");
                }
                Event::Look => {}
            }
        }
    }
}

/// What happens every few seconds at most.
async fn rare(phase: &mut watch::Receiver<Phase>, looks: &mut Interval) -> Event {
    tokio::select! {
        biased;
        // No sender means that the server is gone altogether.
        changed = phase.changed() => Event::Phase(changed.ok().map(|()| *phase.borrow_and_update())),
        _ = looks.tick() => Event::Look,
    }
}

/// A connection that hyper serves.
trait Served: Future<Output = Result<(), hyper::Error>> {
    /// Ends after what is in flight.
    fn finish(self: Pin<&mut Self>);
}

impl<I, S> Served for http1::UpgradeableConnection<TokioIo<I>, S>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: HttpService<Incoming, ResBody: 'static, Error: Into<Anything>>,
    <S::ResBody as Body>::Error: Into<Anything>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S> Served for http2::Connection<TokioIo<I>, S, StreamExecutor>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody: Send + 'static, Error: Into<Anything>, Future: Send + 'static>,
    <S::ResBody as Body>::Error: Into<Anything>,
    <S::ResBody as Body>::Data: Send,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
