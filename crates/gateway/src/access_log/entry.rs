//! One line of the access log.

use super::request_trace::{RequestTrace, UpstreamUse};
use super::{LineStyle, LoggedRequest, combined};
use crate::settings::AccessLogFormat;
use http::header::{HOST, REFERER, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Uri, Version};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::time::Instant;
use tollgate_core::time::UnixTime;
use tollgate_http::body::ErrorCode;
use tollgate_http::identity::redacted;
use tollgate_http::layer::DecisionSummary;
use tollgate_limiter::line_log::{JsonFields, LineLog, LogLine, rfc3339_us};

/// A request and its response.
#[derive(Debug)]
pub(crate) struct AccessLogEntry {
    pub(super) start: UnixTime,
    pub(super) duration_us: u64,
    pub(super) client: IpAddr,
    pub(super) method: Method,
    /// Path and query, whatever form the target had; none for the target of `CONNECT`.
    pub(super) target: Option<PathAndQuery>,
    pub(super) host: Option<HeaderValue>,
    pub(super) version: Version,
    pub(super) referer: Option<HeaderValue>,
    pub(super) user_agent: Option<HeaderValue>,
    pub(super) request_id: Option<HeaderValue>,
    /// 0 if the client was gone before there was a response.
    pub(crate) status: u16,
    pub(super) decision: Option<DecisionSummary>,
    pub(super) upstream: Option<UpstreamUse>,
    pub(super) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) is_complete: bool,
    style: Arc<LineStyle>,
}

impl AccessLogEntry {
    pub(super) fn new(start: UnixTime, request: LoggedRequest<'_>, style: Arc<LineStyle>) -> Self {
        let LoggedRequest { client, method, target, version, headers, request_id } = request;
        // Without user name and password, which an authority may have.
        let authority = target.authority().and_then(|authority| authority.as_str().rsplit('@').next());
        let host = match authority {
            Some(host) => HeaderValue::from_str(host).ok(),
            None => headers.get(HOST).cloned(),
        };
        Self {
            start,
            duration_us: 0,
            client: client.to_canonical(),
            method: method.clone(),
            target: target.path_and_query().cloned(),
            host,
            version,
            referer: headers.get(REFERER).cloned(),
            user_agent: headers.get(USER_AGENT).cloned(),
            request_id,
            status: 0,
            decision: None,
            upstream: None,
            bytes_received: 0,
            bytes_sent: 0,
            is_complete: false,
            style,
        }
    }

    /// The target without the values of hidden query parameters.
    pub(super) fn shown_target(&self) -> String {
        let target = self.target.clone().map(Uri::from);
        target.map_or_else(String::new, |target| redacted(&target, &self.style.hidden))
    }

    /// The page that the request came from, without the values of hidden query parameters: it may be one of this service.
    pub(super) fn shown_referer(&self) -> Option<String> {
        let referer = text(self.referer.as_ref()?);
        Some(match referer.parse() {
            Ok(uri) => redacted::<String>(&uri, &self.style.hidden),
            Err(_) => match referer.split_once('?') {
                Some((page, _)) => format!("{page}?…"),
                None => referer,
            },
        })
    }

    pub(super) fn outcome(&self) -> Option<&'static str> {
        self.decision.as_ref().map(|summary| summary.outcome.name())
    }

    /// The rule that decided.
    pub(super) fn rule(&self) -> Option<&'static str> {
        let (terms, _) = self.decision.as_ref()?.decision.standing()?;
        Some(&terms.names.rule)
    }

    /// A rule in shadow mode that would have refused the request.
    pub(super) fn shadowed_by(&self) -> Option<&'static str> {
        Some(&self.decision.as_ref()?.decision.shadowed_by?.rule)
    }

    pub(super) fn retry_after_us(&self) -> Option<u64> {
        self.decision.as_ref()?.decision.standing()?.1.wait_us()
    }

    pub(super) fn key(&self) -> impl Iterator<Item = String> {
        self.decision.iter().flat_map(|summary| &summary.key).map(|part| self.style.keys.part(part))
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        let mut fields = JsonFields::begin(out);
        fields.text("time", &rfc3339_us(self.start));
        fields.text("client", &self.client.to_string());
        fields.text("method", self.method.as_str());
        fields.optional_text("host", self.host.as_ref().map(text).as_deref());
        fields.text("target", &self.shown_target());
        fields.text("protocol", &format!("{:?}", self.version));
        fields.number("status", Some(self.status));
        fields.optional_text("outcome", self.outcome());
        fields.optional_text("rule", self.rule());
        fields.optional_text("shadowed_by", self.shadowed_by());
        fields.milliseconds("retry_after_ms", self.retry_after_us());
        fields.texts("key", self.key());
        let address = self.upstream.as_ref().map(|upstream| upstream.server.address.to_string());
        fields.optional_text("upstream", address.as_deref());
        fields.number("upstream_us", self.upstream.as_ref().and_then(|upstream| upstream.time_us));
        fields.number("duration_us", Some(self.duration_us));
        fields.number("bytes_received", Some(self.bytes_received));
        fields.number("bytes_sent", Some(self.bytes_sent));
        fields.optional_text("request_id", self.request_id.as_ref().map(text).as_deref());
        fields.optional_text("user_agent", self.user_agent.as_ref().map(text).as_deref());
        fields.flag("complete", self.is_complete);
        fields.end();
    }
}

/// A header as text. Bytes that are not UTF-8 are replaced.
pub(super) fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

impl LogLine for AccessLogEntry {
    fn write(&self, out: &mut Vec<u8>) {
        match self.style.format {
            AccessLogFormat::Json => self.write_json(out),
            AccessLogFormat::Combined => combined::write(self, out),
        }
    }

    fn queued_bytes(&self) -> usize {
        let values = [&self.host, &self.referer, &self.user_agent, &self.request_id];
        let headers: usize = values.into_iter().flatten().map(HeaderValue::len).sum();
        let key = self.decision.iter().flat_map(|summary| &summary.key);
        let key: usize = key.map(|part| size_of_val(part) + part.kind.len() + part.value.len()).sum();
        let target = self.target.as_ref().map_or(0, |target| target.as_str().len());
        size_of_val(self) + headers + key + target
    }
}

/// The entry of a request that has not ended. It is sent to the log when this is dropped.
#[derive(Debug)]
pub(crate) struct PendingLogEntry {
    log: LineLog,
    entry: Option<Box<AccessLogEntry>>,
    trace: Arc<RequestTrace>,
}

impl PendingLogEntry {
    pub(super) fn new(log: LineLog, entry: AccessLogEntry, start: Instant) -> Self {
        Self { log, entry: Some(Box::new(entry)), trace: RequestTrace::new(start) }
    }

    /// For what is known where the request is forwarded.
    pub(crate) fn trace(&self) -> &Arc<RequestTrace> {
        &self.trace
    }

    pub(crate) fn entry_mut(&mut self) -> Option<&mut AccessLogEntry> {
        self.entry.as_deref_mut()
    }

    /// Records the decision about the request.
    pub(crate) fn record_decision(&mut self, summary: DecisionSummary) {
        if let Some(entry) = &mut self.entry {
            entry.decision = Some(summary);
        }
    }

    /// Ends the entry as refused by a limit, with a body of `bytes` bytes.
    pub(crate) fn end_as_refused(mut self, summary: DecisionSummary, bytes: usize) {
        self.record_decision(summary);
        let status = ErrorCode::RateLimitExceeded.status();
        if let Some(entry) = &mut self.entry {
            (entry.status, entry.bytes_sent, entry.is_complete) = (status.as_u16(), bytes as u64, true);
        }
    }

    /// Leaves the entry to the tunnel of the request.
    pub(crate) fn end_with_tunnel(mut self) {
        if let Some(mut entry) = self.entry.take() {
            entry.is_complete = true;
            self.trace.keep_for_tunnel(self.log.clone(), entry);
        }
    }
}

impl Drop for PendingLogEntry {
    fn drop(&mut self) {
        if let Some(mut entry) = self.entry.take() {
            self.trace.write_to(&mut entry);
            self.log.send(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use tollgate_limiter::{KeyDisplay, KeyText};

    fn line(format: AccessLogFormat, target: &str, user_agent: &[u8]) -> String {
        let style = LineStyle {
            format,
            keys: KeyText::new(KeyDisplay::Hashed, None),
            hidden: vec!["key".to_owned()],
        };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("a.example"));
        headers.insert(USER_AGENT, HeaderValue::from_bytes(user_agent).unwrap());
        let request = LoggedRequest {
            client: "::1".parse().unwrap(),
            method: &Method::GET,
            target: &target.parse().unwrap(),
            version: Version::HTTP_11,
            headers: &headers,
            request_id: Some(HeaderValue::from_static("id-1")),
        };
        let mut entry = AccessLogEntry::new(UnixTime::from_us(1_000_250), request, Arc::new(style));
        (entry.status, entry.bytes_sent, entry.duration_us, entry.is_complete) = (200, 5, 250, true);
        let mut out = Vec::new();
        entry.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_entry_is_a_line_of_json() {
        let expected = r#"{"time":"1970-01-01T00:00:01.000250Z","client":"::1","method":"GET","host":"a.example","target":"/a?b=%22&key=…","protocol":"HTTP/1.1","status":200,"outcome":null,"rule":null,"shadowed_by":null,"retry_after_ms":null,"key":[],"upstream":null,"upstream_us":null,"duration_us":250,"bytes_received":0,"bytes_sent":5,"request_id":"id-1","user_agent":"\"x\"","complete":true}"#;
        assert_eq!(line(AccessLogFormat::Json, "/a?b=%22&key=secret", b"\"x\""), expected);
    }

    #[test]
    fn an_entry_is_a_line_in_the_combined_format() {
        let expected = r#"::1 - - [01/Jan/1970:00:00:01 +0000] "GET /a?key=… HTTP/1.1" 200 5 "-" "\"x\"\x09\xef\xbf\xbd" host="a.example" outcome=- rule="-" shadowed_by="-" retry_after=- key="-" upstream="-" upstream_time=- time=0.000250 received=0 request_id="id-1" complete=true"#;
        let line = line(AccessLogFormat::Combined, "/a?key=secret", b"\"x\"\t\xff");
        // Only control characters are escaped.
        assert_eq!(line, expected.replace("\\xef\\xbf\\xbd", "\u{fffd}"));
    }

    #[test]
    fn all_forms_of_a_target_are_logged_alike() {
        for target in ["/a?b", "http://a.example/a?b", "http://ann:secret@a.example/a?b"] {
            let line = line(AccessLogFormat::Json, target, b"");
            assert!(line.contains(r#""host":"a.example","target":"/a?b","#), "{line}");
        }
    }
}
