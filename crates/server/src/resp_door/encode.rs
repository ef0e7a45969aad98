//! Encodes replies in the Redis protocol, version 2 or 3.

/// The version of the protocol that a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// The one that every client begins with.
    #[default]
    Resp2,
    /// Chosen by `HELLO 3`: it has maps and a null of its own.
    Resp3,
}

impl RespVersion {
    /// Its number in `HELLO`.
    pub fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Appends `+text`.
pub fn simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends an error. Its first word is its code, such as `ERR`.
pub fn error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    // A line break would end the reply.
    out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

/// Appends an integer.
pub fn integer(out: &mut Vec<u8>, value: i64) {
    header(out, b':', value);
}

/// Appends a bulk string.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends no value.
pub fn null(out: &mut Vec<u8>, version: RespVersion) {
    out.extend_from_slice(match version {
        RespVersion::Resp2 => b"$-1\r\n",
        RespVersion::Resp3 => b"_\r\n",
    });
}

/// Begins an array of this many elements.
pub fn array(out: &mut Vec<u8>, length: usize) {
    header(out, b'*', length as i64);
}

/// Begins a map of this many pairs, which is an array before version 3.
pub fn map(out: &mut Vec<u8>, pairs: usize, version: RespVersion) {
    match version {
        RespVersion::Resp2 => array(out, 2 * pairs),
        RespVersion::Resp3 => header(out, b'%', pairs as i64),
    }
}

fn header(out: &mut Vec<u8>, kind: u8, value: i64) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies_are_encoded() {
        use RespVersion::{Resp2, Resp3};
        assert_eq!(encoded(|out| simple(out, "OK")), "+OK\r\n");
        assert_eq!(encoded(|out| error(out, "ERR a\r\n+OK")), "-ERR a  +OK\r\n", "an error is one line");
        assert_eq!(encoded(|out| integer(out, i64::MIN)), ":-9223372036854775808\r\n");
        assert_eq!(encoded(|out| bulk(out, b"a\r\nb")), "$4\r\na\r\nb\r\n");
        assert_eq!(encoded(|out| null(out, Resp2)) + &encoded(|out| null(out, Resp3)), "$-1\r\n_\r\n");
        assert_eq!(encoded(|out| map(out, 2, Resp2)) + &encoded(|out| map(out, 2, Resp3)), "*4\r\n%2\r\n");
    }
}
