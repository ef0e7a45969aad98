//! The protocols: HTTP/1.1, and HTTP/2 with bounds on what its streams may hold.

use crate::http2_streams::StreamExecutor;
use crate::{Protocols, ServeOptions};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};

/// What every HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const MOST_STREAMS: u32 = 128;
/// Streams that were reset before they were accepted; more end the connection.
const MOST_PENDING_RESETS: usize = 32;
/// What a client may send on one stream, and on all streams, before the server takes it.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const PING_EVERY: Duration = Duration::from_secs(30);

/// The protocols of a listener, as hyper needs them.
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
    // Hyper's own timeout allocates a timer for each request, and closes idle connections by the same timeout as slow heads; see
    // `connection_activity`. Its default of 100 headers is a bound without an allocation.
    http.header_read_timeout(None)
        // Responses are small: head and body copied into one plain write are cheaper than a vectored write.
        .writev(false)
        .max_header_size(options.most_head_bytes)
        // A head that does not end within so many bytes is refused in any case.
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

/// The protocol of a client, and what was read to detect it.
pub(crate) enum DetectedProtocol {
    Http1(Vec<u8>),
    Http2(Vec<u8>),
}

/// Reads until the protocol of the client is known.
pub(crate) async fn detect(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<DetectedProtocol> {
    let mut read = Vec::with_capacity(PREFACE.len());
    while read.len() < PREFACE.len() {
        let mut rest = (&mut *stream).take((PREFACE.len() - read.len()) as u64);
        if rest.read_buf(&mut read).await? == 0 || !PREFACE.starts_with(&read) {
            return Ok(DetectedProtocol::Http1(read));
        }
    }
    Ok(DetectedProtocol::Http2(read))
}
