//! The replay of a sample under one rule set.

use super::{PreviewCounts, PreviewTotals, SampledRequest};
use crate::decision::{Outcome, validate};
use crate::request::Request;
use crate::rules::compile::LoadedRules;
use crate::rules::selection::Charges;
use crate::rules::virtual_node::{InFlightLimits, VirtualNode, charges};
use crate::time::UnixTime;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How often the time is checked, in decisions.
const DECISIONS_PER_CHECK: u32 = 256;

/// The states of a replay, and what it has counted.
pub(super) struct Replay<'r> {
    loaded: &'r LoadedRules,
    node: VirtualNode,
    samples: &'r [SampledRequest],
    clients: &'r [usize],
    streams: Vec<RequestStream<'r>>,
    /// The next request of each sample.
    due: BinaryHeap<Reverse<(UnixTime, usize)>>,
    committed: ReplayCounts,
    /// What was counted since the last commit.
    pending: Vec<CountedRequests>,
    since_check: u32,
    /// A refused request is refused until its retry time. With penalties, each refusal counts.
    may_skip: bool,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEnd {
    Complete,
    Interrupted,
}

/// The requests that a sample stands for.
struct RequestStream<'r> {
    /// Those left.
    left: u32,
    /// The time between two of them.
    gap_us: u64,
    /// How often each counts.
    counted: u64,
    charges: Option<Charges<'r>>,
}

/// What the requests of one client came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientCounts {
    pub(super) requests: u64,
    pub(super) refused: u64,
}

#[derive(Default)]
struct ReplayCounts {
    totals: PreviewTotals,
    rules: Vec<PreviewCounts>,
    clients: Vec<ClientCounts>,
}

struct CountedRequests {
    client: usize,
    rule: Option<u32>,
    outcome: CountedOutcome,
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CountedOutcome {
    Admitted,
    Limited,
    Denied,
    Unlimited,
    Invalid,
}

impl<'r> Replay<'r> {
    /// `clients` has the client of each sample, below `client_count`.
    pub(super) fn new(
        loaded: &'r LoadedRules,
        samples: &'r [SampledRequest],
        clients: &'r [usize],
        client_count: usize,
    ) -> Self {
        let (streams, due) = streams(samples, clients, client_count);
        let rules = loaded.rules.rules();
        Self {
            loaded,
            node: VirtualNode::new(InFlightLimits::Ignored),
            samples,
            clients,
            streams,
            due,
            committed: ReplayCounts {
                totals: PreviewTotals::default(),
                rules: vec![PreviewCounts::default(); rules.len()],
                clients: vec![ClientCounts::default(); client_count],
            },
            pending: Vec::new(),
            since_check: 0,
            may_skip: !loaded.rules.has_penalties(),
        }
    }

    /// Replays all requests before `end`.
    pub(super) fn run_until(&mut self, end: UnixTime, may_continue: &mut impl FnMut() -> bool) -> SliceEnd {
        while let Some(Reverse((now, index))) = self.due.pop_if_before(end) {
            self.since_check += 1;
            if self.since_check >= DECISIONS_PER_CHECK {
                self.since_check = 0;
                if !may_continue() {
                    return SliceEnd::Interrupted;
                }
            }
            self.decide(index, now, end);
        }
        SliceEnd::Complete
    }

    /// Counts what was replayed since the last commit.
    pub(super) fn commit(&mut self) {
        let ReplayCounts { totals, rules, clients } = &mut self.committed;
        for CountedRequests { client, rule, outcome, count } in self.pending.drain(..) {
            let client = &mut clients[client];
            client.requests += count;
            if matches!(outcome, CountedOutcome::Limited | CountedOutcome::Denied) {
                client.refused += count;
            }
            *match outcome {
                CountedOutcome::Admitted => &mut totals.admitted,
                CountedOutcome::Limited => &mut totals.limited,
                CountedOutcome::Denied => &mut totals.denied,
                CountedOutcome::Unlimited => &mut totals.unlimited,
                CountedOutcome::Invalid => &mut totals.invalid,
            } += count;
            if let Some(rule) = rule.and_then(|rule| rules.get_mut(rule as usize)) {
                let is_admitted = outcome == CountedOutcome::Admitted;
                *(if is_admitted { &mut rule.admitted } else { &mut rule.limited }) += count;
            }
        }
    }

    /// The time of the next request.
    pub(super) fn next_time(&self) -> Option<UnixTime> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn totals(&self) -> PreviewTotals {
        self.committed.totals
    }

    /// What each rule decided, in the order of the rule set.
    pub(super) fn rules(&self) -> &[PreviewCounts] {
        &self.committed.rules
    }

    pub(super) fn clients(&self) -> &[ClientCounts] {
        &self.committed.clients
    }

    /// Decides the next request of a sample, and those after it before `end` that are refused with it.
    fn decide(&mut self, index: usize, now: UnixTime, end: UnixTime) {
        let fields = &self.samples[index].fields;
        let ids: Vec<(&str, &str)> = fields.ids.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let request: Request<'_> = fields.as_request(&ids);
        let stream = &mut self.streams[index];
        let charges = stream.charges.get_or_insert_with(|| charges(&self.loaded.rules, &request));
        let decided =
            validate(&request).and_then(|()| self.node.check_charges(self.loaded, &request, charges, now));
        let rule_of = |limit| Some(self.loaded.rules.owner_index(limit));
        let mut refused_until = None;
        let (outcome, rule) = match decided {
            Err(_) => (CountedOutcome::Invalid, None),
            Ok(Outcome::Unlimited) => (CountedOutcome::Unlimited, None),
            Ok(Outcome::Denied) => (CountedOutcome::Denied, None),
            Ok(Outcome::Admitted(status)) => (CountedOutcome::Admitted, rule_of(status.limit)),
            Ok(Outcome::Limited(status)) => {
                refused_until = status.wait_us().filter(|_| self.may_skip).map(|wait_us| now + wait_us);
                (CountedOutcome::Limited, rule_of(status.limit))
            }
        };
        let mut count = 1;
        stream.left -= 1;
        let mut next = now + stream.gap_us;
        if let Some(until) = refused_until {
            let until = until.min(end);
            let skipped = until.since(next).div_ceil(stream.gap_us.max(1)).min(stream.left.into());
            let skipped = if next < until { skipped } else { 0 };
            stream.left -= skipped as u32;
            next += skipped * stream.gap_us;
            count += skipped;
        }
        let client = self.clients[index];
        self.pending.push(CountedRequests { client, rule, outcome, count: count * stream.counted });
        if stream.left > 0 {
            self.due.push(Reverse((next, index)));
        } else {
            stream.charges = None;
        }
    }
}

/// The requests of each sample, and when the first of each is due.
fn streams<'r>(
    samples: &[SampledRequest],
    clients: &[usize],
    client_count: usize,
) -> (Vec<RequestStream<'r>>, BinaryHeap<Reverse<(UnixTime, usize)>>) {
    let mut sampled = vec![0_u32; client_count];
    clients.iter().for_each(|client| sampled[*client] += 1);
    let start = samples.first().map_or(UnixTime::default(), |first| first.at);
    let mut last: Vec<Option<UnixTime>> = vec![None; client_count];
    let mut due = BinaryHeap::with_capacity(samples.len());
    let mut streams = Vec::with_capacity(samples.len());
    for (index, (sample, client)) in samples.iter().zip(clients).enumerate() {
        let weight = sample.weight.max(1);
        let is_single = sampled[*client] == 1;
        let (left, counted) = if is_single { (1, u64::from(weight)) } else { (weight, 1) };
        let since = last[*client].replace(sample.at).unwrap_or(start).min(sample.at);
        let gap_us = sample.at.since(since) / u64::from(left);
        // The last of them is due at the time of the sample.
        let first = if left == 1 {
            sample.at
        } else {
            sample.at.shifted_by(-((gap_us * u64::from(left - 1)) as i64))
        };
        due.push(Reverse((first, index)));
        streams.push(RequestStream { left, gap_us, counted, charges: None });
    }
    (streams, due)
}

/// Pops the next request if it is due before a time.
trait PopBefore {
    fn pop_if_before(&mut self, end: UnixTime) -> Option<Reverse<(UnixTime, usize)>>;
}

impl PopBefore for BinaryHeap<Reverse<(UnixTime, usize)>> {
    fn pop_if_before(&mut self, end: UnixTime) -> Option<Reverse<(UnixTime, usize)>> {
        if self.peek().is_some_and(|Reverse((at, _))| *at < end) { self.pop() } else { None }
    }
}
