//! Any bytes as a call: no panic, a status for each descriptor, and never more admitted than the limits allow.

use prost::Message;
use std::sync::Arc;
use tollgate_core::rules::load;
use tollgate_http::HeaderOptions;
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tollgate_server::rls_door::DescriptorCharging;
use tollgate_server::rls_door::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
};
use tollgate_server::{Readiness, RlsDoor};

/// Every descriptor is limited by the rule, whatever its entries.
const RULES: &str = "
rules:
  - { id: everything, key: all, algorithm: fixed_window, limit: 20/day }
  - { id: users, match: { exactly: [user] }, key: user, limit: 3/day }
";
const QUOTA: u64 = 20;

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

/// The tokens of the rule for everything that an answer takes, and those that it gives back.
fn taken_and_refunded(
    request: &RateLimitRequest,
    answer: &RateLimitResponse,
    charging: DescriptorCharging,
) -> (u128, u128) {
    let is_charged = |code: Code| match charging {
        DescriptorCharging::AllOrNothing => answer.overall_code() == Code::Ok,
        DescriptorCharging::Independent => code == Code::Ok,
    };
    let (mut taken, mut refunded) = (0, 0);
    for (one, status) in request.descriptors.iter().zip(&answer.statuses) {
        if one.limit.is_some() || !is_charged(status.code()) {
            continue;
        }
        let hits = u128::from(one.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1))));
        *(if one.is_negative_hits { &mut refunded } else { &mut taken }) += hits;
    }
    (taken, refunded)
}

fn check(charging: DescriptorCharging, requests: impl IntoIterator<Item = RateLimitRequest>) {
    let door = door(charging);
    let mut used: u128 = 0;
    for request in requests {
        let Some(answer) = decide(&door, &request) else {
            assert!(request.descriptors.is_empty(), "{request:?}");
            continue;
        };
        verify(&request, &answer);
        let (taken, refunded) = taken_and_refunded(&request, &answer, charging);
        used += taken;
        // What is given back in the request itself comes last.
        assert!(used <= u128::from(QUOTA), "{used} used: {request:?}");
        used = used.saturating_sub(refunded);
    }
}

#[test]
fn fuzz_messages() {
    let input = bolero::check!().with_iterations(5_000).with_max_len(512);
    input.with_type::<(bool, Vec<Vec<u8>>)>().for_each(|(independent, messages)| {
        let charging =
            if *independent { DescriptorCharging::Independent } else { DescriptorCharging::AllOrNothing };
        check(charging, messages.iter().filter_map(|bytes| RateLimitRequest::decode(bytes.as_slice()).ok()));
    });
}

type FuzzedDescriptor = (Vec<(u8, String)>, Option<u64>, bool, Option<(u32, i32)>);

/// Messages that are well-formed: keys that mean something, and paths and costs of any kind.
#[test]
fn fuzz_requests() {
    const KEYS: [&str; 10] =
        ["user", "path", "remote_address", "tenant", "api_key", "method", "route", "ip", "x", ""];
    let input = bolero::check!().with_iterations(2_000).with_max_len(1_024);
    let input = input.with_type::<(bool, Vec<(u32, Vec<FuzzedDescriptor>)>)>();
    input.for_each(|(independent, requests)| {
        let descriptor = |(entries, hits, is_negative, limit): &FuzzedDescriptor| RateLimitDescriptor {
            entries: entries
                .iter()
                .map(|(key, value)| Entry {
                    key: KEYS[usize::from(*key) % KEYS.len()].into(),
                    value: if key % 2 == 0 { value.clone().into() } else { format!("/{value}").into() },
                })
                .collect(),
            // Small costs are the ones that pass.
            hits_addend: hits.map(|hits| if hits % 4 == 0 { hits } else { hits % 7 }),
            is_negative_hits: *is_negative,
            limit: limit
                .map(|(requests, unit)| RateLimitOverride { requests_per_unit: requests, unit: unit % 9 }),
        };
        let requests = requests.iter().map(|(hits, descriptors)| RateLimitRequest {
            domain: "edge".to_owned(),
            descriptors: descriptors.iter().map(descriptor).collect(),
            hits_addend: hits % 5,
        });
        let charging =
            if *independent { DescriptorCharging::Independent } else { DescriptorCharging::AllOrNothing };
        check(charging, requests);
    });
}
