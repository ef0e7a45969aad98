//! Decodes commands of the Redis protocol from bytes: arrays of bulk strings, and inline commands.
//!
//! Nothing is copied and nothing is allocated for what a client only announces: a command is decoded when all of it has
//! arrived, and each length is bounded before it is waited for.

use smallvec::SmallVec;
use std::fmt;

/// The most arguments of a command, its name included.
pub const MOST_ARGUMENTS: usize = 64;
/// The longest argument, in bytes; also the longest inline command.
pub const LONGEST_ARGUMENT: usize = 16 * 1024;
/// The longest command, in bytes.
pub const LONGEST_COMMAND: usize = 64 * 1024;
/// The most digits of a length, with its sign.
const LONGEST_NUMBER: usize = 20;

/// The arguments of a command, its name first. None for an empty command, which has no reply.
pub type Arguments<'b> = SmallVec<[&'b [u8]; 8]>;

/// What the beginning of some bytes is.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<'b> {
    /// A command of this many bytes.
    Command(Arguments<'b>, usize),
    /// A command that has not arrived as a whole.
    Incomplete,
}

/// Why bytes are not a command. The connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The number of arguments is no number, or out of range.
    ArgumentCount,
    /// The length of an argument is no number, or out of range.
    ArgumentLength,
    /// An argument does not begin with `$`.
    NotBulk(u8),
    /// An argument does not end where its length says.
    NotTerminated,
    /// The command is too long.
    TooLong,
    /// An inline command is too long.
    InlineTooLong,
    /// A quote of an inline command is not closed, or followed by other characters.
    Quotes,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ArgumentCount => f.write_str("invalid multibulk length"),
            Self::ArgumentLength => f.write_str("invalid bulk length"),
            Self::NotBulk(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::NotTerminated => f.write_str("a bulk string does not end with CRLF"),
            Self::TooLong => f.write_str("the command is too long"),
            Self::InlineTooLong => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Decodes the first command of `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Decoded<'_>, FrameError> {
    match bytes.first() {
        None => Ok(Decoded::Incomplete),
        Some(b'*') => decode_array(bytes),
        Some(_) => decode_inline(bytes),
    }
}

fn decode_array(bytes: &[u8]) -> Result<Decoded<'_>, FrameError> {
    let Some((count, mut at)) = read_number(bytes, 1, FrameError::ArgumentCount)? else {
        return Ok(Decoded::Incomplete);
    };
    // As Redis does: an array of no arguments, also a null one, is skipped.
    let count = usize::try_from(count).unwrap_or(0);
    if count > MOST_ARGUMENTS {
        return Err(FrameError::ArgumentCount);
    }
    let mut arguments = Arguments::new();
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(Decoded::Incomplete),
            Some(b'$') => {}
            Some(other) => return Err(FrameError::NotBulk(*other)),
        }
        let Some((length, start)) = read_number(bytes, at + 1, FrameError::ArgumentLength)? else {
            return Ok(Decoded::Incomplete);
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST_ARGUMENT);
        let length = length.ok_or(FrameError::ArgumentLength)?;
        let end = start + length;
        if end + 2 > LONGEST_COMMAND {
            return Err(FrameError::TooLong);
        }
        match bytes.get(start..end + 2) {
            None => return Ok(Decoded::Incomplete),
            Some(argument) => match argument.strip_suffix(b"\r\n") {
                Some(argument) => arguments.push(argument),
                None => return Err(FrameError::NotTerminated),
            },
        }
        at = end + 2;
    }
    Ok(Decoded::Command(arguments, at))
}

/// The number at `start` and the position after its CRLF; none if that has not arrived.
fn read_number(bytes: &[u8], start: usize, invalid: FrameError) -> Result<Option<(i64, usize)>, FrameError> {
    let mut value: i64 = 0;
    let mut at = start;
    let is_negative = bytes.get(at) == Some(&b'-');
    at += usize::from(is_negative);
    let first = at;
    loop {
        if at - start == LONGEST_NUMBER {
            return Err(invalid);
        }
        match bytes.get(at) {
            None => return Ok(None),
            Some(digit @ b'0'..=b'9') => {
                let grown =
                    value.checked_mul(10).and_then(|value| value.checked_add(i64::from(digit - b'0')));
                value = grown.ok_or(invalid)?;
                at += 1;
            }
            Some(b'\r') if at > first => break,
            Some(_) => return Err(invalid),
        }
    }
    match bytes.get(at + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((if is_negative { -value } else { value }, at + 2))),
        Some(_) => Err(invalid),
    }
}

/// A line of words, as a person types it. Words may be in quotes, but escapes are not supported: nothing is copied.
fn decode_inline(bytes: &[u8]) -> Result<Decoded<'_>, FrameError> {
    let searched = &bytes[..bytes.len().min(LONGEST_ARGUMENT)];
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() >= LONGEST_ARGUMENT {
            Err(FrameError::InlineTooLong)
        } else {
            Ok(Decoded::Incomplete)
        };
    };
    let mut line = &bytes[..end];
    line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut arguments = Arguments::new();
    loop {
        line = line.trim_ascii_start();
        let Some(first) = line.first() else { break };
        if arguments.len() == MOST_ARGUMENTS {
            return Err(FrameError::ArgumentCount);
        }
        if matches!(first, b'"' | b'\'') {
            let close = line[1..].iter().position(|byte| byte == first).ok_or(FrameError::Quotes)? + 1;
            arguments.push(&line[1..close]);
            line = &line[close + 1..];
            if line.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return Err(FrameError::Quotes);
            }
        } else {
            let length = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
            arguments.push(&line[..length]);
            line = &line[length..];
        }
    }
    Ok(Decoded::Command(arguments, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::collections::HashSet;
    use std::mem::{Discriminant, discriminant};
    use std::sync::atomic::{AtomicU64, Ordering};

    fn command(bytes: &[u8]) -> Result<Decoded<'_>, FrameError> {
        decode(bytes)
    }

    fn words<'b>(words: &[&'b str], length: usize) -> Result<Decoded<'b>, FrameError> {
        Ok(Decoded::Command(words.iter().map(|word| word.as_bytes()).collect(), length))
    }

    #[test]
    fn commands_are_decoded_from_their_whole_bytes_only() {
        let cases: [(&[u8], &[&str]); 9] = [
            (b"*1\r\n$4\r\nPING\r\n", &["PING"]),
            (b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &["ECHO", ""]),
            (b"*2\r\n$4\r\nECHO\r\n$4\r\na\r\nb\r\n", &["ECHO", "a\r\nb"]),
            (b"*0\r\n", &[]),
            (b"*-1\r\n", &[]),
            (b"PING\r\n", &["PING"]),
            (b"  ECHO  'a b'\t\"c'd\" \n", &["ECHO", "a b", "c'd"]),
            (b"\r\n", &[]),
            (b"ECHO ''\r\n", &["ECHO", ""]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(command(bytes), words(expected, bytes.len()), "{}", bytes.escape_ascii());
            for end in 0..bytes.len() {
                assert_eq!(
                    command(&bytes[..end]),
                    Ok(Decoded::Incomplete),
                    "{}",
                    bytes[..end].escape_ascii()
                );
            }
            let doubled = [bytes, bytes].concat();
            assert_eq!(command(&doubled), words(expected, bytes.len()), "the first of several");
        }
    }

    #[test]
    fn malformed_frames_are_errors() {
        let long = [b"*1\r\n$16385\r\n".as_slice()].concat();
        let cases: [(&[u8], FrameError); 14] = [
            (b"*x\r\n", FrameError::ArgumentCount),
            (b"*\r\n", FrameError::ArgumentCount),
            (b"*-\r\n", FrameError::ArgumentCount),
            (b"*1 \r\n", FrameError::ArgumentCount),
            (b"*1\rx", FrameError::ArgumentCount),
            (b"*65\r\n", FrameError::ArgumentCount),
            (b"*99999999999999999999\r\n", FrameError::ArgumentCount),
            (b"*1\r\n+PING\r\n", FrameError::NotBulk(b'+')),
            (b"*1\r\n$-1\r\n", FrameError::ArgumentLength),
            (b"*1\r\n$2x\r\n", FrameError::ArgumentLength),
            (&long, FrameError::ArgumentLength),
            (b"*1\r\n$4\r\nPING!!", FrameError::NotTerminated),
            (b"ECHO 'a\r\n", FrameError::Quotes),
            (b"ECHO 'a'b\r\n", FrameError::Quotes),
        ];
        for (bytes, error) in cases {
            assert_eq!(command(bytes), Err(error), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_a_client_can_announce_is_bounded() {
        let mut bytes = b"*64\r\n".to_vec();
        let argument = [b"$16384\r\n".as_slice(), &[b'x'; 16384], b"\r\n"].concat();
        for _ in 0..3 {
            bytes.extend(&argument);
            assert_eq!(command(&bytes), Ok(Decoded::Incomplete));
        }
        bytes.extend(b"$16384\r\n");
        assert_eq!(command(&bytes), Err(FrameError::TooLong), "before the argument has arrived");
        assert_eq!(command(&[b'x'; LONGEST_ARGUMENT]), Err(FrameError::InlineTooLong));
        assert_eq!(command(&[b'x'; LONGEST_ARGUMENT - 1]), Ok(Decoded::Incomplete));
        let many = [vec![b"x ".as_slice(); 65].concat(), b"\n".to_vec()].concat();
        assert_eq!(command(&many), Err(FrameError::ArgumentCount));
    }

    /// Parts of commands: random bytes alone are hardly ever a command.
    const PARTS: [&[u8]; 27] = [
        b"*",
        b"$",
        b"0",
        b"1",
        b"2",
        b"3",
        b"-",
        b"64",
        b"16385",
        b"9223372036854775808",
        b"\r\n",
        b"\r",
        b"\n",
        b" ",
        b"'",
        b"\"",
        b"x",
        b"PING",
        b"*1\r\n",
        b"*3\r\n",
        b"$1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\nPING\r\n",
        b"*2\r\n$4\r\nECHO\r\n$1\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
        b"*4\r\n$2\r\n\r\n\r\n$1\r\n*\r\n",
    ];

    /// What the inputs were, so that the target cannot pass without reaching the decoder.
    #[derive(Debug, Default)]
    struct DecodeCoverage {
        arrays: AtomicU64,
        inline: AtomicU64,
        empty: AtomicU64,
        incomplete: AtomicU64,
        errors: Mutex<HashSet<Discriminant<FrameError>>>,
    }

    /// The parser of the `redis` crate, as another opinion on arrays.
    fn parsed(bytes: &[u8]) -> Vec<Vec<u8>> {
        match redis::parse_redis_value(bytes) {
            Ok(redis::Value::Array(values)) => values
                .into_iter()
                .map(|value| match value {
                    redis::Value::BulkString(bytes) => bytes,
                    other => panic!("{other:?} in {}", bytes.escape_ascii()),
                })
                .collect(),
            other => panic!("{other:?} for {}", bytes.escape_ascii()),
        }
    }

    /// Any bytes are decoded without a panic. A command that is decoded lies within them, ends where the next begins, does not
    /// depend on what follows, and is complete no earlier; an error does not depend on what follows either. Arrays are those
    /// that another parser finds.
    #[test]
    fn fuzz_decode() {
        let coverage = DecodeCoverage::default();
        let coverage = std::panic::AssertUnwindSafe(&coverage);
        let input = bolero::check!().with_iterations(20_000).with_max_len(128).with_type::<Vec<u8>>();
        input.for_each(|choices| {
            let bytes: Vec<u8> = choices
                .iter()
                .flat_map(|choice| match PARTS.get(usize::from(*choice) % 32) {
                    Some(part) => part.to_vec(),
                    None => vec![*choice],
                })
                .collect();
            check_decoded(&bytes, &coverage);
        });
        println!("{coverage:?}");
        let DecodeCoverage { arrays, inline, empty, incomplete, errors } = *coverage;
        let counts = [arrays, inline, empty, incomplete].map(|count| count.load(Ordering::Relaxed));
        assert!(counts.iter().all(|count| *count > 500), "{coverage:?}");
        // Commands and lines that are too long have a test of their own.
        assert_eq!(errors.lock().len(), 5, "{coverage:?}");
    }

    fn check_decoded(bytes: &[u8], coverage: &DecodeCoverage) {
        let count = |counter: &AtomicU64| _ = counter.fetch_add(1, Ordering::Relaxed);
        let mut rest = bytes;
        loop {
            match decode(rest) {
                Ok(Decoded::Command(arguments, length)) => {
                    assert!(length > 0 && length <= rest.len());
                    assert!(arguments.len() <= MOST_ARGUMENTS);
                    let (command, is_array) = (&rest[..length], rest[0] == b'*');
                    assert_eq!(decode(&command[..length - 1]), Ok(Decoded::Incomplete));
                    match (arguments.is_empty(), is_array) {
                        (true, _) => count(&coverage.empty),
                        (false, true) => {
                            assert_eq!(parsed(command), arguments.as_slice());
                            count(&coverage.arrays);
                        }
                        (false, false) => count(&coverage.inline),
                    }
                    assert_eq!(decode(command), Ok(Decoded::Command(arguments, length)));
                    rest = &rest[length..];
                }
                Ok(Decoded::Incomplete) => return count(&coverage.incomplete),
                Err(error) => {
                    assert_eq!(decode(&[rest, b"\r\n*1\r\n"].concat()), Err(error));
                    coverage.errors.lock().insert(discriminant(&error));
                    return;
                }
            }
        }
    }

    /// Whatever arguments are encoded as a client encodes them are decoded again.
    #[test]
    fn fuzz_round_trip() {
        let input = bolero::check!().with_iterations(5_000).with_max_len(512).with_type::<Vec<Vec<u8>>>();
        input.for_each(|arguments| {
            let arguments = &arguments[..arguments.len().min(MOST_ARGUMENTS)];
            let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
            for argument in arguments {
                bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
                bytes.extend(argument);
                bytes.extend(b"\r\n");
            }
            let expected = arguments.iter().map(Vec::as_slice).collect();
            assert_eq!(decode(&bytes), Ok(Decoded::Command(expected, bytes.len())));
        });
    }
}
