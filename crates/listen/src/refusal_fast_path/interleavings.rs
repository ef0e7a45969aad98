//! In any order of events, every request is answered once and in order, and repeats only by the refuser of their own request.
//!
//! A model client sends requests split in any way, and a model of hyper reads, begins, answers, ends and writes at any time at
//! which hyper might, and flushes when it has nothing left to write.

mod scripted_wire;

use super::stream::{FastPathStream, MOST_IN_A_ROW};
use super::tests::fast_path_stream;
use super::{RefusalAction, RepeatRefuser};
use crate::RefusalFastPath;
use crate::connection_activity::OpenRequest;
use crate::framing::POISON;
use parking_lot::Mutex;
use scripted_wire::{ReadPart, ScriptedWire, WireEnd};
use std::cell::RefCell;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const REPEATED: &str = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
/// A head with wrong line ends, and the position of the first.
const BAD: &str = "GET /a HTTP/1.1\nhost: a\n\n";
const BAD_AT: usize = 15;

/// The requests of the client: a head, and what follows it.
const REQUESTS: [(&str, &str); 10] = [
    (REPEATED, ""),
    (REPEATED, ""),
    ("GET /b?c HTTP/1.1\r\nhost: a\r\n\r\n", ""),
    ("GET /a HTTP/1.1\r\nhost: b\r\n\r\n", ""),
    ("XGET /a HTTP/1.1\r\nhost: a\r\n\r\n", ""),
    ("GET /b HTTP/1.1\r\nx: GET /a HTTP/1.1\r\nhost: a\r\n\r\n", ""),
    ("POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\n", "abc"),
    ("POST /a HTTP/1.1\r\ncontent-length: 0\r\n\r\n", ""),
    ("POST /a HTTP/1.1\r\ncontent-length: 28\r\n\r\n", REPEATED),
    (
        "POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        "1c\r\nGET /a HTTP/1.1\r\nhost: a\r\n\r\n\r\n0\r\nx: y\r\n\r\n",
    ),
];

/// A task that records whether it was woken.
#[derive(Default)]
struct WokenTask(AtomicBool);

impl Wake for WokenTask {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The record that all refusers share.
struct RefuserLog {
    /// The number of answered requests, which is the index of the next one.
    answered: usize,
    action: RefusalAction,
    /// The request of each refuser that has answered a repeat, and the index of the repeat.
    refused: Vec<(String, usize)>,
}

struct ScriptedRefuser {
    request: String,
    log: Arc<Mutex<RefuserLog>>,
}

impl RepeatRefuser for ScriptedRefuser {
    fn refuse_repeat(&mut self, _target: &[u8], response: &mut Vec<u8>) -> RefusalAction {
        let mut log = self.log.lock();
        if log.action != RefusalAction::Pass {
            let index = log.answered;
            response.extend_from_slice(response_to(index).as_bytes());
            log.refused.push((self.request.clone(), index));
            log.answered += 1;
        }
        log.action
    }
}

fn response_to(index: usize) -> String {
    format!("<{index}>")
}

fn responses_before(index: usize) -> String {
    (0..index).map(response_to).collect()
}

/// A request without its target.
fn without_target(text: &str) -> (&str, &str) {
    let (method, rest) = text.split_once(' ').unwrap();
    (method, rest.split_once(' ').unwrap().1)
}

/// Where a request is in everything that the client sends.
#[derive(Clone, Copy)]
struct ExpectedRequest {
    start: usize,
    head_end: usize,
    end: usize,
}

struct ConnectionModel {
    task: Arc<WokenTask>,
    stream: FastPathStream<WireEnd>,
    wire: Rc<RefCell<ScriptedWire>>,
    log: Arc<Mutex<RefuserLog>>,
    /// Everything that the client sends.
    text: String,
    /// How much of it is sent.
    sent: usize,
    requests: Vec<ExpectedRequest>,
    /// Where the text becomes ambiguous.
    bad_at: Option<usize>,
    open: Option<OpenRequest>,
    is_kept: bool,
    is_answered: bool,
    unwritten: Vec<u8>,
    /// Nothing more is read.
    is_over: bool,
    refused: usize,
}

impl ConnectionModel {
    fn new() -> Self {
        let wire = Rc::<RefCell<ScriptedWire>>::default();
        let log = RefuserLog { answered: 0, action: RefusalAction::Refuse, refused: Vec::new() };
        Self {
            task: Arc::default(),
            stream: fast_path_stream(WireEnd(Rc::clone(&wire)), RefusalFastPath::Enabled),
            wire,
            log: Arc::new(Mutex::new(log)),
            text: String::new(),
            sent: 0,
            requests: Vec::new(),
            bad_at: None,
            open: None,
            is_kept: false,
            is_answered: false,
            unwritten: Vec::new(),
            is_over: false,
            refused: 0,
        }
    }

    fn add_request(&mut self, choice: u8) {
        let start = self.text.len();
        if choice == 255 {
            self.bad_at.get_or_insert(start + BAD_AT);
            self.text.push_str(BAD);
        } else if choice >= 240 {
            self.text.push_str("\r\n");
        } else {
            let (head, body) = REQUESTS[usize::from(choice) % REQUESTS.len()];
            self.text.push_str(head);
            self.text.push_str(body);
            if self.bad_at.is_none() {
                let head_end = start + head.len();
                self.requests.push(ExpectedRequest { start, head_end, end: self.text.len() });
            }
        }
    }

    fn send(&mut self, count: usize) {
        let end = self.text.len().min(self.sent.saturating_add(count));
        if end > self.sent {
            let piece = self.text.as_bytes()[self.sent..end].to_vec();
            self.wire.borrow_mut().pieces.push_back(piece);
            self.sent = end;
        }
    }

    /// Whether anything was read.
    fn read(&mut self, room: usize) -> bool {
        let mut bytes = vec![0; room];
        let mut buffer = ReadBuf::new(&mut bytes);
        let waker = Waker::from(Arc::clone(&self.task));
        let polled = Pin::new(&mut self.stream).poll_read(&mut Context::from_waker(&waker), &mut buffer);
        let mut parts = std::mem::take(&mut self.wire.borrow_mut().parts);
        let refused = std::mem::take(&mut self.log.lock().refused);
        if self.is_over {
            assert!(parts.is_empty() && refused.is_empty(), "nothing is read after the end");
            return false;
        }
        let has_read = !parts.is_empty();
        match polled {
            Poll::Ready(read) => {
                read.unwrap();
                if buffer.filled().is_empty() {
                    assert_eq!(self.log.lock().action, RefusalAction::RefuseAndClose);
                    self.is_over = true;
                } else {
                    self.check_passed_on(parts.pop().unwrap().range, buffer.filled());
                }
            }
            // The end of the stream is read after the response is sent.
            Poll::Pending => {
                self.is_over = has_read && self.log.lock().action == RefusalAction::RefuseAndClose
            }
        }
        assert_eq!(parts.len(), refused.len(), "what is not answered is passed on");
        for (part, (request, index)) in parts.into_iter().zip(refused) {
            self.check_refused(part, &request, index);
        }
        has_read
    }

    fn check_passed_on(&mut self, part: Range<usize>, passed: &[u8]) {
        match self.bad_at {
            Some(bad_at) if part.contains(&bad_at) => {
                let clear = &self.text.as_bytes()[part.start..bad_at];
                let poison = passed.strip_prefix(clear).unwrap();
                assert!(!poison.is_empty() && POISON.starts_with(poison));
                self.is_over = true;
            }
            _ => assert_eq!(passed, &self.text.as_bytes()[part], "all of it, in order"),
        }
    }

    fn check_refused(&mut self, part: ReadPart, request: &str, index: usize) {
        let (ExpectedRequest { start, end, .. }, range) = (self.requests[index], part.range);
        assert!(range.start <= start && end <= range.end, "one request, of which nothing was passed on");
        let around = [&self.text[range.start..start], &self.text[end..range.end]];
        assert!(around.iter().all(|text| text.chars().all(|c| matches!(c, '\r' | '\n'))), "{around:?}");
        assert!(self.open.is_none(), "another is being answered");
        assert_eq!(
            (part.responses, part.is_flushed),
            (responses_before(index).len(), true),
            "no other response is unsent"
        );
        assert_eq!(without_target(&self.text[start..end]), without_target(request));
        self.refused += 1;
    }

    /// Begins the next request, if its head was read and the requests before it are over.
    fn begin(&mut self) {
        let index = self.log.lock().answered;
        let read = self.wire.borrow().read;
        let is_next = |end| read >= end && self.requests[..index].last().is_none_or(|last| last.end <= read);
        let begins =
            self.open.is_none() && self.requests.get(index).is_some_and(|next| is_next(next.head_end));
        if begins {
            self.open = Some(OpenRequest::new(self.stream.activity()));
            self.is_kept = self.stream.activity().fast_path.as_ref().unwrap().take_kept();
        }
    }

    fn answer(&mut self, refuses: bool) {
        if self.open.is_none() || self.is_answered {
            return;
        }
        let index = self.log.lock().answered;
        let ExpectedRequest { start, end, .. } = self.requests[index];
        let state = self.stream.activity().fast_path.as_ref().unwrap();
        if refuses {
            let request = self.text[start..end].to_owned();
            let refuser = ScriptedRefuser { request, log: Arc::clone(&self.log) };
            state.record_refusal(self.is_kept.then(|| Box::new(refuser) as Box<dyn RepeatRefuser>));
        } else {
            state.record_other_response();
        }
        self.unwritten.extend_from_slice(response_to(index).as_bytes());
        self.is_answered = true;
        self.log.lock().answered += 1;
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_answered) {
            self.open = None;
        }
    }

    fn write(&mut self, most: usize) {
        let cx = &mut Context::from_waker(Waker::noop());
        let bytes = &self.unwritten[..self.unwritten.len().min(most)];
        if !bytes.is_empty()
            && let Poll::Ready(count) = Pin::new(&mut self.stream).poll_write(cx, bytes)
        {
            self.unwritten.drain(..count.unwrap());
        }
    }

    fn flush(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        if self.unwritten.is_empty() {
            let _ = Pin::new(&mut self.stream).poll_flush(cx);
        }
    }

    /// Reads everything that was sent, and answers everything that was read.
    fn settle(&mut self, refuses: bool) {
        loop {
            let has_read = self.read(1024);
            self.begin();
            let was_open = self.open.is_some();
            self.answer(refuses);
            self.end();
            self.write(usize::MAX);
            self.flush();
            if !has_read && !was_open {
                return;
            }
        }
    }

    /// The next position at which something ends or begins that looks like a request.
    fn next_boundary(&self) -> usize {
        let is_boundary =
            |at: &usize| self.text[*at..].starts_with("GET ") || self.text[..*at].ends_with("\r\n\r\n");
        (self.sent + 1..self.text.len()).find(is_boundary).unwrap_or(self.text.len())
    }

    fn act(&mut self, action: u8, choice: u8) {
        match action % 20 {
            0..=4 => {
                self.wire.borrow_mut().room += 16;
                self.add_request(choice);
                self.send(usize::MAX);
                self.settle(choice % 32 != 1);
            }
            5..=7 => {
                self.add_request(choice);
                self.send(usize::MAX);
                self.read(1024);
            }
            8 => self.add_request(choice),
            9 => self.send(usize::from(choice % 64)),
            10 | 11 => {
                self.send(self.next_boundary() - self.sent);
                self.read(1024);
                if choice.is_multiple_of(2) {
                    self.flush();
                }
            }
            12 => drop(self.read(if choice > 64 { 1024 } else { 8 + usize::from(choice) })),
            13 => self.begin(),
            14 => self.answer(choice > 32),
            15 => self.end(),
            16 => self.write(usize::from(choice)),
            17 => self.flush(),
            18 => {
                let mut wire = self.wire.borrow_mut();
                wire.room += usize::from(choice % 8);
                wire.is_stuck = choice.is_multiple_of(4);
            }
            // The client already knows that the connection ends.
            _ if self.is_over => {}
            _ => {
                self.log.lock().action = match choice % 16 {
                    0 => RefusalAction::RefuseAndClose,
                    1..=3 => RefusalAction::Pass,
                    _ => RefusalAction::Refuse,
                }
            }
        }
    }

    fn finish(mut self) {
        {
            let mut wire = self.wire.borrow_mut();
            (wire.room, wire.is_stuck) = (usize::MAX, false);
        }
        self.send(usize::MAX);
        self.settle(true);
        let answered = self.log.lock().answered;
        assert_eq!(String::from_utf8_lossy(&self.wire.borrow().responses), responses_before(answered));
        if self.log.lock().action != RefusalAction::RefuseAndClose {
            assert_eq!(answered, self.requests.len(), "every request is answered");
        }
    }
}

#[test]
fn every_request_is_answered_once_and_in_order() {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    bolero::check!().with_iterations(20_000).with_type::<Vec<(u8, u8)>>().for_each(|actions| {
        let mut model = ConnectionModel::new();
        for (action, choice) in actions {
            model.act(*action, *choice);
        }
        REFUSED.fetch_add(model.refused, Ordering::Relaxed);
        model.finish();
    });
    assert_ne!(REFUSED.load(Ordering::Relaxed), 0, "the fast path was never taken");
}

#[test]
fn a_flood_of_repeats_yields_to_other_tasks() {
    let mut model = ConnectionModel::new();
    for _ in 0..2 {
        model.act(0, 0);
    }
    for _ in 0..100 {
        model.add_request(0);
        model.send(usize::MAX);
    }
    model.wire.borrow_mut().room = usize::MAX;
    let read = model.wire.borrow().read;
    model.read(1024);
    let answered = (model.wire.borrow().read - read) / REPEATED.len();
    assert_eq!(answered, MOST_IN_A_ROW as usize);
    assert!(model.task.0.swap(false, Ordering::Relaxed), "there is more to do");
    model.finish();
}

#[test]
fn a_response_is_sent_before_the_shutdown() {
    let mut model = ConnectionModel::new();
    for _ in 0..2 {
        model.act(0, 0);
    }
    model.add_request(0);
    model.send(usize::MAX);
    model.wire.borrow_mut().room = 1;
    assert!(model.read(1024));
    let mut shutdown =
        || Pin::new(&mut model.stream).poll_shutdown(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!shutdown(), "the response is not sent");
    model.wire.borrow_mut().room = usize::MAX;
    assert!(shutdown());
    assert_eq!(String::from_utf8_lossy(&model.wire.borrow().responses), responses_before(3));
}
