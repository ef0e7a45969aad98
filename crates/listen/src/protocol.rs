//! How connections are spoken to: HTTP/1.1, or HTTP/2 with bounds on what a flood of streams can hold.

use crate::http2_streams::StreamExecutor;
use crate::{Protocols, ServeOptions};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};

/// How an HTTP/2 client begins, and no other.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const MOST_STREAMS: u32 = 128;
/// Streams that were reset before we looked at them; more end the connection.
const MOST_PENDING_RESETS: usize = 32;
/// What one stream, and all streams of a connection, may have under way to us.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const PING_EVERY: Duration = Duration::from_secs(30);

/// The protocols of a listener, set up.
pub(crate) struct ProtocolBuilders {
    pub(crate) http1: http1::Builder,
    pub(crate) http2: Option<http2::Builder<StreamExecutor>>,
}

impl ProtocolBuilders {
    pub(crate) fn new(options: &ServeOptions) -> Self {
        let http2 = (options.protocols == Protocols::Http1And2).then(|| http2(options));
        Self { http1: http1(options), http2 }
    }
}

fn http1(options: &ServeOptions) -> http1::Builder {
    let mut http = http1::Builder::new();
    // Hyper's own timeout allocates a timer for each request, and closes idle connections by the same
    // clock as slow heads; see `connection`. Its default of 100 headers is a bound without an allocation.
    http.header_read_timeout(None)
        // Answers are small: copied behind their head they go out in one plain write, which is cheaper
        // than a vectored one.
        .writev(false)
        .max_header_size(options.most_head_bytes)
        // What has not become a head within this many bytes never will.
        .max_buf_size(options.most_head_bytes.max(8 * 1024) * 2);
    http
}

fn http2(options: &ServeOptions) -> http2::Builder<StreamExecutor> {
    let mut http =
        http2::Builder::new(StreamExecutor { min_rate: options.min_rate, idle_time: options.idle_time });
    http.timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_pending_accept_reset_streams(MOST_PENDING_RESETS)
        .max_header_list_size(u32::try_from(options.most_head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(options.head_time);
    http
}

/// What a client began with.
pub(crate) enum DetectedProtocol {
    Http1(Vec<u8>),
    Http2(Vec<u8>),
}

/// Reads until it is clear what the client speaks. What was read comes back with it.
pub(crate) async fn listen(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<DetectedProtocol> {
    let mut heard = Vec::with_capacity(PREFACE.len());
    while heard.len() < PREFACE.len() {
        let mut rest = (&mut *stream).take((PREFACE.len() - heard.len()) as u64);
        if rest.read_buf(&mut heard).await? == 0 || !PREFACE.starts_with(&heard) {
            return Ok(DetectedProtocol::Http1(heard));
        }
    }
    Ok(DetectedProtocol::Http2(heard))
}
