//! The watch on framing, against readers that take liberties.
//!
//! Each input is a list of choices from which a stream of requests is put together: honest ones, ones with every known
//! trick, and damaged ones. What the watch lets through is read by hyper, as in the accept loop; the requests that hyper
//! hands over are those that reach an upstream. The laws:
//! - However the stream is cut into reads, the same bytes are let through.
//! - Every [`LenientReader`], whichever of its liberties it takes, finds the same requests with the same bodies, so a request
//!   that is let through has one interpretation.
//! - The watch counts as many heads as hyper, and nothing panics.
//!
//! `BOLERO_RANDOM_ITERATIONS=1000000 cargo test -p tollgate-listen framing::fuzz` runs longer.

mod lenient_reader;
mod request_stream;

use super::{FramingWatch, POISON};
use crate::protocol::ProtocolBuilders;
use crate::{Framing, ServeOptions};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lenient_reader::{LIBERTIES, LenientReader};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io::Cursor;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::{Builder, Runtime};

/// A request with all of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FuzzedRequest {
    target: String,
    body: Vec<u8>,
}

/// How often what was met, so that the target cannot pass by meeting nothing.
#[derive(Debug, Default)]
struct FuzzCoverage {
    empty: AtomicU64,
    with_body: AtomicU64,
    pipelined: AtomicU64,
    cut_off: AtomicU64,
    clear: AtomicU64,
}

fn note(count: &AtomicU64, happened: bool) {
    count.fetch_add(u64::from(happened), Ordering::Relaxed);
}

#[test]
fn what_is_let_through_has_one_interpretation() {
    let met = FuzzCoverage::default();
    let options = ServeOptions { framing: Framing::Strict, ..ServeOptions::default() };
    let mut http1 = ProtocolBuilders::new(&options).http1;
    http1.half_close(true);
    let hyper = HyperReader { runtime: Builder::new_current_thread().build().unwrap(), http1 };
    let input = bolero::check!().with_iterations(3_000).with_max_len(512).with_type::<Vec<u8>>();
    input.for_each(|choices| {
        let stream = request_stream::from(choices);
        let (through, heads) = let_through(&stream, &[stream.len().max(1)]);
        for steps in [&[1][..], &[2], &[7, 1, 64], &cuts(choices)] {
            assert_eq!(let_through(&stream, steps), (through.clone(), heads), "in steps of {steps:?}");
        }
        let is_cut_off = through.len() < stream.len();
        let read = if is_cut_off { [&through, POISON].concat() } else { through.clone() };
        let handed_over = hyper.read(read);
        assert!(heads as usize >= handed_over.len(), "hyper found a head that was not seen");
        for liberties in 0..1_u32 << LIBERTIES {
            let found = LenientReader::new(&through, liberties).messages(handed_over.len());
            assert_eq!(found, handed_over, "with liberties {liberties:b}");
        }
        for message in &handed_over {
            note(&met.empty, message.body.is_empty());
            note(&met.with_body, !message.body.is_empty());
        }
        note(&met.pipelined, handed_over.len() > 1);
        note(&met.cut_off, is_cut_off);
        note(&met.clear, !is_cut_off && !handed_over.is_empty());
    });
    println!("{met:?}");
    let counts = [&met.empty, &met.with_body, &met.pipelined, &met.cut_off, &met.clear];
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 100), "{met:?}");
}

/// What the watch lets through if it comes in reads of these lengths, over and over, and how many heads were in it.
fn let_through(stream: &[u8], steps: &[usize]) -> (Vec<u8>, u32) {
    let mut watch = FramingWatch::new();
    let (mut through, mut rest) = (Vec::new(), stream);
    for step in steps.iter().cycle() {
        let (read, later) = rest.split_at((*step).min(rest.len()));
        let clear = watch.inspect(read);
        through.extend_from_slice(&read[..clear]);
        if clear < read.len() || later.is_empty() {
            break;
        }
        rest = later;
    }
    (through, watch.requests())
}

/// Reads of lengths that the choices say.
fn cuts(choices: &[u8]) -> Vec<usize> {
    let steps = choices.iter().map(|choice| usize::from(choice % 31) + 1);
    steps.chain([3]).collect()
}

/// Hyper, as the accept loop has it.
struct HyperReader {
    runtime: Runtime,
    http1: http1::Builder,
}

/// A panic ends the test: nothing is looked at after it.
impl RefUnwindSafe for HyperReader {}

impl HyperReader {
    /// The requests that it hands over with all of their bodies.
    fn read(&self, bytes: Vec<u8>) -> Vec<FuzzedRequest> {
        let messages = Mutex::new(Vec::new());
        let service = service_fn(|request: Request<Incoming>| {
            let (target, messages) = (request.uri().to_string(), &messages);
            async move {
                if let Ok(body) = request.into_body().collect().await {
                    let body = body.to_bytes().to_vec();
                    messages.lock().push(FuzzedRequest { target, body });
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
            }
        });
        let stream = TokioIo::new(tokio::io::join(Cursor::new(bytes), tokio::io::sink()));
        // It ends with an error where the stream is cut off.
        let _ = self.runtime.block_on(self.http1.serve_connection(stream, service));
        messages.into_inner()
    }
}
