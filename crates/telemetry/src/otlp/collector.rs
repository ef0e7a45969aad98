//! The connection to an OTLP collector.

use super::OtlpSettings;
use std::time::Duration;
use thiserror::Error;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// Why an exporter cannot be built from its settings.
#[derive(Debug, Error)]
pub enum OtlpSettingsError {
    /// The endpoint is not a URL that OTLP over gRPC can use.
    #[error("the OTLP endpoint {0}")]
    Endpoint(&'static str),
    /// The TLS settings are not usable.
    #[error("TLS for the OTLP endpoint cannot be set up: {0}")]
    Tls(String),
    /// A header has a name that gRPC does not allow.
    #[error("the OTLP header '{0}' has a name that gRPC does not allow for text")]
    HeaderName(String),
    /// A header has a value that gRPC does not allow. It is not shown, because it may be a credential.
    #[error("the value of the OTLP header '{0}' has characters that are not printable ASCII")]
    HeaderValue(String),
    /// A time is zero.
    #[error("the OTLP {0} must be longer than zero")]
    Time(&'static str),
}

/// Where exports are sent.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    endpoint: Endpoint,
    headers: MetadataMap,
    timeout: Duration,
}

impl Collector {
    pub(super) fn new(settings: &OtlpSettings) -> Result<Self, OtlpSettingsError> {
        for (name, time) in [("interval", settings.interval), ("timeout", settings.timeout)] {
            if time.is_zero() {
                return Err(OtlpSettingsError::Time(name));
            }
        }
        Ok(Self {
            endpoint: endpoint(settings)?,
            headers: headers(&settings.headers)?,
            timeout: settings.timeout,
        })
    }

    /// A connection that is opened by its first request, and again after it breaks.
    pub(super) fn connect(&self) -> Channel {
        self.endpoint.connect_lazy()
    }

    /// The time that an export may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The message as a request.
    pub(super) fn request<M>(&self, message: M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request.set_timeout(self.timeout);
        request
    }
}

fn endpoint(settings: &OtlpSettings) -> Result<Endpoint, OtlpSettingsError> {
    let endpoint = Endpoint::from_shared(settings.endpoint.clone());
    let endpoint = endpoint.map_err(|_| OtlpSettingsError::Endpoint("is not a URL"))?;
    let uri = endpoint.uri();
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(OtlpSettingsError::Endpoint("must start with http:// or https://")),
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(OtlpSettingsError::Endpoint("must not contain a password; use a header instead"));
    }
    if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
        return Err(OtlpSettingsError::Endpoint("must not have a path: OTLP over gRPC has none"));
    }
    let endpoint = endpoint
        .connect_timeout(settings.timeout)
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
    let endpoint = endpoint.map_err(|_| OtlpSettingsError::Endpoint("is not a URL"))?;
    if !is_tls {
        return Ok(endpoint);
    }
    let tls = match &settings.ca_certificates {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    endpoint.tls_config(tls).map_err(|error| OtlpSettingsError::Tls(error_chain(&error)))
}

fn headers(headers: &[(String, String)]) -> Result<MetadataMap, OtlpSettingsError> {
    let mut map = MetadataMap::new();
    for (name, value) in headers {
        let key = AsciiMetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes());
        let key = key.map_err(|_| OtlpSettingsError::HeaderName(name.clone()))?;
        let mut value = AsciiMetadataValue::try_from(value.as_str())
            .map_err(|_| OtlpSettingsError::HeaderValue(name.clone()))?;
        value.set_sensitive(true);
        map.append(key, value);
    }
    Ok(map)
}

/// The message of an error with those of its causes, which tonic leaves out.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(settings: OtlpSettings) -> Option<String> {
        Collector::new(&settings).err().map(|error| error.to_string())
    }

    #[test]
    fn endpoints_that_cannot_work_are_refused() {
        for (endpoint, error) in [
            ("http://127.0.0.1:4317", None),
            ("http://collector:4317/", None),
            ("https://otlp.example.com", None),
            ("", Some("the OTLP endpoint is not a URL")),
            ("collector:4317", Some("the OTLP endpoint must start with http:// or https://")),
            ("grpc://collector:4317", Some("the OTLP endpoint must start with http:// or https://")),
            (
                "http://user:secret@collector",
                Some("the OTLP endpoint must not contain a password; use a header instead"),
            ),
            (
                "http://collector:4318/v1/metrics",
                Some("the OTLP endpoint must not have a path: OTLP over gRPC has none"),
            ),
        ] {
            let settings = OtlpSettings {
                endpoint: endpoint.to_owned(),
                // Machines without any certificates are not what is tested.
                ca_certificates: Some(String::new()),
                ..OtlpSettings::default()
            };
            assert_eq!(error_of(settings).as_deref(), error, "{endpoint}");
        }
    }

    #[test]
    fn headers_that_cannot_be_sent_are_refused_without_their_value() {
        for (name, value, error) in [
            ("Authorization", "Bearer secret", None),
            ("x bad", "secret", Some("the OTLP header 'x bad' has a name that gRPC does not allow for text")),
            ("x-bin", "secret", Some("the OTLP header 'x-bin' has a name that gRPC does not allow for text")),
            (
                "x-key",
                "secret\n",
                Some("the value of the OTLP header 'x-key' has characters that are not printable ASCII"),
            ),
        ] {
            let settings = OtlpSettings {
                headers: vec![(name.to_owned(), value.to_owned())],
                ..OtlpSettings::default()
            };
            assert!(!format!("{settings:?}").contains("secret"));
            if let Ok(collector) = Collector::new(&settings) {
                assert!(!format!("{collector:?}").contains("secret"));
            }
            assert_eq!(error_of(settings).as_deref(), error, "{name}");
        }
    }
}
