//! Compares the framing watch with hyper and with lenient readers.
//!
//! Each input is a list of choices that build a stream of requests: valid ones, ones with every known trick, and damaged ones.
//! What passes the watch is read by hyper, as in the accept loop; the requests that hyper returns would reach an upstream.
//! The laws:
//! - However the stream is split into reads, the same bytes pass.
//! - Every [`LenientReader`], with any set of its leniencies, finds the same requests with the same bodies, so a request that
//!   passes has one interpretation.
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
use lenient_reader::{LENIENCIES, LenientReader};
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

/// How often each case occurred, so that the test cannot pass without them.
#[derive(Debug, Default)]
struct FuzzCoverage {
    empty: AtomicU64,
    with_body: AtomicU64,
    pipelined: AtomicU64,
    cut_off: AtomicU64,
    clear: AtomicU64,
}

fn count_if(count: &AtomicU64, happened: bool) {
    count.fetch_add(u64::from(happened), Ordering::Relaxed);
}

#[test]
fn requests_that_pass_have_one_interpretation() {
    let met = FuzzCoverage::default();
    let options = ServeOptions { framing: Framing::Strict, ..ServeOptions::default() };
    let mut http1 = ProtocolBuilders::new(&options).http1;
    http1.half_close(true);
    let hyper = HyperReader { runtime: Builder::new_current_thread().build().unwrap(), http1 };
    let input = bolero::check!().with_iterations(3_000).with_max_len(512).with_type::<Vec<u8>>();
    input.for_each(|choices| {
        let stream = request_stream::from(choices);
        let (through, heads) = pass(&stream, &[stream.len().max(1)]);
        for steps in [&[1][..], &[2], &[7, 1, 64], &read_lengths(choices)] {
            assert_eq!(pass(&stream, steps), (through.clone(), heads), "in steps of {steps:?}");
        }
        let is_cut_off = through.len() < stream.len();
        let read = if is_cut_off { [&through, POISON].concat() } else { through.clone() };
        let accepted = hyper.read(read);
        assert!(heads as usize >= accepted.len(), "hyper found a head that the watch did not count");
        for leniencies in 0..1_u32 << LENIENCIES {
            let found = LenientReader::new(&through, leniencies).messages(accepted.len());
            assert_eq!(found, accepted, "with leniencies {leniencies:b}");
        }
        for message in &accepted {
            count_if(&met.empty, message.body.is_empty());
            count_if(&met.with_body, !message.body.is_empty());
        }
        count_if(&met.pipelined, accepted.len() > 1);
        count_if(&met.cut_off, is_cut_off);
        count_if(&met.clear, !is_cut_off && !accepted.is_empty());
    });
    println!("{met:?}");
    let counts = [&met.empty, &met.with_body, &met.pipelined, &met.cut_off, &met.clear];
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 100), "{met:?}");
}

/// What passes the watch in reads of these lengths, repeated, and the number of heads in it.
fn pass(stream: &[u8], steps: &[usize]) -> (Vec<u8>, u32) {
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

/// Lengths of reads, by the choices.
fn read_lengths(choices: &[u8]) -> Vec<usize> {
    let steps = choices.iter().map(|choice| usize::from(choice % 31) + 1);
    steps.chain([3]).collect()
}

/// Hyper, as the accept loop configures it.
struct HyperReader {
    runtime: Runtime,
    http1: http1::Builder,
}

/// A panic ends the test, so no broken state is observed.
impl RefUnwindSafe for HyperReader {}

impl HyperReader {
    /// The requests with whole bodies that it passes to a service.
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
