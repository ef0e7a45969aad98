//! Request ids: taken from the client's `X-Request-Id`, or generated.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header of request ids, in requests and responses.
pub(crate) static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken from a client.
const LONGEST: usize = 128;

/// The id that the client sent, if it is valid: one header of up to 128 letters, digits, and `-_.~:+/=`.
pub(crate) fn of_client(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut ids = headers.get_all(&X_REQUEST_ID).iter();
    let (Some(id), None) = (ids.next(), ids.next()) else { return None };
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~:+/=".contains(byte);
    let is_valid = (1..=LONGEST).contains(&id.len()) && id.as_bytes().iter().all(is_plain);
    is_valid.then_some(id)
}

/// Gives a request the id that the client sent, if it is valid, or a new one.
pub(crate) fn assign(headers: &mut HeaderMap) -> HeaderValue {
    if let Some(id) = of_client(headers) {
        return id.clone();
    }
    let id = format!("{:032x}", fastrand::u128(..));
    let id = HeaderValue::try_from(id).expect("hexadecimal digits are valid in a header");
    headers.insert(&X_REQUEST_ID, id.clone());
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_ids_are_replaced() {
        let long = "x".repeat(LONGEST);
        let too_long = "x".repeat(LONGEST + 1);
        for (sent, is_kept) in [
            (&["7f3c-a.b_c~d:e+f/g="][..], true),
            (&[&long], true),
            (&[&too_long], false),
            (&[""], false),
            (&["a b"], false),
            (&["a\"b"], false),
            (&["ü"], false),
            (&["one", "two"], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for id in sent {
                headers.append(&X_REQUEST_ID, HeaderValue::from_bytes(id.as_bytes()).unwrap());
            }
            let id = assign(&mut headers);
            assert_eq!(headers.get_all(&X_REQUEST_ID).iter().collect::<Vec<_>>(), [&id]);
            assert_eq!(sent.first() == id.to_str().ok().as_ref(), is_kept, "{sent:?}");
            assert!(is_kept || id.len() == 32);
        }
    }
}
