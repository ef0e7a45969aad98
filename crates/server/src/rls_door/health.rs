//! gRPC health (`grpc.health.v1.Health`): serving while the node is ready.

use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tollgate_listen::{NotReady, Readiness};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// How often the status is looked at for clients that watch it.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Reports the readiness of the node, for the whole server and for each of these services.
pub struct HealthService {
    pub readiness: Arc<Readiness>,
    pub services: &'static [&'static str],
}

impl HealthService {
    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }
}

fn status(readiness: &Readiness) -> ServingStatus {
    match readiness.check() {
        Ok(()) => ServingStatus::Serving,
        Err(NotReady::NoRules | NotReady::Draining) => ServingStatus::NotServing,
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !self.knows(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service"));
        }
        Ok(Response::new(HealthCheckResponse { status: status(&self.readiness).into() }))
    }

    type WatchStream = HealthStream;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthStream>, Status> {
        let is_known = self.knows(&request.get_ref().service);
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let readiness = Arc::clone(&self.readiness);
        Ok(Response::new(HealthStream { readiness, is_known, looks, sent: None, has_ended: false }))
    }
}

/// The changes of the status, the present one first. It ends when the node drains, so that no drain waits for it.
pub struct HealthStream {
    readiness: Arc<Readiness>,
    is_known: bool,
    looks: Interval,
    sent: Option<ServingStatus>,
    has_ended: bool,
}

impl Stream for HealthStream {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.has_ended {
                return Poll::Ready(None);
            }
            ready!(self.looks.poll_tick(cx));
            self.has_ended = self.readiness.check() == Err(NotReady::Draining);
            // The protocol keeps the stream open for a service that may become known.
            let status = if self.is_known { status(&self.readiness) } else { ServingStatus::ServiceUnknown };
            if self.sent != Some(status) {
                self.sent = Some(status);
                return Poll::Ready(Some(Ok(HealthCheckResponse { status: status.into() })));
            }
        }
    }
}
