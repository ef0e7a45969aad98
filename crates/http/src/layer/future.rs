//! The future of a response: that of the inner service, or one of the layer.

use super::body::{AnswerCause, ResponseBody};
use super::layer_core::{AdmittedRequest, LayerOutcome};
use crate::headers::HeaderOptions;
use crate::response::FullResponse;
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_service::Service;

type Deciding<A> = Pin<Box<dyn Future<Output = LayerOutcome<(Request<A>, AdmittedRequest)>> + Send>>;

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S: Service<Request<A>>, A> {
        #[pin]
        state: FutureState<S, S::Future, A>,
        headers: HeaderOptions,
    }
}

pin_project! {
    #[project = FutureStateProjection]
    enum FutureState<S, F, A> {
        /// The decision has to wait.
        Deciding { deciding: Deciding<A>, inner: S },
        /// The inner service responds.
        Admitted { #[pin] response: F, admitted: Option<AdmittedRequest> },
        /// The layer responds.
        Answered { response: Option<(FullResponse, AnswerCause)> },
    }
}

impl<S: Service<Request<A>>, A> ResponseFuture<S, A> {
    pub(super) fn deciding(deciding: Deciding<A>, inner: S, headers: HeaderOptions) -> Self {
        Self { state: FutureState::Deciding { deciding, inner }, headers }
    }

    pub(super) fn admitted(response: S::Future, admitted: AdmittedRequest, headers: HeaderOptions) -> Self {
        Self { state: FutureState::Admitted { response, admitted: Some(admitted) }, headers }
    }

    pub(super) fn answered(response: FullResponse, cause: AnswerCause) -> Self {
        Self {
            state: FutureState::Answered { response: Some((response, cause)) },
            headers: HeaderOptions::default(),
        }
    }
}

impl<S, A, B> Future for ResponseFuture<S, A>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: http_body::Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                FutureStateProjection::Deciding { deciding, inner } => {
                    match ready!(deciding.as_mut().poll(cx)) {
                        LayerOutcome::Admitted((request, admitted)) => {
                            FutureState::Admitted { response: inner.call(request), admitted: Some(admitted) }
                        }
                        LayerOutcome::Answered(response, cause) => {
                            FutureState::Answered { response: Some((response, cause)) }
                        }
                    }
                }
                FutureStateProjection::Admitted { response, admitted } => {
                    let mut response = ready!(response.poll(cx))?;
                    let AdmittedRequest { decision, permit, summary } =
                        admitted.take().expect("a future is not polled after it was ready");
                    if let Some(summary) = summary {
                        response.extensions_mut().insert(*summary);
                    }
                    this.headers.write(&decision, response.headers_mut());
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::passing(body, permit))));
                }
                FutureStateProjection::Answered { response } => {
                    let (response, cause) =
                        response.take().expect("a future is not polled after it was ready");
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::answered(body, cause))));
                }
            };
            this.state.set(next);
        }
    }
}
