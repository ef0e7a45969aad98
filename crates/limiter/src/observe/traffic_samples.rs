//! Recent requests, from which a preview tells what other rules would have done to them.
//!
//! Of the observed decisions a share is kept for five minutes, in fixed memory: the fields that rules look at, the time,
//! and the number of requests that a sample stands for. Samples are in memory only. Keeping one allocates nothing and
//! takes a lock for as long as a few hundred bytes are copied; reading them takes it for a few samples at a time.

use crate::limiter::Limiter;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;
use tollgate_core::rate::SECOND_US;
use tollgate_core::request::{Method, Request};
use tollgate_core::rules::SampledRequest;
use tollgate_core::rules::short_forms::AddressText;
use tollgate_core::rules::written::RuleTestRequest;
use tollgate_core::time::UnixTime;

/// How long a sample is kept.
const KEPT_US: u64 = 300 * SECOND_US;
const MOST_SAMPLES: usize = 20_000;
/// With the fixed parts, 8 MiB.
const TEXT_BYTES: usize = 6 << 20;
/// Requests with longer texts are left out.
const LONGEST: usize = 4 << 10;
/// How many samples a second fit for the time that they are kept.
const PER_SECOND: u32 = (MOST_SAMPLES as u64 * SECOND_US / KEPT_US) as u32;
const LARGEST_SHARE: u32 = 4_096;
/// The samples that are copied under one lock.
const COPIED_AT_ONCE: usize = 128;
/// The texts of a request beside its custom identities.
const TEXTS: usize = 6;

/// The samples of a limiter.
pub(crate) struct TrafficSamples {
    ring: Mutex<SampleRing>,
}

struct SampleRing {
    samples: VecDeque<KeptSample>,
    /// The number of the first of `samples` since the start.
    first: u64,
    text: Box<[u8]>,
    /// Where the next text is written.
    head: usize,
    share: KeptShare,
}

/// The fixed part of a sample.
struct KeptSample {
    at: UnixTime,
    weight: u32,
    cost: u64,
    ip: Option<IpAddr>,
    method: Option<Method>,
    /// The length of each text.
    lengths: [Option<u16>; TEXTS],
    /// The number of custom identities. The lengths of their names and values precede the texts.
    ids: u8,
    text: Range<usize>,
}

/// Which of the observed requests are kept: one in `every`, at random distances, so that no more are kept than fit.
struct KeptShare {
    every: u32,
    until_next: u32,
    /// By how much the next sample counts.
    drawn: u32,
    second: u64,
    offered: u32,
}

impl std::fmt::Debug for TrafficSamples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TrafficSamples(…)")
    }
}

impl Limiter {
    /// Keeps a sample of the requests of the last five minutes, for [`Limiter::recent_requests`]. It takes 8 MiB.
    #[must_use]
    pub fn keeping_samples(mut self) -> Self {
        self.observation.samples = Some(Box::new(TrafficSamples::new()));
        self
    }

    /// The sample of the requests of the last five minutes, in the order of their times; none unless they are
    /// [kept](Limiter::keeping_samples).
    pub fn recent_requests(&self) -> Vec<SampledRequest> {
        let samples = self.observation.samples.as_ref();
        samples.map(|samples| samples.since(self.clock().now())).unwrap_or_default()
    }

    /// Keeps an observed request of this weight, if it is due.
    pub(crate) fn keep_sample(&self, request: &Request<'_>, weight: u32) {
        if let Some(samples) = &self.observation.samples {
            samples.ring.lock().offer(request, weight, self.clock().now());
        }
    }
}

impl TrafficSamples {
    fn new() -> Self {
        let ring = SampleRing {
            samples: VecDeque::with_capacity(MOST_SAMPLES),
            first: 0,
            text: vec![0; TEXT_BYTES].into_boxed_slice(),
            head: 0,
            share: KeptShare { every: 1, until_next: 1, drawn: 1, second: 0, offered: 0 },
        };
        Self { ring: Mutex::new(ring) }
    }

    fn since(&self, now: UnixTime) -> Vec<SampledRequest> {
        let mut found = Vec::new();
        let mut next = 0;
        loop {
            // Decisions must not wait until all are copied.
            let ring = self.ring.lock();
            let start = ring.first.max(next);
            let from = (start - ring.first) as usize;
            let before = found.len();
            let some = ring.samples.iter().skip(from).take(COPIED_AT_ONCE);
            found.extend(
                some.clone().filter(|sample| now.since(sample.at) < KEPT_US).map(|sample| ring.copy(sample)),
            );
            let seen = some.count();
            debug_assert!(found.len() - before <= seen);
            next = start + seen as u64;
            if seen == 0 {
                break;
            }
        }
        // Threads read the clock before they take the lock.
        found.sort_by_key(|sample| sample.at);
        found
    }
}

impl SampleRing {
    fn offer(&mut self, request: &Request<'_>, weight: u32, now: UnixTime) {
        let Some(share) = self.share.take(now) else { return };
        let texts = texts(request);
        let ids: usize = request.ids.iter().map(|(name, value)| 4 + name.len() + value.len()).sum();
        let length = ids + texts.iter().flatten().map(|text| text.len()).sum::<usize>();
        if length > LONGEST || request.ids.len() > usize::from(u8::MAX) {
            return;
        }
        let start = self.make_room(length, now);
        let mut writer = &mut self.text[start..start + length];
        for part in request.ids.iter().flat_map(|(name, value)| [name, value]) {
            write(&mut writer, &(part.len() as u16).to_le_bytes());
        }
        for part in request.ids.iter().flat_map(|(name, value)| [name, value]) {
            write(&mut writer, part.as_bytes());
        }
        for text in texts.into_iter().flatten() {
            write(&mut writer, text.as_bytes());
        }
        self.head = start + length;
        self.samples.push_back(KeptSample {
            at: now,
            weight: weight.saturating_mul(share),
            cost: request.cost,
            ip: request.ip,
            method: request.method,
            lengths: texts.map(|text| text.map(|text| text.len() as u16)),
            ids: request.ids.len() as u8,
            text: start..start + length,
        });
    }

    /// Frees `length` bytes at the head, and drops old samples.
    fn make_room(&mut self, length: usize, now: UnixTime) -> usize {
        while self.samples.len() >= MOST_SAMPLES
            || self.samples.front().is_some_and(|oldest| now.since(oldest.at) >= KEPT_US)
        {
            self.drop_oldest();
        }
        if self.samples.is_empty() {
            self.head = 0;
        }
        if self.head + length > self.text.len() {
            // The rest of the ring stays unused in this round.
            while self.samples.front().is_some_and(|oldest| oldest.text.start >= self.head) {
                self.drop_oldest();
            }
            self.head = 0;
        }
        let wanted = self.head..self.head + length;
        while self
            .samples
            .front()
            .is_some_and(|oldest| oldest.text.start < wanted.end && wanted.start < oldest.text.end)
        {
            self.drop_oldest();
        }
        wanted.start
    }

    fn drop_oldest(&mut self) {
        if self.samples.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn copy(&self, sample: &KeptSample) -> SampledRequest {
        let (lengths, mut rest) =
            self.text[sample.text.clone()].split_at_checked(4 * usize::from(sample.ids)).unwrap_or_default();
        let mut next = |length: usize| {
            let (part, after) = rest.split_at_checked(length).unwrap_or_default();
            rest = after;
            String::from_utf8_lossy(part).into_owned()
        };
        let mut lengths =
            lengths.chunks_exact(2).map(|pair| usize::from(u16::from_le_bytes([pair[0], pair[1]])));
        let mut ids = std::collections::BTreeMap::new();
        while let (Some(name), Some(value)) = (lengths.next(), lengths.next()) {
            ids.insert(next(name), next(value));
        }
        let [key, user, tenant, tier, domain, endpoint] =
            sample.lengths.map(|length| length.map(|length| next(length.into())));
        let method = sample.method.map(|method| {
            let known = Method::NAMED.iter().find(|(_, known)| *known == method);
            known.map_or("OTHER", |(name, _)| name).to_owned()
        });
        SampledRequest {
            at: sample.at,
            weight: sample.weight,
            fields: RuleTestRequest {
                key,
                user,
                tenant,
                ip: sample.ip.map(AddressText),
                tier,
                ids,
                domain,
                endpoint,
                method,
                cost: Some(sample.cost),
            },
        }
    }
}

fn texts<'r>(request: &Request<'r>) -> [Option<&'r str>; TEXTS] {
    let Request { api_key, user, tenant, tier, domain, .. } = *request;
    // Without the query: rules do not look at it.
    [api_key, user, tenant, tier, domain, Some(request.path())]
}

fn write(to: &mut &mut [u8], bytes: &[u8]) {
    let (here, after) = std::mem::take(to).split_at_mut(bytes.len());
    here.copy_from_slice(bytes);
    *to = after;
}

impl KeptShare {
    /// Counts an observed request; if it is kept, by how much it counts.
    fn take(&mut self, now: UnixTime) -> Option<u32> {
        let second = now.as_us() / SECOND_US;
        if second != self.second {
            let is_next = second == self.second + 1;
            self.every = if is_next { self.offered.div_ceil(PER_SECOND).clamp(1, LARGEST_SHARE) } else { 1 };
            (self.second, self.offered) = (second, 0);
        }
        self.offered += 1;
        // A burst must not fill the ring before the second is over.
        if self.offered >= 8 * PER_SECOND * self.every && self.every < LARGEST_SHARE {
            self.every *= 2;
        }
        self.until_next = self.until_next.saturating_sub(1);
        if self.until_next > 0 {
            return None;
        }
        let share = self.drawn;
        self.drawn = self.every;
        self.until_next = if self.every == 1 { 1 } else { fastrand::u32(1..2 * self.every) };
        Some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> SampleRing {
        TrafficSamples::new().ring.into_inner()
    }

    const START: UnixTime = UnixTime::from_us(1_800_000_000 * SECOND_US);

    #[test]
    fn a_sample_has_the_fields_of_its_request() {
        let samples = TrafficSamples::new();
        let request = Request {
            api_key: Some("k"),
            tenant: Some(""),
            ip: Some([192, 0, 2, 1].into()),
            tier: Some("pro"),
            ids: &[("b", "ü"), ("a", "")],
            endpoint: "/x/y?secret=1",
            method: Some(Method::Put),
            cost: 7,
            ..Request::default()
        };
        samples.ring.lock().offer(&request, 3, START);
        let found = samples.since(START + 1);
        let ids = [("a", ""), ("b", "ü")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let fields = RuleTestRequest {
            key: Some("k".to_owned()),
            tenant: Some(String::new()),
            ip: Some(AddressText([192, 0, 2, 1].into())),
            tier: Some("pro".to_owned()),
            ids: ids.into(),
            endpoint: Some("/x/y".to_owned()),
            method: Some("PUT".to_owned()),
            cost: Some(7),
            ..RuleTestRequest::default()
        };
        assert_eq!(found, [SampledRequest { at: START, weight: 3, fields }]);
        assert!(samples.since(START + KEPT_US).is_empty());
    }

    /// Each kept sample is intact, whatever was overwritten, and the sum of the weights is about the number of requests.
    #[test]
    fn memory_is_fixed_and_old_samples_are_replaced() {
        fastrand::seed(7);
        let mut ring = ring();
        let (mut rng, mut now) = (fastrand::Rng::with_seed(7), START);
        let long = "x".repeat(LONGEST);
        for round in 0..120_000_u64 {
            now += rng.u64(..3_000);
            // The key says how long the path is.
            let length = rng.usize(..LONGEST - 100);
            let key = format!("{length}");
            let request = Request { api_key: Some(&key), endpoint: &long[..length], ..Request::default() };
            ring.offer(&request, 1, now);
            if round % 10_000 == 0 {
                ring.offer(&Request { user: Some(&long), endpoint: "/", ..Request::default() }, 1, now);
            }
        }
        assert!(ring.samples.len() <= MOST_SAMPLES && ring.samples.len() > 1_000, "{}", ring.samples.len());
        let mut last = UnixTime::default();
        for sample in &ring.samples {
            let SampledRequest { at, fields, .. } = ring.copy(sample);
            assert_eq!(fields.endpoint.map(|path| path.len().to_string()), fields.key);
            assert!(at >= last);
            last = at;
        }
    }

    #[test]
    fn weights_add_up_at_every_rate() {
        fastrand::seed(8);
        for per_second in [10, 60, 500, 20_000] {
            let (mut ring, mut now) = (ring(), START);
            let request = Request { api_key: Some("k"), endpoint: "/a", ..Request::default() };
            for _ in 0..per_second * 20 {
                now += SECOND_US / per_second;
                ring.offer(&request, 2, now);
            }
            let sum: u64 = ring.samples.iter().map(|sample| u64::from(sample.weight)).sum();
            let ratio = sum as f64 / (per_second * 40) as f64;
            assert!((0.9..1.1).contains(&ratio), "{per_second}: {ratio}");
            let is_exact = ring.samples.iter().all(|sample| sample.weight == 2);
            assert_eq!(is_exact, per_second <= 60, "{per_second}");
            assert!(ring.samples.len() <= MOST_SAMPLES);
        }
    }
}
