//! Reads the bytes of HTTP/1.1 responses.

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Reads the status and the headers of a response.
pub async fn read_head(stream: &mut (impl AsyncBufRead + Unpin)) -> (u16, HeaderMap) {
    let status_line = read_line(stream).await;
    let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status line: {status_line:?}"));
    let mut headers = HeaderMap::new();
    loop {
        let line = read_line(stream).await;
        let Some((name, value)) = line.split_once(": ") else { break };
        let name = HeaderName::try_from(name).expect("a header's name");
        headers.append(name, HeaderValue::try_from(value).expect("a header's value"));
    }
    (status, headers)
}

/// Reads a line, and returns it without its line end.
pub async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).await.expect("the connection is open");
    line.trim_end().to_owned()
}

/// The headers that speak of limits, sorted, as lines.
pub fn limit_headers(headers: &HeaderMap) -> Vec<String> {
    let about_limits = |name: &str| name.contains("ratelimit") || name == "retry-after";
    let mut lines: Vec<String> = headers
        .iter()
        .filter(|(name, _)| about_limits(name.as_str()))
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("a header's value")))
        .collect();
    lines.sort();
    lines
}
