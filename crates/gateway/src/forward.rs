//! The forwarder: a request goes to a server, its answer comes back.
//!
//! It is a tower service, so whatever decides about requests stands in front of it as a layer.

use crate::body::{AnswerBody, Lease, Progress, Received, Sent};
use crate::headers::{self, Origin};
use crate::refusal::Refused;
use crate::route::Routes;
use crate::settings::{Forwarded, Settings};
use crate::tunnel::Tunnel;
use crate::upstream::connect::Connector;
use crate::upstream::pool::{Pool, Taken};
use crate::upstream::{Load, Tried, Upstream};
use http::header::{HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::upgrade::OnUpgrade;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tollgate_http::answer::is_limited;

/// What all threads share: where requests go, and how the servers are.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) routes: Routes,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) forwarded: Forwarded,
}

impl Shared {
    /// The error is the name of an upstream that a route names and that is not there.
    pub(crate) fn new(settings: &Settings) -> Result<Self, String> {
        let mut first = 0;
        let upstreams = settings.upstreams.iter().map(|upstream| {
            let upstream = Upstream::new(upstream.clone(), first);
            first += upstream.members.len();
            upstream
        });
        Ok(Self {
            upstreams: upstreams.collect(),
            routes: Routes::new(&settings.routes, &settings.upstreams)?,
            forwarded: settings.forwarded,
        })
    }

    pub(crate) fn members(&self) -> usize {
        self.upstreams.iter().map(|upstream| upstream.members.len()).sum()
    }
}

/// Forwards requests of one thread, or of one connection to it.
#[derive(Clone, Debug)]
pub struct Forwarder {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    /// Who asks; none if servers are not told.
    origin: Option<Arc<Origin>>,
}

/// The answer to a request.
pub type Answer = Response<AnswerBody>;

/// Marks a 429 that a server gave, which is none of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromUpstream;

impl tower::Service<Request<Incoming>> for Forwarder {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let forwarder = self.clone();
        Box::pin(
            async move { Ok(forwarder.forward(request).await.unwrap_or_else(|refused| refused.answer())) },
        )
    }
}

impl Forwarder {
    pub(crate) fn new(shared: Arc<Shared>, connector: Connector) -> Self {
        let pool = Arc::new(Pool::new(shared.members(), connector));
        Self { shared, pool, origin: None }
    }

    /// For the requests of one connection.
    pub(crate) fn of(&self, origin: Origin) -> Self {
        Self { origin: Some(Arc::new(origin)), ..self.clone() }
    }

    /// Drops connections that were idle for too long, until the runtime ends.
    pub(crate) fn keep_tidy(&self) {
        for upstream in &self.shared.upstreams {
            let first = upstream.members.first().map_or(0, |member| member.index);
            let members = first..first + upstream.members.len();
            let (pool, idle_time) = (Arc::clone(&self.pool), upstream.settings.idle_time);
            tokio::spawn(async move {
                let mut every = tokio::time::interval(Pool::sweep_every(idle_time));
                loop {
                    every.tick().await;
                    pool.sweep(members.clone());
                }
            });
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Answer, Refused> {
        let (mut head, body) = request.into_parts();
        if head.method == Method::CONNECT || head.method == Method::TRACE {
            return Err(Refused::Method);
        }
        let host = take_host(&mut head)?;
        let found = self.shared.routes.find(host.to_str().unwrap_or_default(), head.uri.path());
        let upstream =
            &self.shared.upstreams[found.ok_or_else(|| Refused::NoRoute(head.uri.path().to_owned()))?];
        let (version, on_upgrade) = (head.version, head.extensions.remove::<OnUpgrade>());
        let protocol = self.prepare(&mut head, host)?;
        let (body, progress) = Sent::new(body);
        // With a body it would not be clear where the other protocol begins.
        let protocol = protocol.filter(|_| progress.is_none() && on_upgrade.is_some());
        if let Some(protocol) = &protocol {
            headers::put_upgrade(&mut head.headers, protocol.clone());
        }
        let (mut answer, lease) = self.exchange(upstream, head, body, progress.as_deref()).await?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(_), Some(client)) = (protocol, on_upgrade) else { return Err(Refused::BadAnswer) };
            return Tunnel::open(client, answer, lease);
        }
        headers::remove_hop_by_hop(answer.headers_mut());
        // The body is framed anew, as the client's connection wants it.
        answer.headers_mut().remove(TRANSFER_ENCODING);
        if self.shared.forwarded.via {
            headers::put_via(answer.headers_mut(), Version::HTTP_11);
        }
        *answer.version_mut() = version;
        if is_limited(&answer) {
            answer.extensions_mut().insert(FromUpstream);
        }
        Ok(answer.map(|body| AnswerBody::Upstream(Received::new(body, lease))))
    }

    /// Makes the head what the server shall see. Answers the protocol that the client wants to change to.
    fn prepare(&self, head: &mut Parts, host: HeaderValue) -> Result<Option<HeaderValue>, Refused> {
        let protocol = headers::remove_hop_by_hop(&mut head.headers);
        headers::prepare_request(&mut head.headers, head.version);
        if head
            .headers
            .get_all(TRANSFER_ENCODING)
            .iter()
            .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"chunked"))
        {
            return Err(Refused::Framing);
        }
        if let Some(origin) = &self.origin {
            origin.write(&mut head.headers, &host, self.shared.forwarded);
        }
        if self.shared.forwarded.via {
            headers::put_via(&mut head.headers, head.version);
        }
        head.headers.insert(HOST, host);
        head.version = Version::HTTP_11;
        Ok(protocol)
    }

    /// Sends the request to a server, and to another one if that cannot have done any harm.
    async fn exchange(
        &self,
        upstream: &Upstream,
        mut head: Parts,
        mut body: Sent,
        progress: Option<&Progress>,
    ) -> Result<(Response<Incoming>, Lease), Refused> {
        let settings = &upstream.settings;
        upstream.budget.earn();
        let mut tried = Tried::default();
        let mut retries_left = settings.retries;
        // Sent twice it does what it does once, and there is nothing to it but its head.
        let repeatable = progress.is_none() && head.method.is_idempotent();
        loop {
            let load = upstream.pick(&tried).ok_or(Refused::NobodyUp)?;
            tried.add(load.member());
            let mut may_retry = || {
                let may = retries_left > 0 && upstream.budget.spend();
                retries_left = retries_left.saturating_sub(1);
                may
            };
            let taken = match self.pool.take(load.member(), settings).await {
                Ok(taken) => taken,
                Err(error) => {
                    self.note_failure(upstream, &load, &error);
                    if may_retry() {
                        continue;
                    }
                    return Err(Refused::NoConnection);
                }
            };
            let Taken { mut sender, reused } = taken;
            let spare = repeatable.then(|| copy(&head));
            let sending = sender.try_send_request(Request::from_parts(head, body));
            match in_time(sending, settings.response_time, progress).await {
                Ok(Ok(answer)) => {
                    load.member().health.succeeded();
                    let pool = Arc::clone(&self.pool);
                    return Ok((answer, Lease { sender, load, pool, most_idle: settings.most_idle }));
                }
                Ok(Err(mut error)) => {
                    // Given back, nothing of it was sent.
                    let unsent = error.take_message();
                    let error = error.into_error();
                    if error.is_user() {
                        return Err(Refused::ClientBody);
                    }
                    // The server may always close an idle connection; that says nothing about its health.
                    if !reused {
                        self.note_failure(upstream, &load, &error);
                    }
                    match (unsent, spare) {
                        (Some(request), _) if reused || may_retry() => (head, body) = request.into_parts(),
                        (None, Some(copy)) if may_retry() => (head, body) = (copy, Sent::empty()),
                        _ => return Err(Refused::NoAnswer),
                    }
                }
                Err(late) => {
                    if late == Refused::Late {
                        self.note_failure(upstream, &load, &"no answer in time");
                    }
                    return Err(late);
                }
            }
        }
    }

    fn note_failure(&self, upstream: &Upstream, load: &Load, error: &dyn std::fmt::Display) {
        let (name, member) = (&upstream.settings.name, load.member());
        tracing::debug!(upstream = %name, address = %member.address, %error, "a request failed");
        if member.health.failed(&upstream.settings) {
            tracing::warn!(upstream = %name, address = %member.address, %error, "left alone for a while after failures in a row");
        }
    }
}

/// Waits for an answer. While the client's body is still moving the clock does not run.
async fn in_time<F>(sending: F, time: Duration, progress: Option<&Progress>) -> Result<F::Output, Refused>
where
    F: Future<Output = Result<Response<Incoming>, TrySendError<Request<Sent>>>>,
{
    let mut sending = std::pin::pin!(sending);
    let mut frames = 0;
    loop {
        if let Ok(answered) = tokio::time::timeout(time, sending.as_mut()).await {
            return Ok(answered);
        }
        match progress {
            Some(progress) if progress.frames() != frames => frames = progress.frames(),
            Some(progress) if !progress.ended() => return Err(Refused::ClientSlow),
            _ => return Err(Refused::Late),
        }
    }
}

/// The host that a request is for, out of its target or its `Host`; the target becomes a plain path.
fn take_host(head: &mut Parts) -> Result<HeaderValue, Refused> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let (first, more) = (hosts.next().cloned(), hosts.next().is_some());
    if more {
        return Err(Refused::Host);
    }
    if let Some(authority) = head.uri.authority() {
        if authority.as_str().contains('@') {
            return Err(Refused::Host);
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Refused::Host)?;
        head.uri = head.uri.path_and_query().cloned().map_or(Uri::from_static("/"), Uri::from);
        return Ok(host);
    }
    match first {
        Some(host) if host.to_str().is_ok_and(is_host) => Ok(host),
        // HTTP/1.0 did not know it yet.
        None if head.version == Version::HTTP_10 => Ok(HeaderValue::from_static("")),
        _ => Err(Refused::Host),
    }
}

/// A host and perhaps a port; nothing that a server might read as a path or another header.
fn is_host(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]%~".contains(&byte))
}

fn copy(head: &Parts) -> Parts {
    let (mut copy, ()) = Request::new(()).into_parts();
    copy.method = head.method.clone();
    copy.uri = head.uri.clone();
    copy.headers = head.headers.clone();
    copy
}
