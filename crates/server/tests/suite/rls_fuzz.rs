//! Any bytes as a call: no panic, a status for each descriptor, and never more admitted than the limits allow.

use prost::Message;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, RefUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::rules::load;
use tollgate_http::HeaderOptions;
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tollgate_server::rls_door::DescriptorCharging;
use tollgate_server::rls_door::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
};
use tollgate_server::{Readiness, RlsDoor};

/// Every descriptor is limited by the first rule, whatever its entries.
const RULES: &str = "
rules:
  - { id: everything, key: all, algorithm: fixed_window, limit: 20/day }
  - { id: users, match: { exactly: [user] }, key: user, limit: 3/day }
";
const QUOTA: u128 = 20;
const USER_QUOTA: u128 = 3;

fn door(descriptors: DescriptorCharging) -> RlsDoor {
    let clock = Clock::Manual(ManualClock::new(1_800_000_000_000_000));
    let limiter = Limiter::new(MemoryStore::new(1 << 20), clock);
    let loaded = load("rules.yaml", RULES).unwrap();
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let readiness = Arc::new(Readiness::default());
    RlsDoor { limiter: Arc::new(limiter), headers: HeaderOptions::default(), descriptors, readiness }
}

/// With the embedded store nothing waits.
fn decide(door: &RlsDoor, request: &RateLimitRequest) -> Option<RateLimitResponse> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(door.decide(request)).poll(&mut context) {
        std::task::Poll::Ready(answer) => answer.ok(),
        std::task::Poll::Pending => panic!("it waits"),
    }
}

fn verify(request: &RateLimitRequest, answer: &RateLimitResponse) {
    assert_eq!(answer.statuses.len(), request.descriptors.len());
    let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
    assert!(codes.iter().all(|code| *code != Code::Unknown), "{answer:?}");
    let is_over = codes.contains(&Code::OverLimit);
    assert_eq!(answer.overall_code(), if is_over { Code::OverLimit } else { Code::Ok });
    for status in &answer.statuses {
        assert!(status.duration_until_reset.as_ref().is_none_or(|reset| reset.seconds >= 1), "{status:?}");
    }
    // What is sent can be read.
    assert_eq!(RateLimitResponse::decode(answer.encode_to_vec().as_slice()).unwrap(), *answer);
}

/// How many tokens of the rules are used.
#[derive(Clone, Debug, Default)]
struct UsedTokens {
    all: u128,
    by_user: BTreeMap<Vec<u8>, u128>,
}

impl UsedTokens {
    fn add(&mut self, request: &RateLimitRequest, one: &RateLimitDescriptor) {
        self.all += hits_of(request, one);
        if let Some(user) = user_of(one, &|_| true) {
            *self.by_user.entry(user.to_vec()).or_default() += hits_of(request, one);
        }
        assert!(self.all <= QUOTA, "{self:?}: {request:?}");
        assert!(self.by_user.values().all(|used| *used <= USER_QUOTA), "{self:?}: {request:?}");
    }

    fn give_back(&mut self, request: &RateLimitRequest, one: &RateLimitDescriptor) {
        let hits = hits_of(request, one);
        self.all = self.all.saturating_sub(hits);
        let path = one.entries.iter().find(|entry| is_path(entry));
        let has_path = path.is_some_and(|path| !path.value.is_empty());
        let says_something = |entry: &Entry| match &*entry.key {
            b"remote_address" | b"ip" => is_address(entry),
            _ => has_path || !is_path(entry),
        };
        if let Some(used) = user_of(one, &says_something).and_then(|user| self.by_user.get_mut(user)) {
            *used = used.saturating_sub(hits);
        }
    }

    fn is_a_user_at_the_limit(&self) -> bool {
        self.by_user.values().any(|used| *used == USER_QUOTA)
    }
}

fn hits_of(request: &RateLimitRequest, one: &RateLimitDescriptor) -> u128 {
    one.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1))).into()
}

/// The user that the rule for users counts a descriptor by: none if it has other entries as well, of those that `is_entry` takes for
/// entries. An empty path and an address that is none may be entries or not: so they are if tokens are taken, and are not if tokens are
/// given back.
fn user_of<'d>(one: &'d RateLimitDescriptor, is_entry: &dyn Fn(&Entry) -> bool) -> Option<&'d [u8]> {
    let is_user = |entry: &Entry| *entry.key == *b"user";
    let is_alone = one.entries.iter().filter(|entry| is_entry(entry)).all(is_user);
    // Of several the first counts.
    let user = one.entries.iter().find(|entry| is_user(entry))?;
    is_alone.then_some(user.value.as_slice())
}

fn is_path(entry: &Entry) -> bool {
    matches!(&*entry.key, b"path" | b"endpoint" | b"route")
}

fn is_address(entry: &Entry) -> bool {
    str::from_utf8(&entry.value).is_ok_and(|text| text.parse::<IpAddr>().is_ok())
}

/// Counts what is used after an answer. What is given back follows what all descriptors of the request take, unless each is charged
/// on its own.
fn use_tokens(
    used: &mut UsedTokens,
    request: &RateLimitRequest,
    answer: &RateLimitResponse,
    charging: DescriptorCharging,
) {
    let is_together = charging == DescriptorCharging::AllOrNothing;
    let is_charged =
        |code: Code| if is_together { answer.overall_code() == Code::Ok } else { code == Code::Ok };
    let mut given_back = Vec::new();
    for (one, status) in request.descriptors.iter().zip(&answer.statuses) {
        if one.limit.is_some() || !is_charged(status.code()) {
            continue;
        }
        match (one.is_negative_hits, is_together) {
            (false, _) => used.add(request, one),
            (true, true) => given_back.push(one),
            (true, false) => used.give_back(request, one),
        }
    }
    given_back.into_iter().for_each(|one| used.give_back(request, one));
}

/// What the inputs were, so that the targets cannot pass without reaching the limits.
#[derive(Debug, Default)]
struct RlsCoverage {
    admitted: AtomicU64,
    refused: AtomicU64,
    refunded: AtomicU64,
    /// While a user has used all tokens.
    at_user_limit: AtomicU64,
}

impl RlsCoverage {
    fn record(&self, answer: &RateLimitResponse, before: &UsedTokens, after: &UsedTokens) {
        let counter = if answer.overall_code() == Code::Ok { &self.admitted } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        self.refunded.fetch_add(u64::from(after.all < before.all), Ordering::Relaxed);
        self.at_user_limit.fetch_add(u64::from(before.is_a_user_at_the_limit()), Ordering::Relaxed);
    }
}

fn check(
    charging: DescriptorCharging,
    requests: impl IntoIterator<Item = RateLimitRequest>,
    coverage: &RlsCoverage,
) {
    let door = door(charging);
    let mut used = UsedTokens::default();
    for request in requests {
        let Some(answer) = decide(&door, &request) else {
            assert!(request.descriptors.is_empty(), "{request:?}");
            continue;
        };
        verify(&request, &answer);
        let used_before = used.clone();
        use_tokens(&mut used, &request, &answer, charging);
        coverage.record(&answer, &used_before, &used);
    }
}

const KEYS: [&str; 10] =
    ["user", "path", "remote_address", "tenant", "api_key", "method", "route", "ip", "x", ""];
const VALUES: [&str; 10] = [
    "ann",
    "bob",
    "",
    "203.0.113.7",
    "2001:db8::7",
    "/v1/orders/7?x=1",
    "/a%2fb/../%00",
    "GET",
    "caf\u{e9}\0\r\n",
    "*",
];

/// The choices that an input makes, one after the other; zeros when they are used up.
struct Choices<'i>(std::slice::Iter<'i, u8>);

impl Choices<'_> {
    fn pick(&mut self, most: usize) -> usize {
        usize::from(*self.0.next().unwrap_or(&0)) % most
    }

    fn entry(&mut self) -> Entry {
        let value = match self.pick(VALUES.len() + 1) {
            0 => String::from_utf8_lossy(&self.0.by_ref().take(6).copied().collect::<Vec<u8>>()).into_owned(),
            number => VALUES[number - 1].to_owned(),
        };
        Entry { key: KEYS[self.pick(KEYS.len())].into(), value: value.into() }
    }

    /// Often one of two users alone, so that they reach their limits.
    fn entries(&mut self) -> Vec<Entry> {
        match self.pick(3) {
            0 => vec![Entry { key: "user".into(), value: VALUES[self.pick(2)].into() }],
            _ => (0..self.pick(4)).map(|_| self.entry()).collect(),
        }
    }

    fn descriptor(&mut self) -> RateLimitDescriptor {
        let most = [1, 4, 100, u32::MAX];
        RateLimitDescriptor {
            entries: self.entries(),
            hits_addend: match self.pick(32) {
                0 => Some(u64::MAX),
                1..4 => Some(self.pick(24) as u64),
                4..12 => Some(self.pick(3) as u64),
                _ => None,
            },
            is_negative_hits: self.pick(3) == 2,
            limit: (self.pick(8) == 7).then(|| RateLimitOverride {
                requests_per_unit: most[self.pick(most.len())],
                unit: self.pick(9) as i32,
            }),
        }
    }

    fn request(&mut self) -> RateLimitRequest {
        let hits_addend = [0, 1, 2, 7][self.pick(4)];
        let descriptors = (0..[1, 1, 1, 2, 3, 5, 1, 0][self.pick(8)]).map(|_| self.descriptor()).collect();
        RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend }
    }

    /// Overwrites, inserts or removes up to two bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..[0, 0, 1, 2][self.pick(4)] {
            let at = (self.pick(256) << 8 | self.pick(256)) % bytes.len();
            match self.pick(3) {
                0 => bytes[at] = self.pick(256) as u8,
                1 => bytes.insert(at, self.pick(256) as u8),
                _ => drop(bytes.remove(at)),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.0.len() == 0
    }
}

/// Plays the requests that each input makes, as `receive` hands them on.
fn fuzz(receive: impl Fn(RateLimitRequest, &mut Choices<'_>) -> Option<RateLimitRequest> + RefUnwindSafe) {
    let coverage = RlsCoverage::default();
    let reached = AssertUnwindSafe(&coverage);
    let input = bolero::check!().with_iterations(2_000).with_max_len(1_024);
    let input = input.with_generator(bolero::produce::<Vec<u8>>().with().len(16..512_usize));
    input.for_each(|bytes| {
        let mut choices = Choices(bytes.iter());
        let charging = [DescriptorCharging::AllOrNothing, DescriptorCharging::Independent][choices.pick(2)];
        let mut requests = Vec::new();
        while !choices.is_over() {
            let request = choices.request();
            requests.extend(receive(request, &mut choices));
        }
        check(charging, requests, &reached);
    });
    println!("{coverage:?}");
    let RlsCoverage { admitted, refused, refunded, at_user_limit } = coverage;
    let counts = [admitted, refused, refunded, at_user_limit].map(AtomicU64::into_inner);
    assert!(counts.iter().all(|count| *count > 500), "admitted, refused, refunded, at a limit: {counts:?}");
}

#[test]
fn fuzz_requests() {
    fuzz(|request, _| Some(request));
}

/// Messages with damaged bytes, some of which still decode.
#[test]
fn fuzz_messages() {
    let unreadable = AtomicU64::new(0);
    fuzz(|request, choices| {
        let mut bytes = request.encode_to_vec();
        choices.damage(&mut bytes);
        let decoded = RateLimitRequest::decode(bytes.as_slice()).ok();
        unreadable.fetch_add(u64::from(decoded.is_none()), Ordering::Relaxed);
        decoded
    });
    assert!(unreadable.into_inner() > 500);
}
