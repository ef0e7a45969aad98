//! Paths come in one form, or not at all.

use std::borrow::Cow;
use tollgate_core::path::{PathFault, canonical, endpoint};

#[test]
fn forms() {
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
        ("/%e9", "/%E9"),
    ] {
        assert_eq!(canonical(path).as_deref(), Ok(expected), "{path}");
    }
}

#[test]
fn what_has_that_form_is_borrowed() {
    for path in ["/", "/v1/orders/7", "/.well-known/x", "/a%20b/c%2Bd", "/login/", "/x;y=z", "/a.b/c"] {
        assert!(matches!(canonical(path), Ok(Cow::Borrowed(same)) if same == path), "{path}");
    }
}

#[test]
fn refused() {
    for (path, expected) in [
        ("", PathFault::NoSlash),
        ("login", PathFault::NoSlash),
        ("/a%2fb", PathFault::Escape(b'/')),
        ("/a%2Fb", PathFault::Escape(b'/')),
        ("/a%5cb", PathFault::Escape(b'\\')),
        ("/a%00", PathFault::Escape(0)),
        ("/a%0d%0a", PathFault::Escape(b'\r')),
        ("/a%7f", PathFault::Escape(127)),
        ("/a\\b", PathFault::Character(b'\\')),
        ("/a\nb", PathFault::Character(b'\n')),
        ("/a%", PathFault::BrokenEscape),
        ("/a%2", PathFault::BrokenEscape),
        ("/a%2/b", PathFault::BrokenEscape),
        ("/a%zz", PathFault::BrokenEscape),
        ("/a%+1", PathFault::BrokenEscape),
        ("/..", PathFault::AboveRoot),
        ("/a/../..", PathFault::AboveRoot),
        ("/%2e%2e/a", PathFault::AboveRoot),
        ("/a/..;x/b", PathFault::DotWithParameters),
        ("/a/.;/b", PathFault::DotWithParameters),
        ("/a/%2e%2e;/b", PathFault::DotWithParameters),
        ("/a%c0%afb", PathFault::Escape(0xc0)),
        ("/a%e0%80%afb", PathFault::Escape(0x80)),
        ("/a%f0%80%80%af", PathFault::Escape(0x80)),
    ] {
        assert_eq!(canonical(path), Err(expected), "{path}");
    }
}

#[test]
fn endpoints_lose_their_query_and_may_be_plain_names() {
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

/// The form of a form is the form, it holds nothing that was to be removed, and it decodes to the same
/// bytes as the path did, segment by segment.
#[test]
fn laws() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        // Few characters, so that the rare ones meet.
        const LETTERS: &[u8] = b"/./%2e5cf0;aA\\\xc3\xa9~ @";
        let text: Vec<u8> = bytes.iter().map(|byte| LETTERS[usize::from(*byte) % LETTERS.len()]).collect();
        for text in [String::from_utf8_lossy(&text), String::from_utf8_lossy(bytes)] {
            let path = format!("/{text}");
            let Ok(form) = canonical(&path) else { continue };
            assert_eq!(canonical(&form).as_deref(), Ok(&*form), "{path:?}");
            assert!(form.starts_with('/') && form.is_ascii() && !form.contains("//"), "{path:?}: {form:?}");
            assert!(form.split('/').all(|segment| segment != "." && segment != ".."), "{path:?}: {form:?}");
            assert_eq!(resolved(&form), resolved(&path), "{path:?}: {form:?}");
            assert_eq!(form.ends_with('/'), ends_in_folder(&path), "{path:?}: {form:?}");
        }
    });
}

/// The decoded segments that a simple-minded server would serve.
fn resolved(path: &str) -> Vec<Vec<u8>> {
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for segment in path.split('/').map(decoded) {
        match segment.as_slice() {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    segments
}

fn ends_in_folder(path: &str) -> bool {
    let last = decoded(path.rsplit('/').next().unwrap_or_default());
    matches!(last.as_slice(), b"" | b"." | b"..")
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
