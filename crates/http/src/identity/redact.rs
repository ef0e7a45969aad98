//! Removes identities and passwords from request targets before they are logged.

use super::source::decoded;
use http::Uri;

/// Replaces a value.
const HIDDEN: &str = "…";

/// The target, with `…` for the value of each query parameter in `hidden` and for user name and password. Names are compared more
/// loosely than for identities: an upstream may ignore case, read lists, or split at `;`.
pub fn redacted<N: AsRef<str>>(target: &Uri, hidden: &[N]) -> String {
    let text = target.to_string();
    let (before, query) = match text.split_once('?') {
        Some((before, query)) if !hidden.is_empty() => (before, Some(query)),
        _ => (text.as_str(), None),
    };
    let mut out = String::with_capacity(text.len());
    match target.authority().map(|authority| authority.as_str()).and_then(|text| text.rsplit_once('@')) {
        Some((user, _)) => out.push_str(&before.replacen(user, HIDDEN, 1)),
        None => out.push_str(before),
    }
    if let Some(query) = query {
        out.push('?');
        for pair in query.split_inclusive(['&', ';']) {
            let (pair, separator) = match pair.strip_suffix(['&', ';']) {
                Some(inner) => (inner, &pair[inner.len()..]),
                None => (pair, ""),
            };
            match pair.split_once('=') {
                Some((key, value)) if !value.is_empty() && is_hidden(key, hidden) => {
                    out.extend([key, "=", HIDDEN]);
                }
                _ => out.push_str(pair),
            }
            out.push_str(separator);
        }
    }
    out
}

fn is_hidden<N: AsRef<str>>(key: &str, hidden: &[N]) -> bool {
    let Some(name) = decoded(key) else { return false };
    let name = name.split('[').next().unwrap_or_default().trim();
    hidden.iter().any(|hidden| hidden.as_ref().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_identities_are_hidden() {
        for (target, expected) in [
            ("/a", "/a"),
            ("/a?", "/a?"),
            ("/a?b=c", "/a?b=c"),
            ("/a?key=secret", "/a?key=…"),
            ("/a?b=c&key=secret&d=e", "/a?b=c&key=…&d=e"),
            ("/a?key=one&key=two", "/a?key=…&key=…"),
            ("/a?k%65y=secret", "/a?k%65y=…"),
            ("/a?KEY=secret&key[]=secret&key[0]=secret", "/a?KEY=…&key[]=…&key[0]=…"),
            ("/a?b=c;key=secret;d", "/a?b=c;key=…;d"),
            ("/a?key", "/a?key"),
            ("/a?key=", "/a?key="),
            ("/a?key=a=b?c", "/a?key=…"),
            ("/a?keys=c&akey=d&b=key", "/a?keys=c&akey=d&b=key"),
            ("/key=x?token=t", "/key=x?token=…"),
            ("/a?%zz=c&key=x", "/a?%zz=c&key=…"),
            ("http://host:80/a?key=x", "http://host:80/a?key=…"),
            ("http://ann:secret@host/a?key=x", "http://…@host/a?key=…"),
        ] {
            assert_eq!(redacted(&target.parse().unwrap(), &["key", "token"]), expected, "{target}");
        }
        let target = "http://ann:secret@host/a?key=x".parse().unwrap();
        assert_eq!(redacted::<&str>(&target, &[]), "http://…@host/a?key=x");
    }
}
