//! Fast path for repeated refusals on one connection.
//!
//! A client that ignores its 429s mostly sends the same bytes again, as fast as it can. Parsing the request and building the
//! response are most of the cost of a refusal (ADR 15). So after a refusal the connection keeps the bytes of the next request, if
//! one read holds exactly that request. If it is refused too, the service leaves a [`RepeatedRequest`]. Bytes that are the same
//! but for the target are then answered by [`FastPathStream`], and hyper does not see them.
//!
//! Only bytes are answered here that hyper has parsed before, on the same connection, as exactly one request, and only with a
//! refusal. Everything else takes the usual path.
//!
//! This folder is an optimisation that can be switched off ([`RefusalFastPath`]) and deleted: with it go [`FastPathStream`] in
//! `connection.rs`, the field of `ConnectionActivity`, the setting, and the calls of [`Peer::keep_request`],
//! [`Peer::record_refusal`] and [`Peer::record_other_response`].

#[cfg(test)]
mod interleavings;
mod kept_request;
mod refusal_text;
mod repeated_request;
mod stream;
#[cfg(test)]
mod tests;

pub use repeated_request::{RefusedRepeat, RepeatedRequest};
pub(crate) use stream::FastPathStream;

use crate::{Framing, Peer, ServeOptions};
use http::Request;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_http::RateLimitLayer;

/// Whether repeated requests of a refused client are answered before they are parsed. It needs [`Framing::Strict`], and a
/// service that calls [`Peer::keep_request`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalFastPath {
    /// They are.
    #[default]
    Enabled,
    /// Every request is parsed and takes the usual path.
    Disabled,
}

/// Answers repeats of one refused request.
pub(crate) trait RepeatRefuser: Send {
    /// Decides about the request with `target` in place of its own. A refusal is appended to `response` as a whole HTTP/1.1
    /// response.
    fn refuse_repeat(&mut self, target: &[u8], response: &mut Vec<u8>) -> RefusalAction;
}

/// What becomes of a repeated request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalAction {
    /// It takes the usual path: nothing was decided or written.
    Pass,
    /// It is refused.
    Refuse,
    /// It is refused, and the connection is closed after the response.
    RefuseAndClose,
}

/// What the service of a connection tells its stream.
#[derive(Default)]
pub(crate) struct FastPathState {
    /// The last response was a refusal.
    is_refused: AtomicBool,
    /// The bytes of the request that is being answered are kept.
    is_kept: AtomicBool,
    refuser: Mutex<Option<Box<dyn RepeatRefuser>>>,
}

impl FastPathState {
    /// None where the fast path cannot be used.
    pub(crate) fn new(options: &ServeOptions) -> Option<Self> {
        let is_usable =
            options.refusal_fast_path == RefusalFastPath::Enabled && options.framing == Framing::Strict;
        is_usable.then(Self::default)
    }

    fn record_refusal(&self, refuser: Option<Box<dyn RepeatRefuser>>) {
        self.is_refused.store(true, Ordering::Relaxed);
        if refuser.is_some() {
            *self.refuser.lock() = refuser;
        }
    }

    fn record_other_response(&self) {
        if self.is_refused.load(Ordering::Relaxed) {
            self.is_refused.store(false, Ordering::Relaxed);
            *self.refuser.lock() = None;
        }
    }

    /// Whether the bytes of the request that is being answered are kept; true once.
    fn take_kept(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed) && self.is_kept.swap(false, Ordering::Relaxed)
    }
}

impl fmt::Debug for FastPathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastPathState").field("is_refused", &self.is_refused).finish_non_exhaustive()
    }
}

impl Peer {
    /// Keeps `request`, which is about to be answered, for [`Peer::record_refusal`]. `limits` is the layer that decides about it,
    /// for this peer. None if the connection has not kept its bytes, or if there is more to its response than a refusal.
    pub fn keep_request<B>(
        &self,
        limits: &RateLimitLayer,
        request: &Request<B>,
    ) -> Option<Box<RepeatedRequest>> {
        let is_kept = self.activity.fast_path.as_ref().is_some_and(FastPathState::take_kept);
        if is_kept { RepeatedRequest::new(limits, request, self.counted.clone()).map(Box::new) } else { None }
    }

    /// The response is a refusal by a limit. `repeated` answers the repeats of its request.
    pub fn record_refusal(&self, repeated: Option<Box<RepeatedRequest>>) {
        if let Some(state) = &self.activity.fast_path {
            state.record_refusal(repeated.map(|repeated| repeated as Box<dyn RepeatRefuser>));
        }
    }

    /// The response is no refusal by a limit.
    pub fn record_other_response(&self) {
        if let Some(state) = &self.activity.fast_path {
            state.record_other_response();
        }
    }
}
