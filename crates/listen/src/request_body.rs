//! Reads the body of a request, bounded in size and time.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tollgate_http::HttpError;

/// Reads the whole body. Longer ones than `most_bytes`, and those that take longer than `most_time`, are errors.
///
/// Reading stops at the first byte too many, and does not start if the announced length is too large.
pub async fn read_body(body: Incoming, most_bytes: usize, most_time: Duration) -> Result<Bytes, HttpError> {
    if body.size_hint().lower() > most_bytes as u64 {
        return Err(HttpError::too_large(most_bytes));
    }
    let mut reading = pin!(collect(body, most_bytes));
    match ready_at_second_poll(reading.as_mut()).await {
        Some(read) => read,
        None => match tokio::time::timeout(most_time, reading).await {
            Ok(read) => read,
            Err(_) => Err(HttpError::too_slow()),
        },
    }
}

/// Reads a body whose content does not matter, so that the next request can follow on the connection.
pub async fn discard_body(mut body: Incoming, most_bytes: usize, most_time: Duration) -> DiscardedBody {
    if body.is_end_stream() {
        return DiscardedBody::Whole;
    }
    if body.size_hint().lower() > most_bytes as u64 {
        return DiscardedBody::Part;
    }
    let discarding = async {
        let mut length = 0;
        loop {
            match next_data(&mut body).await {
                Ok(Some(data)) if length + data.len() <= most_bytes => length += data.len(),
                Ok(Some(_)) | Err(_) => return DiscardedBody::Part,
                Ok(None) => return DiscardedBody::Whole,
            }
        }
    };
    tokio::time::timeout(most_time, discarding).await.unwrap_or(DiscardedBody::Part)
}

/// How much of a body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardedBody {
    /// All of it.
    Whole,
    /// It was too long or too slow: the connection cannot be used again.
    Part,
}

/// The result if it is ready at the second poll. Hyper reads a body only after it was first polled, so the first poll never
/// finds one, and a timer set then would be set for every request.
async fn ready_at_second_poll<F: Future>(mut reading: Pin<&mut F>) -> Option<F::Output> {
    let mut is_second = false;
    poll_fn(|cx| match reading.as_mut().poll(cx) {
        Poll::Ready(read) => Poll::Ready(Some(read)),
        Poll::Pending if is_second => Poll::Ready(None),
        Poll::Pending => {
            is_second = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

async fn collect(mut body: Incoming, most_bytes: usize) -> Result<Bytes, HttpError> {
    let Some(first) = next_data(&mut body).await? else { return Ok(Bytes::new()) };
    if first.len() > most_bytes {
        return Err(HttpError::too_large(most_bytes));
    }
    // Nearly always the body is one frame, which is not copied.
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(first);
    while let Some(data) = next_data(&mut body).await? {
        if whole.len() + data.len() > most_bytes {
            return Err(HttpError::too_large(most_bytes));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, HttpError> {
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| HttpError::bad_request(format!("the body cannot be read: {error}")))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}
