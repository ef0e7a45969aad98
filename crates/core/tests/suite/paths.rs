//! The canonical form of paths.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::path::{PathError, PathReadings, canonical, endpoint};

#[test]
fn canonical_forms() {
    for (path, expected) in [
        ("/", "/"),
        ("//", "/"),
        ("///", "/"),
        ("/login", "/login"),
        ("//login", "/login"),
        ("/./login", "/login"),
        ("/x/../login", "/login"),
        ("/x//../login", "/login"),
        ("/%6cogin", "/login"),
        ("/%6Cogin", "/login"),
        ("/%2e/login", "/login"),
        ("/x/%2E%2e/login", "/login"),
        ("/x/.%2e/login", "/login"),
        ("/login/", "/login/"),
        ("/login//", "/login/"),
        ("/login/.", "/login/"),
        ("/login/x/..", "/login/"),
        ("/login/..", "/"),
        ("/login;x", "/login;x"),
        ("/;x/login", "/login"),
        ("/;/login", "/login"),
        ("/;x;y=z/;/login", "/login"),
        ("/login/;x", "/login/"),
        ("/login/;", "/login/"),
        ("/a;x/;y/b;z", "/a;x/b;z"),
        ("/a/;x/../b", "/b"),
        ("/a;x/../b", "/b"),
        ("/;jsessionid=1", "/"),
        ("/items%3abatch", "/items%3Abatch"),
        ("/items:batch", "/items:batch"),
        ("/Login", "/Login"),
        ("/.well-known/x", "/.well-known/x"),
        ("/...", "/..."),
        ("/..a/.b", "/..a/.b"),
        ("/a.b/c..", "/a.b/c.."),
        ("/a%20b", "/a%20b"),
        ("/a b", "/a%20b"),
        ("/a%2cb", "/a%2Cb"),
        ("/caf\u{e9}", "/caf%C3%A9"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/%256cogin", "/%256cogin"),
        ("/%25", "/%25"),
        ("/{x}|\"<>^`[]", "/%7Bx%7D%7C%22%3C%3E%5E%60%5B%5D"),
        ("/a:b@c!$&'()*+,;=", "/a:b@c!$&'()*+,;="),
        ("/%e2%82%ac/\u{20ac}", "/%E2%82%AC/%E2%82%AC"),
    ] {
        assert_eq!(canonical(path).as_deref(), Ok(expected), "{path}");
    }
}

#[test]
fn a_canonical_path_is_borrowed() {
    for path in ["/", "/v1/orders/7", "/.well-known/x", "/a%20b/c%2Bd", "/login/", "/x;y=z", "/a.b/c"] {
        assert!(matches!(canonical(path), Ok(Cow::Borrowed(same)) if same == path), "{path}");
    }
}

#[test]
fn paths_without_a_canonical_form_are_refused() {
    for (path, expected) in [
        ("", PathError::NoSlash),
        ("login", PathError::NoSlash),
        ("/a%2fb", PathError::Escape(b'/')),
        ("/a%2Fb", PathError::Escape(b'/')),
        ("/a%5cb", PathError::Escape(b'\\')),
        ("/a%00", PathError::Escape(0)),
        ("/a%0d%0a", PathError::Escape(b'\r')),
        ("/a%7f", PathError::Escape(127)),
        ("/a\\b", PathError::Character(b'\\')),
        ("/a\nb", PathError::Character(b'\n')),
        ("/a%", PathError::BrokenEscape),
        ("/a%2", PathError::BrokenEscape),
        ("/a%2/b", PathError::BrokenEscape),
        ("/a%zz", PathError::BrokenEscape),
        ("/a%+1", PathError::BrokenEscape),
        ("/..", PathError::AboveRoot),
        ("/a/../..", PathError::AboveRoot),
        ("/%2e%2e/a", PathError::AboveRoot),
        ("/a/..;x/b", PathError::DotWithParameters),
        ("/a/.;/b", PathError::DotWithParameters),
        ("/a/%2e%2e;/b", PathError::DotWithParameters),
        ("/;/../a", PathError::AboveRoot),
        ("/%3bx/login", PathError::Escape(b';')),
        ("/login%3Bx", PathError::Escape(b';')),
        ("/a/..%3b/b", PathError::Escape(b';')),
        ("/a%c0%afb", PathError::NotUtf8),
        ("/a%e0%80%afb", PathError::NotUtf8),
        ("/a%f0%80%80%af", PathError::NotUtf8),
        ("/caf%e9", PathError::NotUtf8),
        ("/%c3/%a9", PathError::NotUtf8),
        ("/\u{e9}%a9", PathError::NotUtf8),
        ("/%ed%a0%80", PathError::NotUtf8),
    ] {
        assert_eq!(canonical(path), Err(expected), "{path}");
    }
}

#[test]
fn endpoints_have_no_query_and_may_be_names() {
    for (text, expected) in [
        ("", ""),
        ("orders.create", "orders.create"),
        ("//login?x=//y", "/login"),
        ("/login#/../x", "/login"),
        ("/login?%zz", "/login"),
    ] {
        assert_eq!(endpoint(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn readings_of_paths() {
    for (path, whole, plain) in [
        ("/", "/", "/"),
        ("/login", "/login", "/login"),
        ("/login;x", "/login;x", "/login"),
        ("/a;x=1;y/b;z/", "/a;x=1;y/b;z/", "/a/b/"),
        ("/;x/login", "/login", "/login"),
        ("/r1/items%3Abatch", "/r1/items:batch", "/r1/items:batch"),
        ("/r1/items%3abatch;x", "/r1/items:batch;x", "/r1/items:batch"),
        ("/100%25", "/100%", "/100%"),
        ("/%256cogin", "/%6cogin", "/%6cogin"),
        ("/a%3Fb%23c", "/a?b#c", "/a?b#c"),
        ("/caf%c3%a9", "/caf\u{e9}", "/caf\u{e9}"),
        ("/a+b%2Bc", "/a+b+c", "/a+b+c"),
        // Names, and paths without a canonical form, are their own reading.
        ("orders%2e;x", "orders%2e;x", "orders%2e;x"),
        ("/a%2Fb;x", "/a%2Fb;x", "/a%2Fb;x"),
    ] {
        let readings = PathReadings::of(path);
        assert_eq!((&*readings.whole, readings.plain()), (whole, plain), "{path}");
    }
    let readings = PathReadings::of("/v1/orders/7");
    assert!(matches!(readings.whole, Cow::Borrowed(_)) && readings.plain.is_none());
}

/// For any input: no panic; the canonical form is its own canonical form, has no empty or dot segments, and decodes to the
/// same bytes as the path, segment by segment; and rules match exactly what it decodes to.
///
/// `BOLERO_RANDOM_ITERATIONS` is the number of inputs:
/// `BOLERO_RANDOM_ITERATIONS=50000000 cargo test --release -p tollgate-core --test suite laws`.
#[test]
fn laws() {
    let (formed, refused, with_parameters) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let note = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
    bolero::check!().with_iterations(50_000).with_max_len(24).with_type::<Vec<u8>>().for_each(|bytes| {
        // Few characters, so that rare ones meet, and whole escapes.
        const PIECES: [&str; 40] = [
            "/", "/", "/", "/", "/", "/a", "/B", "/a/", "/;", ";", ";x", ";x=y", ".", "..", "...", "a", "A",
            "~", " ", "@", ":", "\u{e9}", "%61", "%2e", "%2E", "%7e", "%3A", "%3a", "%40", "%25", "%256c",
            "%20", "%c3%a9", "%c3", "%A9", "%3b", "\\", "%", "2", "e",
        ];
        let pieces: String = bytes.iter().map(|byte| PIECES[usize::from(*byte) % PIECES.len()]).collect();
        for text in [Cow::Borrowed(pieces.as_str()), String::from_utf8_lossy(bytes)] {
            let _ = (endpoint(&text), PathReadings::of(&text));
            let path = format!("/{text}");
            let Ok(form) = canonical(&path) else {
                note(&refused);
                continue;
            };
            note(&formed);
            assert_eq!(canonical(&form).as_deref(), Ok(&*form), "{path:?}");
            assert!(form.starts_with('/') && form.is_ascii() && !form.contains("//"), "{path:?}: {form:?}");
            let is_gone = |segment: &str| {
                matches!(segment.split(';').next(), Some("." | "..")) || segment.starts_with(';')
            };
            assert!(!form.split('/').any(is_gone), "{path:?}: {form:?}");
            assert_eq!(resolved(&form), resolved(&path), "{path:?}: {form:?}");
            assert_eq!(form.ends_with('/'), ends_in_folder(&path), "{path:?}: {form:?}");
            let readings = PathReadings::of(&form);
            assert_eq!(readings.whole.as_bytes(), decoded(&form), "{path:?}: {form:?}");
            assert_eq!(readings, PathReadings::of(&path), "{path:?}");
            let plain: Vec<&str> = readings.whole.split('/').map(name).collect();
            assert_eq!(readings.plain(), plain.join("/"), "{path:?}");
            if readings.plain.is_some() {
                note(&with_parameters);
            }
        }
    });
    let met = [&formed, &refused, &with_parameters].map(|count| count.load(Ordering::Relaxed));
    assert!(met.iter().all(|count| *count > 2_000), "{met:?}");
}

/// A segment without its parameters.
fn name(segment: &str) -> &str {
    segment.find(';').map_or(segment, |end| &segment[..end])
}

/// The decoded segments that a simple server would serve.
fn resolved(path: &str) -> Vec<Vec<u8>> {
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for segment in path.split('/').map(decoded) {
        match segment.as_slice() {
            b"" | b"." | [b';', ..] => {}
            b".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    segments
}

fn ends_in_folder(path: &str) -> bool {
    let last = decoded(path.rsplit('/').next().unwrap_or_default());
    matches!(last.as_slice(), b"" | b"." | b".." | [b';', ..])
}

fn decoded(segment: &str) -> Vec<u8> {
    let bytes = segment.as_bytes();
    let (mut at, mut out) = (0, Vec::new());
    while at < bytes.len() {
        if bytes[at] == b'%' {
            out.push(u8::from_str_radix(&segment[at + 1..at + 3], 16).unwrap());
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}
