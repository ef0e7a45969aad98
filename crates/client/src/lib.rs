//! A tower layer for HTTP clients that keeps to the rate limits of servers, and retries with care.
//!
//! [`ThrottleLayer`] wraps any `tower` client for HTTP. It reads the limits that responses state (`Retry-After`,
//! `RateLimit`, `X-RateLimit-*`), delays requests when the quota is used up, spaces them when it is low, and retries
//! requests that were refused with 429 or 503, if they are idempotent and within a retry budget. It works with any
//! server that sends these headers, and does not depend on the other Tollgate crates.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use tollgate_client::ThrottleLayer;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! // Any client; here, one whose first request is refused for two seconds.
//! let requests = Arc::new(AtomicU32::new(0));
//! let client = service_fn(move |_: Request<Full<Bytes>>| {
//!     let is_first = requests.fetch_add(1, Ordering::Relaxed) == 0;
//!     let response = Response::builder();
//!     let response = if is_first { response.status(429).header("retry-after", "2") } else { response };
//!     async { response.body("hello") }
//! });
//! let client = ServiceBuilder::new().layer(ThrottleLayer::default()).service(client);
//!
//! let request = Request::get("http://api.example/hello").body(Full::default()).unwrap();
//! let response = client.oneshot(request).await.unwrap();
//! assert_eq!(response.status(), 200);
//! # }
//! ```
//!
//! Bodies implement [`RepeatBody`], so that a retry can send them again; a stream is wrapped in [`SendOnce`] and not
//! retried. A request that would have to wait for longer than [`PaceSettings::max_wait`] fails at once with
//! [`ThrottleError::Throttled`]. [`ResponseLimits`] reads the headers of any response.

mod clock;
mod error;
mod layer;
mod pace;
mod pacer;
mod repeat_body;
mod response_limits;
mod retry;
mod retry_budget;
mod structured_fields;

pub use error::{ThrottleError, Throttled};
pub use layer::{Throttle, ThrottleLayer};
pub use pace::PaceSettings;
pub use repeat_body::{RepeatBody, SendOnce};
pub use response_limits::{RemainingQuota, ResponseLimits};
pub use retry::RetrySettings;
