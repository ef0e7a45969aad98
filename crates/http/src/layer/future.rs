//! The future of a response: of the inner service's, or of an answer in its place.

use super::body::ResponseBody;
use super::gate::Judged;
use crate::answer::Answer;
use crate::headers::HeaderOptions;
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tollgate_limiter::Admission;
use tower_service::Service;

type Deciding<A> = Pin<Box<dyn Future<Output = Judged<(Request<A>, Admission)>> + Send>>;

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S: Service<Request<A>>, A> {
        #[pin]
        state: State<S, S::Future, A>,
        headers: HeaderOptions,
    }
}

pin_project! {
    #[project = Now]
    enum State<S, F, A> {
        /// The shared store has to be heard.
        Deciding { deciding: Deciding<A>, inner: S },
        /// The inner service answers.
        Passing { #[pin] response: F, admission: Option<Admission> },
        /// The limiter answered.
        Answered { answer: Option<Answer> },
    }
}

impl<S: Service<Request<A>>, A> ResponseFuture<S, A> {
    pub(super) fn deciding(deciding: Deciding<A>, inner: S, headers: HeaderOptions) -> Self {
        Self { state: State::Deciding { deciding, inner }, headers }
    }

    pub(super) fn passing(response: S::Future, admission: Admission, headers: HeaderOptions) -> Self {
        Self { state: State::Passing { response, admission: Some(admission) }, headers }
    }

    pub(super) fn answered(answer: Answer) -> Self {
        Self { state: State::Answered { answer: Some(answer) }, headers: HeaderOptions::default() }
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
                Now::Deciding { deciding, inner } => match ready!(deciding.as_mut().poll(cx)) {
                    Judged::Passes((request, admission)) => {
                        State::Passing { response: inner.call(request), admission: Some(admission) }
                    }
                    Judged::Answered(answer) => State::Answered { answer: Some(answer) },
                },
                Now::Passing { response, admission } => {
                    let mut response = ready!(response.poll(cx))?;
                    let Admission { decision, permit } =
                        admission.take().expect("a future is not polled after it was ready");
                    this.headers.write(&decision, response.headers_mut());
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::passing(body, permit))));
                }
                Now::Answered { answer } => {
                    let answer = answer.take().expect("a future is not polled after it was ready");
                    return Poll::Ready(Ok(answer.map(ResponseBody::answered)));
                }
            };
            this.state.set(next);
        }
    }
}
