//! The future of a response: of the inner service's, or of an answer in its place.

use super::body::{AnswerCause, ResponseBody};
use super::gate::{AdmittedRequest, LayerOutcome};
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
        /// The shared store has to be heard.
        Deciding { deciding: Deciding<A>, inner: S },
        /// The inner service answers.
        Passing { #[pin] response: F, passage: Option<AdmittedRequest> },
        /// The limiter answered.
        Answered { answer: Option<(FullResponse, AnswerCause)> },
    }
}

impl<S: Service<Request<A>>, A> ResponseFuture<S, A> {
    pub(super) fn deciding(deciding: Deciding<A>, inner: S, headers: HeaderOptions) -> Self {
        Self { state: FutureState::Deciding { deciding, inner }, headers }
    }

    pub(super) fn passing(response: S::Future, passage: AdmittedRequest, headers: HeaderOptions) -> Self {
        Self { state: FutureState::Passing { response, passage: Some(passage) }, headers }
    }

    pub(super) fn answered(answer: FullResponse, cause: AnswerCause) -> Self {
        Self {
            state: FutureState::Answered { answer: Some((answer, cause)) },
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
                        LayerOutcome::Admitted((request, passage)) => {
                            FutureState::Passing { response: inner.call(request), passage: Some(passage) }
                        }
                        LayerOutcome::Answered(answer, cause) => {
                            FutureState::Answered { answer: Some((answer, cause)) }
                        }
                    }
                }
                FutureStateProjection::Passing { response, passage } => {
                    let mut response = ready!(response.poll(cx))?;
                    let AdmittedRequest { decision, place } =
                        passage.take().expect("a future is not polled after it was ready");
                    this.headers.write(&decision, response.headers_mut());
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::passing(body, place))));
                }
                FutureStateProjection::Answered { answer } => {
                    let (answer, cause) = answer.take().expect("a future is not polled after it was ready");
                    return Poll::Ready(Ok(answer.map(|body| ResponseBody::answered(body, cause))));
                }
            };
            this.state.set(next);
        }
    }
}
