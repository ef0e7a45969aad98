//! Builds streams of requests by choices.

const LINES: [&str; 8] = [
    "POST /a HTTP/1.1",
    "GET /b HTTP/1.1",
    "POST /c?d=e HTTP/1.1",
    "PUT /f HTTP/1.0",
    "GET http://g/h HTTP/1.1",
    "GET  /two HTTP/1.1",
    "get /small HTTP/1.1",
    "",
];
/// `#` is the length of the body that follows.
const HEADERS: [&str; 40] = [
    "Content-Length: #",
    "Content-Length: #",
    "content-length:#",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked",
    "transfer-encoding:  CHUNKED ",
    "Host: a",
    "Cookie: a=b",
    "TE: trailers",
    "Content-Type: text/plain",
    "X: y",
    "X:",
    "Content-Length: 0",
    "Content-Length: 00#",
    "Content-Length: +#",
    "Content-Length: #, #",
    "Content-Length: 0x#",
    "Content-Length: -1",
    "Content-Length:",
    "Content-Length: # #",
    "Content-Length : #",
    "Content_Length: #",
    "Content-Length: 18446744073709551616",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: gzip",
    "Transfer-Encoding\t: chunked",
    "Transfer_Encoding: chunked",
    "Transfer-Encoding:",
    "Transfer-Encoding: \u{b}chunked",
    " Content-Length: #",
    "\tchunked",
    "X: y\rContent-Length: #",
    "X: y\nContent-Length: #",
    "no colon",
    ": no name",
    "Connection: close",
    "Expect: 100-continue",
    "Upgrade: h2c",
];
const BODIES: [&str; 18] = [
    "",
    "a",
    "abc",
    "\r\n\r\n",
    "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n",
    "0\r\n\r\n",
    "0\r\n\r\n",
    "3\r\nabc\r\n0\r\n\r\n",
    "3\r\nabc\r\n0\r\n\r\n",
    "1;x=y\r\na\r\nA\r\n0123456789\r\n000\r\nX: y\r\n\r\n",
    "3\r\nabcd\r\n0\r\n\r\n",
    "3\nabc\n0\n\n",
    "0x3\r\nabc\r\n0\r\n\r\n",
    "+3\r\nabc\r\n0\r\n\r\n",
    "3 \r\nabc\r\n0\r\n\r\n",
    "2\r\n\r\n\r\n0\r\nContent-Length: 3\r\n\r\n",
    "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "\r\nabc\r\n0\r\n\r\n",
];

/// Builds a stream.
pub(super) fn from(choices: &[u8]) -> Vec<u8> {
    let mut choices = choices.iter().copied();
    let mut stream = Vec::new();
    while let Some(first) = choices.next() {
        let mut pick = |most: usize| usize::from(choices.next().unwrap_or(0)) % most;
        // Half of the requests are valid, so that something can be hidden behind them.
        if first % 2 == 0 {
            stream.extend_from_slice(&valid(pick(3)));
            continue;
        }
        let line = LINES[[0, 0, 1, 2, 3, 4, 5, 6, 7][pick(9)]];
        let headers: Vec<usize> = (0..pick(4)).map(|_| pick(HEADERS.len())).collect();
        let body = BODIES[pick(BODIES.len())];
        let mut message = format!("{line}\r\nHost: a\r\n").into_bytes();
        for header in headers {
            message.extend_from_slice(HEADERS[header].replace('#', &body.len().to_string()).as_bytes());
            message.extend_from_slice(if pick(32) == 31 { b"\n" } else { b"\r\n" });
        }
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(body.as_bytes());
        // Some are damaged at one position.
        if first % 8 == 1 {
            let place = (pick(256) << 8 | pick(256)) % message.len();
            match pick(3) {
                0 => message[place] = pick(256) as u8,
                1 => drop(message.remove(place)),
                _ => message.insert(place, b"\r\n :0,;\t"[pick(8)]),
            }
        }
        stream.extend_from_slice(&message);
    }
    stream
}

fn valid(kind: usize) -> Vec<u8> {
    let text: &[u8] = match kind {
        0 => b"GET /honest HTTP/1.1\r\nHost: a\r\n\r\n",
        1 => b"POST /honest HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\na\nb\r\n",
        _ => b"POST /honest HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\n\r\n0\r\n\r\n",
    };
    text.to_vec()
}
