//! The future of a response: of the inner service's, or of an answer in its place.

use super::body::{AnswerCause, ResponseBody};
use super::gate::{Judged, Passage};
use crate::answer::Answer;
use crate::headers::HeaderOptions;
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_service::Service;

type Deciding<A> = Pin<Box<dyn Future<Output = Judged<(Request<A>, Passage)>> + Send>>;

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
        Passing { #[pin] response: F, passage: Option<Passage> },
        /// The limiter answered.
        Answered { answer: Option<(Answer, AnswerCause)> },
    }
}

impl<S: Service<Request<A>>, A> ResponseFuture<S, A> {
    pub(super) fn deciding(deciding: Deciding<A>, inner: S, headers: HeaderOptions) -> Self {
        Self { state: State::Deciding { deciding, inner }, headers }
    }

    pub(super) fn passing(response: S::Future, passage: Passage, headers: HeaderOptions) -> Self {
        Self { state: State::Passing { response, passage: Some(passage) }, headers }
    }

    pub(super) fn answered(answer: Answer, cause: AnswerCause) -> Self {
        Self { state: State::Answered { answer: Some((answer, cause)) }, headers: HeaderOptions::default() }
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
                    Judged::Passes((request, passage)) => {
                        State::Passing { response: inner.call(request), passage: Some(passage) }
                    }
                    Judged::Answered(answer, cause) => State::Answered { answer: Some((answer, cause)) },
                },
                Now::Passing { response, passage } => {
                    let mut response = ready!(response.poll(cx))?;
                    let Passage { decision, place } =
                        passage.take().expect("a future is not polled after it was ready");
                    this.headers.write(&decision, response.headers_mut());
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::passing(body, place))));
                }
                Now::Answered { answer } => {
                    let (answer, cause) = answer.take().expect("a future is not polled after it was ready");
                    return Poll::Ready(Ok(answer.map(|body| ResponseBody::answered(body, cause))));
                }
            };
            this.state.set(next);
        }
    }
}
