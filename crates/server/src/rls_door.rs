//! The RLS door: Envoy's rate limit service (`envoy.service.ratelimit.v3`), so that any Envoy can ask for decisions.
//!
//! A request has descriptors, and each becomes a part of a request to the limiter ([`descriptors`]). By default all parts
//! are charged or none ([`DescriptorCharging`]). The decisions become a response ([`mod@answer`]) with a status for each
//! descriptor.
//!
//! Envoy admits a request if this service answers with an error, unless it is configured otherwise. So nothing that a client
//! can put into a descriptor is an error here: what cannot be decided is over its limit. The only error that a decision leads to is
//! `UNAVAILABLE`, under `on_store_failure: deny`.

pub mod answer;
mod connection;
pub mod descriptors;
mod health;
pub mod proto;

use answer::{DescriptorVerdict, Verdicts, answer};
use connection::GrpcServices;
use descriptors::{DecodedDescriptor, MOST_DESCRIPTORS, RefusedDescriptor};
use futures_util::future::join_all;
use proto::{RateLimitRequest, RateLimitResponse};
use serde::Deserialize;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_core::rules::{DoorCapability, OpenDoor};
use tollgate_http::HeaderOptions;
use tollgate_limiter::{Limiter, PartDecisions, PartsCheck, RequestPart};
use tollgate_listen::{ListenerSetup, Protocols, Readiness, ServeOptions, serve};
use tonic::Status;

/// The longest message. Envoy sends header values in descriptors, and by default takes 60 KiB of headers.
pub const MOST_BYTES: usize = 4 << 20;
/// Above the hour after which Envoy closes an idle connection: if the server closed it, a request could be lost on the way.
const IDLE_TIME: Duration = Duration::from_secs(3_900);

/// What the RLS door needs to respond.
#[derive(Debug)]
pub struct RlsDoor {
    /// Makes the decisions.
    pub limiter: Arc<Limiter>,
    /// Which rate limit headers responses of the proxy carry.
    pub headers: HeaderOptions,
    /// How several descriptors of one request are charged.
    pub descriptors: DescriptorCharging,
    /// What the health service reports.
    pub readiness: Arc<Readiness>,
}

/// How several descriptors of one request are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DescriptorCharging {
    /// All of them, or none if one is over its limit.
    #[default]
    AllOrNothing,
    /// Each by itself, as envoyproxy/ratelimit does.
    Independent,
}

impl RlsDoor {
    /// What the door supports, for the rule compiler: descriptors have any identities and a domain.
    pub fn describe() -> OpenDoor {
        let capabilities = BTreeSet::from([DoorCapability::Domain]);
        OpenDoor { name: "the RLS door", capabilities, identities: None }
    }

    /// The bounds of its listener.
    pub fn default_options() -> ServeOptions {
        ServeOptions { protocols: Protocols::Http1And2, idle_time: IDLE_TIME, ..ServeOptions::default() }
    }

    /// Serves until `shutdown` resolves, then drains. Returns the number of connections that were cut because they were
    /// still busy at the end of the grace period.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        setup: ListenerSetup,
        shutdown: impl Future<Output = ()>,
        options: ServeOptions,
    ) -> usize {
        let services = GrpcServices::new(&self);
        let readiness = Arc::clone(&self.readiness);
        let shutdown = async move {
            shutdown.await;
            readiness.set_draining();
        };
        serve(listener, setup, |_peer| services.clone(), shutdown, options).await
    }

    /// The response to `request`.
    pub async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument("the request has no descriptors"));
        }
        match self.check(request) {
            RlsCheck::Decided(verdicts) => answer(&verdicts, &self.headers),
            RlsCheck::Together(PartsCheck::Decided(decisions)) => self.answer_decided(decisions),
            // Boxed: a call is as large as the largest thing that it may become, and most are decided at once.
            waiting => Box::pin(self.wait(waiting)).await,
        }
    }

    fn answer_decided(&self, decisions: PartDecisions) -> Result<RateLimitResponse, Status> {
        let verdicts: Verdicts = decisions.into_iter().map(DescriptorVerdict::Decided).collect();
        answer(&verdicts, &self.headers)
    }

    /// The response, when the shared store has answered.
    async fn wait(&self, check: RlsCheck<'_>) -> Result<RateLimitResponse, Status> {
        let verdicts = match check {
            RlsCheck::Decided(verdicts) => verdicts,
            RlsCheck::Together(check) => return self.answer_decided(check.decisions().await),
            RlsCheck::Independent(checks) => {
                let verdicts = checks.into_iter().map(async |check| match check {
                    Err(refused) => DescriptorVerdict::Refused(refused),
                    Ok(check) => match check.decisions().await.pop() {
                        Some(decision) => DescriptorVerdict::Decided(decision),
                        None => DescriptorVerdict::Unchecked,
                    },
                });
                join_all(verdicts).await.into_iter().collect()
            }
        };
        answer(&verdicts, &self.headers)
    }

    /// Starts the checks of all descriptors.
    fn check(&self, request: &RateLimitRequest) -> RlsCheck<'_> {
        let RateLimitRequest { domain, descriptors, hits_addend } = request;
        if descriptors.len() > MOST_DESCRIPTORS {
            let refused = DescriptorVerdict::Refused(RefusedDescriptor::TooManyDescriptors);
            return RlsCheck::Decided(descriptors.iter().map(|_| refused.clone()).collect());
        }
        let decoded = descriptors.iter().map(|one| DecodedDescriptor::decode(one, domain, *hits_addend));
        let decoded: SmallVec<[Result<DecodedDescriptor<'_>, RefusedDescriptor>; 2]> = decoded.collect();
        match self.descriptors {
            DescriptorCharging::AllOrNothing => self.check_together(decoded, domain),
            DescriptorCharging::Independent => RlsCheck::Independent(
                decoded.into_iter().map(|one| self.check_alone(&one?, domain)).collect(),
            ),
        }
    }

    fn check_alone(
        &self,
        descriptor: &DecodedDescriptor<'_>,
        domain: &str,
    ) -> Result<PartsCheck<'_>, RefusedDescriptor> {
        let check = self.limiter.check_parts(&[descriptor.part(domain)]);
        check.map_err(|invalid| RefusedDescriptor::Invalid(invalid.error))
    }

    fn check_together(
        &self,
        decoded: SmallVec<[Result<DecodedDescriptor<'_>, RefusedDescriptor>; 2]>,
        domain: &str,
    ) -> RlsCheck<'_> {
        if decoded.iter().any(Result::is_err) {
            let verdict = |one: Result<_, _>| match one {
                Ok(_) => DescriptorVerdict::Unchecked,
                Err(refused) => DescriptorVerdict::Refused(refused),
            };
            return RlsCheck::Decided(decoded.into_iter().map(verdict).collect());
        }
        let parts: SmallVec<[RequestPart<'_>; 2]> =
            decoded.iter().flatten().map(|descriptor| descriptor.part(domain)).collect();
        match self.limiter.check_parts(&parts) {
            Ok(check) => RlsCheck::Together(check),
            Err(invalid) => {
                let mut verdicts: Verdicts = decoded.iter().map(|_| DescriptorVerdict::Unchecked).collect();
                verdicts[invalid.part] =
                    DescriptorVerdict::Refused(RefusedDescriptor::Invalid(invalid.error));
                RlsCheck::Decided(verdicts)
            }
        }
    }
}

/// Descriptors that are checked.
enum RlsCheck<'l> {
    /// Some cannot be, so none is.
    Decided(Verdicts),
    /// All or nothing.
    Together(PartsCheck<'l>),
    /// Each by itself.
    Independent(Vec<Result<PartsCheck<'l>, RefusedDescriptor>>),
}
