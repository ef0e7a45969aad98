//! For callers: keeps to the limits that a server states, before it has to refuse.
//!
//! [`ThrottleLayer`] goes around any `tower` client for HTTP. It reads what answers say about limits (`Retry-After`,
//! `RateLimit`, `X-RateLimit-*`), holds requests back when nothing is left, spaces them when little is, and
//! sends again what was refused with 429 or 503, if that is safe.
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
//! let asked = Arc::new(AtomicU32::new(0));
//! let client = service_fn(move |_: Request<Full<Bytes>>| {
//!     let is_first = asked.fetch_add(1, Ordering::Relaxed) == 0;
//!     let answer = Response::builder();
//!     let answer = if is_first { answer.status(429).header("retry-after", "2") } else { answer };
//!     async { answer.body("hello") }
//! });
//! let client = ServiceBuilder::new().layer(ThrottleLayer::default()).service(client);
//!
//! let request = Request::get("http://api.example/hello").body(Full::default()).unwrap();
//! let answer = client.oneshot(request).await.unwrap();
//! assert_eq!(answer.status(), 200);
//! # }
//! ```
//!
//! Bodies that can be sent again say so by [`Repeat`]; others are wrapped in [`Once`], and are sent once.

mod advice;
mod clock;
mod error;
mod fields;
mod keys;
mod layer;
mod pace;
mod repeat;
mod retry;

pub use advice::{Advice, Quota};
pub use error::{Error, Throttled};
pub use layer::{Throttle, ThrottleLayer};
pub use pace::PaceSettings;
pub use repeat::{Once, Repeat};
pub use retry::RetrySettings;
