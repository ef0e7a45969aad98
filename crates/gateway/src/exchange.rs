//! A request and its answer: sent to a server, and to another one if that can do no harm.

use crate::body::{Lease, Progress, Sent};
use crate::forward::{Answer, Order, Way};
use crate::refusal::Refused;
use crate::settings;
use crate::upstream::pool::{Sender, Taken};
use crate::upstream::{Load, Tried, Upstream};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use pin_project_lite::pin_project;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

type Forwarding = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;
type Answered = Result<Response<Incoming>, TrySendError<Request<Sent>>>;
type Retrying = Pin<Box<dyn Future<Output = Result<(Response<Incoming>, Lease), Refused>> + Send>>;

pin_project! {
    /// A request that was sent, until its answer begins.
    ///
    /// It is written out, rather than left to `async`, because it is as small as can be: everything that is not
    /// needed while all goes well is in a box of its own.
    pub(crate) struct Exchange<F> {
        #[pin]
        answered: InTime<F>,
        way: Arc<Way>,
        order: Option<Order>,
        // Gone once it is decided what becomes of the first attempt.
        first: Option<(Errand, Attempt)>,
        // The first attempt came to nothing.
        retrying: Option<Retrying>,
    }
}

impl Exchange<()> {
    /// Sends the request, now if there is a connection at hand.
    pub(crate) fn begin(way: &Arc<Way>, request: Request<Incoming>, order: Order) -> Forwarding {
        let upstream = way.upstream(&order);
        upstream.budget.earn();
        let (mut errand, request) = Errand::new(&upstream.settings, request);
        let load = match errand.pick(upstream) {
            Ok(load) => load,
            Err(refused) => return Box::pin(std::future::ready(Ok(refused.answer()))),
        };
        let way = Arc::clone(way);
        let Some(sender) = way.pool.take_idle(load.member().index) else {
            return Box::pin(async move {
                let exchanged = exchange(Arc::clone(&way), order.upstream, errand, request, Some(load)).await;
                Ok(concluded(&way, order, exchanged))
            });
        };
        let (attempt, sending) = Attempt::send(Taken { sender, reused: true }, load, &errand, request);
        let answered = InTime::new(sending, upstream.settings.response_time, errand.progress.clone());
        Box::pin(Exchange {
            answered,
            way,
            order: Some(order),
            first: Some((errand, attempt)),
            retrying: None,
        })
    }
}

impl<F: Future<Output = Answered>> Future for Exchange<F> {
    type Output = Result<Answer, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let exchanged = loop {
            if let Some(retrying) = this.retrying {
                break ready!(retrying.as_mut().poll(cx));
            }
            let answered = ready!(this.answered.as_mut().poll(cx));
            let (mut errand, attempt) = this.first.take().expect("a future is not polled after it was ready");
            let order = this.order.as_ref().expect("a future is not polled after it was ready");
            match attempt.judge(&mut errand, this.way.upstream(order), this.way, answered) {
                Judged::Done(exchanged) => break exchanged,
                Judged::Again(request) => {
                    let retrying = exchange(Arc::clone(this.way), order.upstream, errand, *request, None);
                    *this.retrying = Some(Box::pin(retrying));
                }
            }
        };
        let order = this.order.take().expect("a future is not polled after it was ready");
        Poll::Ready(Ok(concluded(this.way, order, exchanged)))
    }
}

fn concluded(way: &Way, order: Order, exchanged: Result<(Response<Incoming>, Lease), Refused>) -> Answer {
    let passed = exchanged.and_then(|(answer, lease)| way.pass_on(answer, lease, order));
    passed.unwrap_or_else(|refused| refused.answer())
}

/// Sends the request to a server, and to others if that cannot have done any harm. The first is at `load`, if it
/// was chosen already.
async fn exchange(
    way: Arc<Way>,
    upstream: usize,
    mut errand: Errand,
    mut request: Request<Sent>,
    mut load: Option<Load>,
) -> Result<(Response<Incoming>, Lease), Refused> {
    let upstream = &way.shared.upstreams[upstream];
    loop {
        let load = match load.take() {
            Some(load) => load,
            None => errand.pick(upstream)?,
        };
        let taken = match way.pool.take(load.member(), &upstream.settings).await {
            Ok(taken) => taken,
            Err(error) => {
                note_failure(upstream, &load, &error);
                if errand.may_retry(upstream) {
                    continue;
                }
                return Err(Refused::NoConnection);
            }
        };
        let (attempt, sending) = Attempt::send(taken, load, &errand, request);
        let answered = InTime::new(sending, upstream.settings.response_time, errand.progress.clone()).await;
        match attempt.judge(&mut errand, upstream, &way, answered) {
            Judged::Done(exchanged) => return exchanged,
            Judged::Again(again) => request = *again,
        }
    }
}

/// What has to be known of a request for as long as it may be sent again.
#[derive(Debug)]
struct Errand {
    tried: Tried,
    retries_left: u32,
    /// Sent twice it does what it does once, and there is nothing to it but its head.
    repeatable: bool,
    progress: Option<Arc<Progress>>,
}

impl Errand {
    fn new(settings: &settings::Upstream, request: Request<Incoming>) -> (Self, Request<Sent>) {
        let mut progress = None;
        let request = request.map(|body| {
            let (sent, seen) = Sent::new(body);
            progress = seen;
            sent
        });
        let repeatable = progress.is_none() && request.method().is_idempotent();
        let errand = Self { tried: Tried::default(), retries_left: settings.retries, repeatable, progress };
        (errand, request)
    }

    /// The next server.
    fn pick(&mut self, upstream: &Upstream) -> Result<Load, Refused> {
        let load = upstream.pick(&self.tried).ok_or(Refused::NobodyUp)?;
        self.tried.add(load.member());
        Ok(load)
    }

    fn may_retry(&mut self, upstream: &Upstream) -> bool {
        let may = self.retries_left > 0 && upstream.budget.spend();
        self.retries_left = self.retries_left.saturating_sub(1);
        may
    }
}

/// A request that was handed to a connection.
#[derive(Debug)]
struct Attempt {
    sender: Sender,
    load: Load,
    /// Then the server may have closed it just now.
    reused: bool,
    spare: Option<Spare>,
}

/// What it takes to send a request without a body again. Hardly ever it has to be, so its headers are kept as a
/// list, which is cheaper to make than a map.
#[derive(Debug)]
struct Spare {
    method: Method,
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// What becomes of an attempt.
enum Judged {
    Done(Result<(Response<Incoming>, Lease), Refused>),
    Again(Box<Request<Sent>>),
}

impl Attempt {
    fn send(
        taken: Taken,
        load: Load,
        errand: &Errand,
        request: Request<Sent>,
    ) -> (Self, impl Future<Output = Answered> + use<>) {
        let Taken { mut sender, reused } = taken;
        let spare = errand.repeatable.then(|| Spare::of(&request));
        let sending = sender.try_send_request(request);
        (Self { sender, load, reused, spare }, sending)
    }

    fn judge(
        self,
        errand: &mut Errand,
        upstream: &Upstream,
        way: &Way,
        answered: Result<Answered, Refused>,
    ) -> Judged {
        let Self { sender, load, reused, spare } = self;
        let mut error = match answered {
            Ok(Ok(answer)) => {
                load.member().health.succeeded();
                let most_idle = upstream.settings.most_idle;
                let lease = Lease { sender, load, pool: Arc::clone(&way.pool), most_idle };
                return Judged::Done(Ok((answer, lease)));
            }
            Ok(Err(error)) => error,
            Err(late) => {
                if late == Refused::Late {
                    note_failure(upstream, &load, &"no answer in time");
                }
                return Judged::Done(Err(late));
            }
        };
        // Given back, nothing of it was sent.
        let unsent = error.take_message();
        let error = error.into_error();
        if error.is_user() {
            return Judged::Done(Err(Refused::ClientBody));
        }
        // The server may always close an idle connection; that says nothing about its health.
        if !reused {
            note_failure(upstream, &load, &error);
        }
        match (unsent, spare) {
            (Some(request), _) if reused || errand.may_retry(upstream) => Judged::Again(Box::new(request)),
            (None, Some(spare)) if errand.may_retry(upstream) => Judged::Again(Box::new(spare.request())),
            _ => Judged::Done(Err(Refused::NoAnswer)),
        }
    }
}

impl Spare {
    fn of(request: &Request<Sent>) -> Self {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let headers = request.headers();
        let mut list = Vec::with_capacity(headers.len());
        list.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self { method, uri, headers: list }
    }

    fn request(self) -> Request<Sent> {
        let mut request = Request::new(Sent::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        for (name, value) in self.headers {
            request.headers_mut().append(name, value);
        }
        request
    }
}

#[cold]
fn note_failure(upstream: &Upstream, load: &Load, error: &dyn std::fmt::Display) {
    let (name, member) = (&upstream.settings.name, load.member());
    tracing::debug!(upstream = %name, address = %member.address, %error, "a request failed");
    if member.health.failed(&upstream.settings) {
        tracing::warn!(upstream = %name, address = %member.address, %error, "left alone for a while after failures in a row");
    }
}

pin_project! {
    /// An answer that is waited for. While the client's body is still moving the clock does not run.
    struct InTime<F> {
        #[pin]
        sending: F,
        #[pin]
        late: Sleep,
        time: Duration,
        progress: Option<Arc<Progress>>,
        frames: u32,
    }
}

impl<F> InTime<F> {
    fn new(sending: F, time: Duration, progress: Option<Arc<Progress>>) -> Self {
        Self { sending, late: tokio::time::sleep(time), time, progress, frames: 0 }
    }
}

impl<F: Future<Output = Answered>> Future for InTime<F> {
    type Output = Result<Answered, Refused>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(answered) = this.sending.poll(cx) {
            return Poll::Ready(Ok(answered));
        }
        loop {
            ready!(this.late.as_mut().poll(cx));
            match this.progress {
                Some(progress) if progress.frames() != *this.frames => {
                    *this.frames = progress.frames();
                    let next = this.late.deadline() + *this.time;
                    this.late.as_mut().reset(next);
                }
                Some(progress) if !progress.ended() => return Poll::Ready(Err(Refused::ClientSlow)),
                _ => return Poll::Ready(Err(Refused::Late)),
            }
        }
    }
}
