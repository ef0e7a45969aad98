//! The gRPC services of a connection: rate limits, health and reflection.

use super::health::HealthService;
use super::proto::{self, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer};
use super::{MOST_BYTES, RlsDoor};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use tollgate_http::{HttpError, grpc};
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Status, server::NamedService};
use tonic_health::pb::health_server::HealthServer;
use tower_service::Service;

/// All services, for one connection after another.
#[derive(Clone)]
pub struct GrpcServices {
    limits: RateLimitServiceServer<RlsService>,
    others: Routes,
}

/// Decides requests at a door.
pub struct RlsService(Arc<RlsDoor>);

#[tonic::async_trait]
impl RateLimitService for RlsService {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        self.0.decide(request.get_ref()).await.map(tonic::Response::new)
    }
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl GrpcServices {
    pub fn new(door: &Arc<RlsDoor>) -> Self {
        let limits = RateLimitServiceServer::new(RlsService(Arc::clone(door)));
        let health = HealthServer::new(HealthService {
            readiness: Arc::clone(&door.readiness),
            services: &[RateLimitServiceServer::<RlsService>::NAME],
        });
        let mut others = Routes::new(health);
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // Older clients know the alpha version only.
        match (reflection().build_v1(), reflection().build_v1alpha()) {
            (Ok(current), Ok(alpha)) => others = others.add_service(current).add_service(alpha),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "no gRPC reflection: the descriptors of the services are invalid");
            }
        }
        Self { limits: limits.max_decoding_message_size(MOST_BYTES), others: others.prepare() }
    }
}

impl hyper::service::Service<Request<Incoming>> for GrpcServices {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        if request.version() != Version::HTTP_2 || !grpc::is_call(request.headers()) {
            let error = HttpError::unsupported_type("this address answers gRPC calls over HTTP/2 only");
            return Box::pin(std::future::ready(Ok(error.response().map(Body::new))));
        }
        if request.uri().path().starts_with(concat!("/", "envoy.service.ratelimit.v3.RateLimitService", "/"))
        {
            return self.limits.clone().call(request);
        }
        Box::pin(self.others.clone().call(request))
    }
}
