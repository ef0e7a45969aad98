//! A gRPC client that writes and counts HTTP/2 frames, and decodes nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Of settings and pings.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_HEAD: usize = 9;

pub struct FrameClient {
    stream: TcpStream,
    next_stream: u32,
    headers: Vec<u8>,
    out: Vec<u8>,
    buffer: Vec<u8>,
    /// What of the buffer is filled.
    filled: usize,
}

impl FrameClient {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a connected socket takes options");
        let mut client = Self {
            stream,
            next_stream: 1,
            headers: header_block(address),
            out: PREFACE.to_vec(),
            buffer: vec![0; 1 << 17],
            filled: 0,
        };
        client.frame(SETTINGS, 0, 0, &[]);
        // As much as the whole connection will receive.
        let window = (u32::MAX >> 1) - 65_535;
        client.frame(WINDOW_UPDATE, 0, 0, &window.to_be_bytes());
        client
    }

    /// Sends a call for each of the messages.
    pub fn send<'m>(&mut self, messages: impl Iterator<Item = &'m Vec<u8>>) {
        for message in messages {
            let stream = self.next_stream;
            self.next_stream += 2;
            let headers = std::mem::take(&mut self.headers);
            self.frame(HEADERS, END_HEADERS, stream, &headers);
            self.headers = headers;
            self.frame_head(DATA, END_STREAM, stream, message.len() + 5);
            self.out.push(0);
            self.out.extend((message.len() as u32).to_be_bytes());
            self.out.extend(message);
        }
        self.stream.write_all(&self.out).expect("the server reads");
        self.out.clear();
    }

    /// Reads until so many calls are answered.
    pub fn receive(&mut self, calls: usize) {
        let mut answered = 0;
        while answered < calls {
            let read = self.stream.read(&mut self.buffer[self.filled..]).expect("the server answers");
            assert!(read > 0, "the server has closed the connection");
            self.filled += read;
            answered += self.take_frames();
        }
        assert_eq!(answered, calls);
    }

    /// Removes all whole frames from the buffer. Returns the number of streams that they end.
    fn take_frames(&mut self) -> usize {
        let (mut at, mut ended) = (0, 0);
        while let Some(head) = self.buffer[at..self.filled].first_chunk::<FRAME_HEAD>() {
            let [high, middle, low, kind, flags, ..] = *head;
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            let end = at + FRAME_HEAD + length;
            if end > self.filled {
                break;
            }
            assert!(!matches!(kind, RST_STREAM | GOAWAY), "the server has reset a stream or the connection");
            match kind {
                HEADERS | DATA => ended += usize::from(flags & END_STREAM != 0),
                SETTINGS if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => {
                    let payload = self.buffer[at + FRAME_HEAD..end].to_vec();
                    self.frame(PING, ACK, 0, &payload);
                }
                _ => {}
            }
            at = end;
        }
        self.buffer.copy_within(at..self.filled, 0);
        self.filled -= at;
        ended
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.frame_head(kind, flags, stream, payload.len());
        self.out.extend(payload);
    }

    fn frame_head(&mut self, kind: u8, flags: u8, stream: u32, length: usize) {
        self.out.extend(&(length as u32).to_be_bytes()[1..]);
        self.out.extend([kind, flags]);
        self.out.extend(stream.to_be_bytes());
    }
}

/// The headers of a call, without references to a dynamic table.
fn header_block(address: SocketAddr) -> Vec<u8> {
    // From the static table: `:method: POST` and `:scheme: http`.
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &str| {
        block.extend(name);
        block.push(u8::try_from(value.len()).expect("a short value"));
        block.extend(value.as_bytes());
    };
    // The names `:path`, `:authority` and `content-type` are in the static table, too.
    literal(&[0x04], "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    literal(&[0x01], &address.to_string());
    literal(&[0x0f, 0x10], "application/grpc");
    literal(&[0x00, 2, b't', b'e'], "trailers");
    block
}
