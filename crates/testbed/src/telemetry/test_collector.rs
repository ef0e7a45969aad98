//! An OTLP collector that remembers what it received.

use crate::TestCertificates;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};

/// How the collector answers.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Accepts all.
    Accept,
    /// Accepts the request, and says that it did not take some of it.
    RejectSome,
    /// With an error.
    Fail(Code),
    /// Not at all.
    Never,
}

/// What was accepted.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The requests with metrics.
    pub metrics: Vec<ExportMetricsServiceRequest>,
    /// The log records.
    pub logs: Vec<LogRecord>,
    /// The spans.
    pub spans: Vec<Span>,
    /// Requests, also those that failed.
    pub requests: usize,
    /// The header `x-token` of the last request.
    pub token: Option<String>,
    /// The sizes of the batches of log records.
    pub batches: Vec<usize>,
}

/// See the module. It ends when it is dropped, and so do its connections.
#[derive(Debug)]
pub struct TestCollector {
    /// Where it listens.
    pub address: SocketAddr,
    services: Services,
    runtime: Option<Runtime>,
}

impl Drop for TestCollector {
    fn drop(&mut self) {
        let runtime = self.runtime.take();
        // A runtime cannot be dropped where another one runs.
        std::thread::spawn(move || drop(runtime)).join().unwrap();
    }
}

#[derive(Clone, Debug)]
struct Services {
    received: Arc<watch::Sender<Received>>,
    answer: Arc<watch::Sender<Answer>>,
}

impl TestCollector {
    /// A collector on a free port.
    pub async fn start(answer: Answer) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), answer, None).await
    }

    /// A collector at `address`.
    pub async fn start_at(address: SocketAddr, answer: Answer, tls: Option<&TestCertificates>) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bound = runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.unwrap();
            (listener.local_addr().unwrap(), listener)
        });
        let (address, listener) = bound.await.unwrap();
        let services = Services {
            received: Arc::new(watch::Sender::new(Received::default())),
            answer: Arc::new(watch::Sender::new(answer)),
        };
        let mut server = Server::builder();
        if let Some(tls) = tls {
            let identity = Identity::from_pem(&tls.certificate, &tls.key);
            server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        }
        let server = server
            .add_service(MetricsServiceServer::new(services.clone()))
            .add_service(LogsServiceServer::new(services.clone()))
            .add_service(TraceServiceServer::new(services.clone()));
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self { address, services, runtime: Some(runtime) }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers like this from now on.
    pub fn set_answer(&self, answer: Answer) {
        self.services.answer.send_replace(answer);
    }

    /// What it accepted until now.
    pub fn received(&self) -> Received {
        self.services.received.borrow().clone()
    }

    /// Waits until `is_true`.
    pub async fn wait_for(&self, what: &str, is_true: impl FnMut(&Received) -> bool) {
        let mut received = self.services.received.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(60), received.wait_for(is_true)).await;
        waited.unwrap_or_else(|_| panic!("never: {what}")).unwrap();
    }
}

impl Services {
    /// Applies the answer of the moment. Returns whether the collector says that some was rejected.
    async fn answer(&self, headers: &tonic::metadata::MetadataMap) -> Result<bool, Status> {
        // Before the request is counted: a test may change the answer once it is.
        let answer = *self.answer.borrow();
        let token = headers.get("x-token").map(|token| token.to_str().unwrap().to_owned());
        self.received.send_modify(|received| {
            received.requests += 1;
            received.token = token;
        });
        match answer {
            Answer::Accept => Ok(false),
            Answer::RejectSome => Ok(true),
            Answer::Fail(code) => Err(Status::new(code, "as the test wants")),
            Answer::Never => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl MetricsService for Services {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let rejects = self.answer(request.metadata()).await?;
        self.received.send_modify(|received| received.metrics.push(request.into_inner()));
        let partial_success = rejects.then(|| ExportMetricsPartialSuccess {
            rejected_data_points: 1,
            error_message: "one is bad".to_owned(),
        });
        Ok(Response::new(ExportMetricsServiceResponse { partial_success }))
    }
}

#[tonic::async_trait]
impl LogsService for Services {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.answer(request.metadata()).await?;
        let resources = request.into_inner().resource_logs.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_logs);
        let records: Vec<_> = scopes.flat_map(|scope| scope.log_records).collect();
        self.received.send_modify(|received| {
            received.batches.push(records.len());
            received.logs.extend(records);
        });
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Services {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.answer(request.metadata()).await?;
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans: Vec<_> = scopes.flat_map(|scope| scope.spans).collect();
        self.received.send_modify(|received| received.spans.extend(spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
