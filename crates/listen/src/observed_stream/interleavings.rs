//! In whatever order things happen, every request is answered once, in its turn, and by one who knows all of it.
//!
//! A client whose words come in any cuts, and one who stands where hyper does: it reads, begins, answers, ends and
//! writes at any time at which hyper might, and flushes when it has nothing left to write.

mod scripted_wire;

use super::*;
use crate::repeat_refusal::RepeatRefuser;
use parking_lot::Mutex;
use scripted_wire::{ReadPart, ScriptedWire, WireEnd};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use tokio::sync::Semaphore;

const WORDS: &str = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
/// A head that ends no line as it should, and where that shows.
const BAD: &str = "GET /a HTTP/1.1\nhost: a\n\n";
const BAD_AT: usize = 15;

/// What a client says: a head, and what follows it.
const REQUESTS: [(&str, &str); 10] = [
    (WORDS, ""),
    (WORDS, ""),
    ("GET /b?c HTTP/1.1\r\nhost: a\r\n\r\n", ""),
    ("GET /a HTTP/1.1\r\nhost: b\r\n\r\n", ""),
    ("XGET /a HTTP/1.1\r\nhost: a\r\n\r\n", ""),
    ("GET /b HTTP/1.1\r\nx: GET /a HTTP/1.1\r\nhost: a\r\n\r\n", ""),
    ("POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\n", "abc"),
    ("POST /a HTTP/1.1\r\ncontent-length: 0\r\n\r\n", ""),
    ("POST /a HTTP/1.1\r\ncontent-length: 28\r\n\r\n", WORDS),
    (
        "POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        "1c\r\nGET /a HTTP/1.1\r\nhost: a\r\n\r\n\r\n0\r\nx: y\r\n\r\n",
    ),
];

/// Whether it was woken.
#[derive(Default)]
struct WokenTask(AtomicBool);

impl Wake for WokenTask {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What all doormen write into.
struct RefuserLog {
    /// Requests are answered in their order, so this is also the number of the next.
    answered: usize,
    word: RefusalAction,
    /// The words that each knew who turned somebody away, and the number of who it was.
    turned_away: Vec<(String, usize)>,
}

struct ScriptedRefuser {
    knows: String,
    notes: Arc<Mutex<RefuserLog>>,
}

impl RepeatRefuser for ScriptedRefuser {
    fn refuse_repeat(&mut self, _target: &[u8], answer: &mut Vec<u8>) -> RefusalAction {
        let mut notes = self.notes.lock();
        if notes.word != RefusalAction::Pass {
            let number = notes.answered;
            answer.extend_from_slice(said(number).as_bytes());
            notes.turned_away.push((self.knows.clone(), number));
            notes.answered += 1;
        }
        notes.word
    }
}

fn said(number: usize) -> String {
    format!("<{number}>")
}

fn all_said(until: usize) -> String {
    (0..until).map(said).collect()
}

/// A request without its target.
fn but_for_target(text: &str) -> (&str, &str) {
    let (method, rest) = text.split_once(' ').unwrap();
    (method, rest.split_once(' ').unwrap().1)
}

/// A request, and where in all that is said its parts are.
#[derive(Clone, Copy)]
struct ExpectedRequest {
    start: usize,
    head_end: usize,
    end: usize,
}

struct ConnectionModel {
    task: Arc<WokenTask>,
    stream: ObservedStream<WireEnd>,
    wire: Rc<RefCell<ScriptedWire>>,
    notes: Arc<Mutex<RefuserLog>>,
    said: String,
    /// How much of it is on its way.
    sent: usize,
    requests: Vec<ExpectedRequest>,
    /// Where it becomes ambiguous.
    bad_at: Option<usize>,
    open: Option<OpenRequest>,
    is_kept: bool,
    is_answered: bool,
    unwritten: Vec<u8>,
    /// Nothing more is read.
    is_over: bool,
    turned_away: usize,
}

impl ConnectionModel {
    fn new() -> Self {
        let wire = Rc::<RefCell<ScriptedWire>>::default();
        let slot = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let permits = ConnectionPermits { _slot: slot, counted: None };
        let (stream, activity) = (WireEnd(Rc::clone(&wire)), Arc::default());
        let notes = RefuserLog { answered: 0, word: RefusalAction::Refuse, turned_away: Vec::new() };
        Self {
            task: Arc::default(),
            stream: ObservedStream::new(
                stream,
                HeadTiming::Timed,
                Vec::new(),
                Some(FramingWatch::new()),
                &activity,
                permits,
            ),
            wire,
            notes: Arc::new(Mutex::new(notes)),
            said: String::new(),
            sent: 0,
            requests: Vec::new(),
            bad_at: None,
            open: None,
            is_kept: false,
            is_answered: false,
            unwritten: Vec::new(),
            is_over: false,
            turned_away: 0,
        }
    }

    fn say(&mut self, choice: u8) {
        let start = self.said.len();
        if choice == 255 {
            self.bad_at.get_or_insert(start + BAD_AT);
            self.said.push_str(BAD);
        } else if choice >= 240 {
            self.said.push_str("\r\n");
        } else {
            let (head, body) = REQUESTS[usize::from(choice) % REQUESTS.len()];
            self.said.push_str(head);
            self.said.push_str(body);
            if self.bad_at.is_none() {
                let head_end = start + head.len();
                self.requests.push(ExpectedRequest { start, head_end, end: self.said.len() });
            }
        }
    }

    fn send(&mut self, count: usize) {
        let end = self.said.len().min(self.sent.saturating_add(count));
        if end > self.sent {
            let piece = self.said.as_bytes()[self.sent..end].to_vec();
            self.wire.borrow_mut().pieces.push_back(piece);
            self.sent = end;
        }
    }

    /// Answers whether anything came.
    fn read(&mut self, room: usize) -> bool {
        let mut bytes = vec![0; room];
        let mut buffer = ReadBuf::new(&mut bytes);
        let waker = Waker::from(Arc::clone(&self.task));
        let polled = Pin::new(&mut self.stream).poll_read(&mut Context::from_waker(&waker), &mut buffer);
        let mut parts = std::mem::take(&mut self.wire.borrow_mut().parts);
        let turned_away = std::mem::take(&mut self.notes.lock().turned_away);
        if self.is_over {
            assert!(parts.is_empty() && turned_away.is_empty(), "nothing is read after the end");
            return false;
        }
        let came = !parts.is_empty();
        match polled {
            Poll::Ready(read) => {
                read.unwrap();
                if buffer.filled().is_empty() {
                    assert_eq!(self.notes.lock().word, RefusalAction::RefuseAndClose);
                    self.is_over = true;
                } else {
                    self.hears(parts.pop().unwrap().range, buffer.filled());
                }
            }
            // With a farewell the end is said once the answer is sent.
            Poll::Pending => self.is_over = came && self.notes.lock().word == RefusalAction::RefuseAndClose,
        }
        assert_eq!(parts.len(), turned_away.len(), "what nobody answered is handed on");
        for (part, (knows, number)) in parts.into_iter().zip(turned_away) {
            self.was_turned_away(part, &knows, number);
        }
        came
    }

    fn hears(&mut self, part: Range<usize>, heard: &[u8]) {
        match self.bad_at {
            Some(bad_at) if part.contains(&bad_at) => {
                let clear = &self.said.as_bytes()[part.start..bad_at];
                let poison = heard.strip_prefix(clear).unwrap();
                assert!(!poison.is_empty() && POISON.starts_with(poison));
                self.is_over = true;
            }
            _ => assert_eq!(heard, &self.said.as_bytes()[part], "all of it, and in its order"),
        }
    }

    fn was_turned_away(&mut self, part: ReadPart, knows: &str, number: usize) {
        let (ExpectedRequest { start, end, .. }, range) = (self.requests[number], part.range);
        assert!(range.start <= start && end <= range.end, "one request, and nothing of it was heard before");
        let around = [&self.said[range.start..start], &self.said[end..range.end]];
        assert!(around.iter().all(|text| text.chars().all(|c| matches!(c, '\r' | '\n'))), "{around:?}");
        assert!(self.open.is_none(), "another is being answered");
        assert_eq!(
            (part.answers, part.is_flushed),
            (all_said(number).len(), true),
            "an answer is on its way"
        );
        assert_eq!(but_for_target(&self.said[start..end]), but_for_target(knows));
        self.turned_away += 1;
    }

    /// The next request has a whole head, and its turn has come.
    fn begin(&mut self) {
        let number = self.notes.lock().answered;
        let read = self.wire.borrow().read;
        let was_heard =
            |end| read >= end && self.requests[..number].last().is_none_or(|last| last.end <= read);
        let begins =
            self.open.is_none() && self.requests.get(number).is_some_and(|asked| was_heard(asked.head_end));
        if begins {
            self.open = Some(OpenRequest::new(&self.stream.activity));
            self.is_kept = self.stream.activity.repeats.take_kept();
        }
    }

    fn answer(&mut self, refuses: bool) {
        if self.open.is_none() || self.is_answered {
            return;
        }
        let number = self.notes.lock().answered;
        let ExpectedRequest { start, end, .. } = self.requests[number];
        let repeats = &self.stream.activity.repeats;
        if refuses {
            let porter =
                ScriptedRefuser { knows: self.said[start..end].to_owned(), notes: Arc::clone(&self.notes) };
            repeats.record_refusal(self.is_kept.then(|| Box::new(porter) as Box<dyn RepeatRefuser>));
        } else {
            repeats.record_other_response();
        }
        self.unwritten.extend_from_slice(said(number).as_bytes());
        self.is_answered = true;
        self.notes.lock().answered += 1;
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

    /// All that was sent is read, and all that was read is answered.
    fn settle(&mut self, refuses: bool) {
        loop {
            let came = self.read(1024);
            self.begin();
            let was_open = self.open.is_some();
            self.answer(refuses);
            self.end();
            self.write(usize::MAX);
            self.flush();
            if !came && !was_open {
                return;
            }
        }
    }

    /// Where something ends or begins that could be taken for a request.
    fn next_joint(&self) -> usize {
        let is_joint =
            |at: &usize| self.said[*at..].starts_with("GET ") || self.said[..*at].ends_with("\r\n\r\n");
        (self.sent + 1..self.said.len()).find(is_joint).unwrap_or(self.said.len())
    }

    fn act(&mut self, action: u8, choice: u8) {
        match action % 20 {
            0..=4 => {
                self.wire.borrow_mut().room += 16;
                self.say(choice);
                self.send(usize::MAX);
                self.settle(choice % 32 != 1);
            }
            5..=7 => {
                self.say(choice);
                self.send(usize::MAX);
                self.read(1024);
            }
            8 => self.say(choice),
            9 => self.send(usize::from(choice % 64)),
            10 | 11 => {
                self.send(self.next_joint() - self.sent);
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
            // It has been said.
            _ if self.is_over => {}
            _ => {
                self.notes.lock().word = match choice % 16 {
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
        let answered = self.notes.lock().answered;
        assert_eq!(String::from_utf8_lossy(&self.wire.borrow().answers), all_said(answered));
        if self.notes.lock().word != RefusalAction::RefuseAndClose {
            assert_eq!(answered, self.requests.len(), "nobody is forgotten");
        }
    }
}

#[test]
fn everybody_is_answered_once_and_in_turn() {
    static TURNED_AWAY: AtomicUsize = AtomicUsize::new(0);
    bolero::check!().with_iterations(20_000).with_type::<Vec<(u8, u8)>>().for_each(|actions| {
        let mut house = ConnectionModel::new();
        for (action, choice) in actions {
            house.act(*action, *choice);
        }
        TURNED_AWAY.fetch_add(house.turned_away, Ordering::Relaxed);
        house.finish();
    });
    assert_ne!(TURNED_AWAY.load(Ordering::Relaxed), 0, "or this says nothing");
}

#[test]
fn who_never_stops_asking_lets_others_run() {
    let mut house = ConnectionModel::new();
    for _ in 0..2 {
        house.act(0, 0);
    }
    for _ in 0..100 {
        house.say(0);
        house.send(usize::MAX);
    }
    house.wire.borrow_mut().room = usize::MAX;
    let read = house.wire.borrow().read;
    house.read(1024);
    let answered = (house.wire.borrow().read - read) / WORDS.len();
    assert_eq!(answered, MOST_IN_A_ROW as usize);
    assert!(house.task.0.swap(false, Ordering::Relaxed), "there is more to do");
    house.finish();
}

#[test]
fn an_answer_is_sent_to_its_end_before_the_end() {
    let mut house = ConnectionModel::new();
    for _ in 0..2 {
        house.act(0, 0);
    }
    house.say(0);
    house.send(usize::MAX);
    house.wire.borrow_mut().room = 1;
    assert!(house.read(1024));
    let mut shutdown =
        || Pin::new(&mut house.stream).poll_shutdown(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!shutdown(), "there is more to say");
    house.wire.borrow_mut().room = usize::MAX;
    assert!(shutdown());
    assert_eq!(String::from_utf8_lossy(&house.wire.borrow().answers), all_said(3));
}
