//! Forwarding headers are read from right to left.

use http::{HeaderMap, HeaderValue};
use std::net::IpAddr;
use tollgate_core::rules::pattern::network;
use tollgate_http::identity::{ClientIpOptions, ForwardedHeader, IpNetwork};

fn behind(header: ForwardedHeader) -> ClientIpOptions {
    let trusted = ["10.0.0.0/8", "fd00::/8"].map(|text| IpNetwork(network(text).unwrap()));
    ClientIpOptions { trusted: trusted.into(), header }
}

fn client(options: &ClientIpOptions, name: &'static str, peer: &str, lines: &[&[u8]]) -> IpAddr {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(name, HeaderValue::from_bytes(line).unwrap());
    }
    options.client(peer.parse().unwrap(), &headers)
}

#[test]
fn x_forwarded_for() {
    let options = behind(ForwardedHeader::XForwardedFor);
    for (peer, lines, expected) in [
        ("203.0.113.9", &["1.2.3.4"][..], "203.0.113.9"),
        ("::ffff:203.0.113.9", &["1.2.3.4"], "203.0.113.9"),
        ("10.0.0.1", &[], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["1.2.3.4, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9, 10.1.1.1"], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9", "10.1.1.1, fd00::7"], "203.0.113.9"),
        ("10.0.0.1", &["10.2.2.2", "10.1.1.1"], "10.2.2.2"),
        ("10.0.0.1", &["203.0.113.9, garbage, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.1", &["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.9,, "], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", &["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", &["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["::ffff:10.9.9.9"], "10.9.9.9"),
        ("10.0.0.1", &["fe80::1%eth0"], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.9:port"], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.09"], "10.0.0.1"),
    ] {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let found = client(&options, "x-forwarded-for", peer, &lines);
        assert_eq!(found.to_string(), expected, "{peer} {lines:?}");
    }
}

#[test]
fn forwarded() {
    let options = behind(ForwardedHeader::Forwarded);
    for (line, expected) in [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=\"203.0.113.9:80\"; proto=https ;by=10.0.0.1", "203.0.113.9"),
        ("proto=https;for=\"[2001:db8::1]\"", "2001:db8::1"),
        ("for=\"[2001:db8::1]:4711\"", "2001:db8::1"),
        ("for=\"[2001:db8::1]:_port\"", "2001:db8::1"),
        ("for=1.2.3.4, for=203.0.113.9, for=10.1.1.1", "203.0.113.9"),
        ("for=1.2.3.4, for=\"_hidden\", for=10.1.1.1", "10.1.1.1"),
        ("for=unknown", "10.0.0.1"),
        ("for=_SEVKISEK", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
        ("for=1.2.3.4;for=203.0.113.9", "10.0.0.1"),
        ("for=203.0.113.9;ext=\"a, for=1.2.3.4;b\"", "203.0.113.9"),
        // A forged part with an open quote.
        ("for=\"1.2.3.4, for=203.0.113.9", "203.0.113.9"),
        ("for=1.2.3.4;x=\", for=203.0.113.9;by=10.0.0.1", "203.0.113.9"),
        ("for=\"203.0.113.9", "10.0.0.1"),
        ("for=2001:db8::1", "2001:db8::1"),
        ("", "10.0.0.1"),
    ] {
        let found = client(&options, "forwarded", "10.0.0.1", &[line.as_bytes()]);
        assert_eq!(found.to_string(), expected, "{line}");
    }
}

/// What a trusted proxy appends decides, whatever comes before it.
#[test]
fn nothing_on_the_left_changes_the_right_end() {
    bolero::check!().with_type::<(Vec<u8>, bool)>().for_each(|(noise, own_line)| {
        const LETTERS: &[u8] = b"\",;=for[]:. 1a\\_\t";
        for letters in [false, true] {
            let noise: Vec<u8> = if letters {
                noise.iter().map(|byte| LETTERS[usize::from(*byte) % LETTERS.len()]).collect()
            } else {
                noise.iter().copied().filter(|byte| *byte >= 32 && *byte != 127 || *byte == 9).collect()
            };
            for (header, name, own) in [
                (ForwardedHeader::XForwardedFor, "x-forwarded-for", &b"203.0.113.9, 10.0.0.2"[..]),
                (ForwardedHeader::Forwarded, "forwarded", b"for=203.0.113.9;by=10.0.0.2, for=\"10.0.0.2\""),
            ] {
                let joined = [&noise[..], b",", own].concat();
                // A line with other bytes than ASCII cannot be parsed at all.
                let lines =
                    if *own_line || !noise.is_ascii() { vec![&noise[..], own] } else { vec![&joined[..]] };
                let found = client(&behind(header), name, "10.0.0.1", &lines);
                assert_eq!(found.to_string(), "203.0.113.9", "{lines:?}");
                // From an untrusted peer, nothing of it counts.
                assert_eq!(client(&behind(header), name, "192.0.2.1", &lines).to_string(), "192.0.2.1");
            }
        }
    });
}
