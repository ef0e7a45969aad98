//! An HTTP server for tests of proxies. It records the requests that it receives.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRAILER, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// One request, as it arrived.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Its method.
    pub method: Method,
    /// Its target, as it was written.
    pub target: String,
    /// Its headers.
    pub headers: HeaderMap,
}

impl ReceivedRequest {
    /// All lines of a header, with commas between them; "" if there is none.
    pub fn header(&self, name: &str) -> String {
        let lines = self.headers.get_all(name).iter();
        lines.map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned()).collect::<Vec<_>>().join(", ")
    }
}

/// An HTTP/1.1 server whose response depends on the path; any path but these gets "hello":
///
/// | path | response |
/// |---|---|
/// | `/echo` | the request body, streamed |
/// | `/count` | the length of the request body |
/// | `/big/N` | N bytes |
/// | `/status/N` | status N |
/// | `/gated` | waits for [`release_gated`](Self::release_gated) |
/// | `/cut` | closes the connection without a response |
/// | `/half`, `/half-chunked` | breaks off within a body, with and without a content length |
/// | `/ws` | upgrades to a protocol that echoes |
/// | `/hops` | hop-by-hop headers |
/// | `/trailers?NAMES` | these trailers |
/// | `/late` | the names of the request's trailers |
#[derive(Debug)]
pub struct TestUpstream {
    address: SocketAddr,
    state: Arc<UpstreamState>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct UpstreamState {
    name: String,
    seen: Mutex<Vec<ReceivedRequest>>,
    gate: Semaphore,
    connections: AtomicUsize,
}

type AnyBody = BoxBody<Bytes, io::Error>;

impl TestUpstream {
    /// Serves on any port. Responses have `name` in `x-served-by`.
    pub async fn start(name: &str) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), name).await
    }

    /// Serves on this address.
    pub async fn start_at(address: SocketAddr, name: &str) -> Self {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(UpstreamState {
            name: name.to_owned(),
            seen: Mutex::default(),
            gate: Semaphore::new(0),
            connections: AtomicUsize::new(0),
        });
        let task = Some(tokio::spawn(accept(listener, Arc::clone(&state))));
        Self { address, state, task }
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:…`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.state.seen.lock().clone()
    }

    /// The last request.
    pub fn last(&self) -> ReceivedRequest {
        self.state.seen.lock().last().cloned().expect("a request was received")
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// Answers one request for `/gated`.
    pub fn release_gated(&self) {
        self.state.gate.add_permits(1);
    }

    /// Stops the server, closes its connections, and waits until the port is free.
    pub async fn end(mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for TestUpstream {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<UpstreamState>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        state.connections.fetch_add(1, Ordering::Relaxed);
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&state)));
            let _ = http1::Builder::new()
                .half_close(true)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
        });
    }
}

async fn answer(request: Request<Incoming>, state: Arc<UpstreamState>) -> io::Result<Response<AnyBody>> {
    state.seen.lock().push(ReceivedRequest {
        method: request.method().clone(),
        target: request.uri().to_string(),
        headers: request.headers().clone(),
    });
    let path = request.uri().path().to_owned();
    let number = || path.rsplit('/').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let mut answer = match path.split('/').nth(1).unwrap_or_default() {
        "echo" => Response::new(request.into_body().map_err(io::Error::other).boxed()),
        "count" => Response::new(whole(count(request.into_body()).await?.to_string())),
        "big" => Response::new(zeros(number())),
        "status" => with_status(number() as u16),
        "gated" => {
            state.gate.acquire().await.expect("never closed").forget();
            Response::new(whole("let go"))
        }
        "cut" => return Err(io::Error::other("cut")),
        "half" => broken_off(BodyFraming::ContentLength),
        "half-chunked" => broken_off(BodyFraming::Chunked),
        "ws" => upgrade(request),
        "hops" => hops(),
        "trailers" => trailers(request.uri().query().unwrap_or("x-sum")),
        "late" => late(request.into_body()).await?,
        _ => Response::new(whole("hello")),
    };
    let name = HeaderValue::from_str(&state.name).expect("a plain name");
    answer.headers_mut().insert("x-served-by", name);
    Ok(answer)
}

fn whole(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

fn empty() -> AnyBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

async fn count(mut body: Incoming) -> io::Result<u64> {
    let mut sum = 0;
    while let Some(frame) = body.frame().await {
        sum += frame.map_err(io::Error::other)?.data_ref().map_or(0, |data| data.len() as u64);
    }
    Ok(sum)
}

/// `length` bytes, generated as they are read.
fn zeros(length: u64) -> AnyBody {
    struct ZeroBody(u64);
    impl Body for ZeroBody {
        type Data = Bytes;
        type Error = io::Error;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<io::Result<Frame<Bytes>>>> {
            static PIECE: [u8; 64 << 10] = [0; 64 << 10];
            let step = self.0.min(PIECE.len() as u64);
            self.0 -= step;
            let piece = (step > 0).then(|| Ok(Frame::data(Bytes::from_static(&PIECE[..step as usize]))));
            std::task::Poll::Ready(piece)
        }
        fn size_hint(&self) -> hyper::body::SizeHint {
            hyper::body::SizeHint::with_exact(self.0)
        }
    }
    ZeroBody(length).boxed()
}

fn with_status(status: u16) -> Response<AnyBody> {
    let status = StatusCode::from_u16(status).expect("a status");
    let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let mut answer = Response::new(if has_body { whole("so it is") } else { empty() });
    *answer.status_mut() = status;
    answer
}

/// How the length of a body is announced.
#[derive(Clone, Copy, PartialEq)]
enum BodyFraming {
    ContentLength,
    Chunked,
}

/// Sends five bytes of a body and breaks off; a content length says ten.
fn broken_off(framing: BodyFraming) -> Response<AnyBody> {
    let frames = [Ok(Frame::data(Bytes::from_static(b"12345"))), Err(io::Error::other("broken"))];
    let mut answer = Response::new(BodyExt::boxed(StreamBody::new(FrameStream(frames.into_iter(), false))));
    if framing == BodyFraming::ContentLength {
        answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("10"));
    }
    answer
}

/// The names of the trailers of a request, sorted.
async fn late(body: Incoming) -> io::Result<Response<AnyBody>> {
    let collected = body.collect().await.map_err(io::Error::other)?;
    let mut names: Vec<&str> = collected
        .trailers()
        .into_iter()
        .flat_map(|trailers| trailers.keys())
        .map(|name| name.as_str())
        .collect();
    names.sort_unstable();
    Ok(Response::new(whole(names.join(","))))
}

fn trailers(names: &str) -> Response<AnyBody> {
    let name = |text: &str| http::HeaderName::try_from(text).expect("the name of a header");
    let trailers: HeaderMap =
        names.split(',').map(|text| (name(text), HeaderValue::from_static("42"))).collect();
    let announced = HeaderValue::try_from(names).expect("names of headers");
    let frames = [Ok(Frame::data(Bytes::from_static(b"12345"))), Ok(Frame::trailers(trailers))];
    let mut answer = Response::new(BodyExt::boxed(StreamBody::new(FrameStream(frames.into_iter(), false))));
    answer.headers_mut().insert(TRAILER, announced);
    answer
}

/// A stream that is pending before every frame but the first, so that each frame is sent by itself.
struct FrameStream<I>(I, bool);

impl<I: Iterator<Item = io::Result<Frame<Bytes>>> + Unpin> futures_core::Stream for FrameStream<I> {
    type Item = io::Result<Frame<Bytes>>;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.1 = !self.1;
        if self.1 {
            return std::task::Poll::Ready(self.0.next());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }
}

fn hops() -> Response<AnyBody> {
    let mut answer = Response::new(whole("hello"));
    for (name, value) in [
        ("connection", "x-private"),
        ("x-private", "yes"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("x-public", "yes"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Upgrades to the requested protocol, and echoes.
fn upgrade(mut request: Request<Incoming>) -> Response<AnyBody> {
    let Some(protocol) = request.headers().get(UPGRADE).cloned() else { return with_status(400) };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let mut stream = TokioIo::new(upgraded);
        let mut buffer = vec![0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Response::new(empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert(UPGRADE, protocol);
    answer
}
