//! A request and its answer: sent to a server, and to another one if that can do no harm.

mod spare;

use crate::body::{HoldsPlace, Lease, Outliving, OutlivingExchange, Progress, Sent, Uploader};
use crate::forward::{Answer, Order, Way};
use crate::refusal::Refused;
use crate::settings::{self, OnClientGone};
use crate::upstream::health::Failure;
use crate::upstream::pool::{Connection, Taken};
use crate::upstream::{Load, Tried, Upstream};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use pin_project_lite::pin_project;
use spare::Spare;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// A request until its answer begins.
pub(crate) type Forwarding = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;
type Answered = Result<Response<Incoming>, TrySendError<Request<Sent>>>;
type Retrying = Pin<Box<dyn Future<Output = Result<(Response<Incoming>, Lease), Refused>> + Send>>;

pin_project! {
    /// A request that was sent, until its answer begins.
    ///
    /// It is written out, rather than left to `async`, because it is as small as can be: everything that is not
    /// needed while all goes well is in a box of its own.
    pub(crate) struct Exchange<F> {
        #[pin]
        sending: F,
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
        let place = order.place.clone();
        let place = place.filter(|_| way.upstream(&order).settings.on_client_gone == OnClientGone::Finish);
        let forwarding = Self::send(way, request, order);
        match place {
            None => forwarding,
            Some(place) => {
                Box::pin(OutlivingExchange::new(forwarding, Outliving::new(place, &way.exchange_room)))
            }
        }
    }

    fn send(way: &Arc<Way>, request: Request<Incoming>, order: Order) -> Forwarding {
        let upstream = way.upstream(&order);
        upstream.budget.earn();
        let (mut errand, request) = Errand::new(&upstream.settings, request, way, &order);
        let load = match errand.pick(upstream) {
            Ok(load) => load,
            Err(refused) => return Box::pin(std::future::ready(Ok(refused.answer()))),
        };
        let way = Arc::clone(way);
        let Some(connection) = way.pool.take_idle(load.member().index) else {
            return Box::pin(async move {
                let exchanged = exchange(Arc::clone(&way), order.upstream, errand, request, Some(load)).await;
                Ok(concluded(&way, order, exchanged))
            });
        };
        let taken = Taken { connection, reused: true };
        let (attempt, sending) = Attempt::send(taken, load, upstream, &errand, request);
        Box::pin(Exchange {
            sending,
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
            let order = this.order.as_ref().expect("a future is not polled after it was ready");
            let upstream = this.way.upstream(order);
            let (errand, attempt) = this.first.as_mut().expect("a future is not polled after it was ready");
            let answered = ready!(attempt.poll(this.sending.as_mut(), upstream, errand, cx));
            let (mut errand, attempt) = this.first.take().expect("it was there a moment ago");
            match attempt.judge(&mut errand, upstream, this.way, answered) {
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
                if !error.is_local() {
                    note_failure(upstream, &load, Failure::Unreachable, &error);
                }
                if errand.may_retry(upstream) {
                    continue;
                }
                return Err(Refused::NoConnection);
            }
        };
        let (mut attempt, sending) = Attempt::send(taken, load, upstream, &errand, request);
        let mut sending = pin!(sending);
        let answered = poll_fn(|cx| attempt.poll(sending.as_mut(), upstream, &errand, cx)).await;
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
    client: IpAddr,
    /// When all of it has to be over.
    until: Option<Instant>,
}

impl Errand {
    fn new(
        settings: &settings::Upstream,
        request: Request<Incoming>,
        way: &Way,
        order: &Order,
    ) -> (Self, Request<Sent>) {
        let mut progress = None;
        let uploader = || Uploader {
            version: order.version,
            min_rate: order.bodies.min_rate,
            peer: way.peer.clone(),
            reserved: Arc::clone(&way.reserved),
            holds_place: match (&order.place, settings.on_client_gone) {
                (Some(_), OnClientGone::Finish) => HoldsPlace::Yes,
                _ => HoldsPlace::No,
            },
        };
        let request = request.map(|body| {
            let (sent, seen) = Sent::new(body, uploader);
            progress = seen;
            sent
        });
        let repeatable = progress.is_none() && request.method().is_idempotent();
        let errand = Self {
            tried: Tried::default(),
            retries_left: settings.retries,
            repeatable,
            progress,
            client: order.client,
            until: order.until,
        };
        (errand, request)
    }

    /// The next server.
    fn pick(&mut self, upstream: &Upstream) -> Result<Load, Refused> {
        let load = upstream.pick(&self.tried).ok_or(Refused::NobodyUp)?;
        self.tried.add(load.member());
        Ok(load)
    }

    /// No later than when all has to be over.
    fn bounded(&self, at: Instant) -> Instant {
        self.until.map_or(at, |until| at.min(until))
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
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
    connection: Connection,
    load: Load,
    /// Then the server may have closed it just now.
    reused: bool,
    /// How many frames of the client's body had gone when that was last looked at.
    frames: u32,
    spare: Option<Spare>,
}

/// What becomes of an attempt.
#[expect(clippy::large_enum_variant, reason = "the large one is nearly every one, and is handed on at once")]
enum Judged {
    Done(Result<(Response<Incoming>, Lease), Refused>),
    Again(Box<Request<Sent>>),
}

impl Attempt {
    fn send(
        taken: Taken,
        load: Load,
        upstream: &Upstream,
        errand: &Errand,
        request: Request<Sent>,
    ) -> (Self, impl Future<Output = Answered> + use<>) {
        let Taken { mut connection, reused } = taken;
        let spare = errand.repeatable.then(|| Spare::of(&request));
        let sending = connection.sender.try_send_request(request);
        let late = errand.bounded(Instant::now() + upstream.settings.response_time);
        connection.late.as_mut().reset(late);
        (Self { connection, load, reused, frames: 0, spare }, sending)
    }

    /// Waits for the answer. While the client's body is still moving the clock does not run.
    fn poll(
        &mut self,
        sending: Pin<&mut impl Future<Output = Answered>>,
        upstream: &Upstream,
        errand: &Errand,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Answered, Refused>> {
        if let Poll::Ready(answered) = sending.poll(cx) {
            return Poll::Ready(Ok(answered));
        }
        let late = &mut self.connection.late;
        loop {
            ready!(late.as_mut().poll(cx));
            match &errand.progress {
                Some(progress) if progress.frames() != self.frames && !errand.is_over() => {
                    self.frames = progress.frames();
                    let next = errand.bounded(late.deadline() + upstream.settings.response_time);
                    late.as_mut().reset(next);
                }
                Some(progress) if progress.is_waited_for() => return Poll::Ready(Err(Refused::ClientSlow)),
                _ => return Poll::Ready(Err(Refused::Late)),
            }
        }
    }

    fn judge(
        self,
        errand: &mut Errand,
        upstream: &Upstream,
        way: &Way,
        answered: Result<Answered, Refused>,
    ) -> Judged {
        let Self { connection, load, reused, spare, .. } = self;
        let mut error = match answered {
            Ok(Ok(answer)) => {
                load.member().health.succeeded();
                let most_idle = upstream.settings.most_idle;
                let lease = Lease { connection, load, pool: Arc::clone(&way.pool), most_idle };
                return Judged::Done(Ok((answer, lease)));
            }
            Ok(Err(error)) => error,
            Err(late) => {
                if late == Refused::Late {
                    note_failure(upstream, &load, Failure::NotAnswered(errand.client), &"no answer in time");
                }
                return Judged::Done(Err(late));
            }
        };
        // Given back, nothing of it was sent.
        let unsent = error.take_message();
        let error = error.into_error();
        if error.is_user() {
            let is_too_slow = errand.progress.as_ref().is_some_and(|progress| progress.is_too_slow());
            return Judged::Done(Err(if is_too_slow { Refused::ClientSlow } else { Refused::ClientBody }));
        }
        // The server may always close an idle connection; that says nothing about its health.
        if !reused || error.is_parse() {
            note_failure(upstream, &load, Failure::NotAnswered(errand.client), &error);
        }
        if error.is_parse() {
            // The server has answered, and would answer the same again.
            return Judged::Done(Err(Refused::BadAnswer));
        }
        match (unsent, spare) {
            (Some(request), _) if reused || errand.may_retry(upstream) => Judged::Again(Box::new(request)),
            (None, Some(spare)) if errand.may_retry(upstream) => Judged::Again(Box::new(spare.request())),
            _ => Judged::Done(Err(Refused::NoAnswer)),
        }
    }
}

#[cold]
fn note_failure(upstream: &Upstream, load: &Load, failure: Failure, error: &dyn std::fmt::Display) {
    let (name, member) = (&upstream.settings.name, load.member());
    tracing::debug!(upstream = %name, address = %member.address, %error, "a request failed");
    if member.health.failed(failure, &upstream.settings, || upstream.has_other(member)) {
        tracing::warn!(upstream = %name, address = %member.address, %error, "ejected for a while after failures in a row");
    }
}
