//! Random requests; every kind of rule applies to some of them.

use fastrand::Rng;
use std::net::IpAddr;
use tollgate_limiter::{Door, Method, Request};

const KEYS: [&str; 22] = [
    "alice",
    "bob",
    "sk_prod_1",
    "sk_prod_2",
    "sk_prod_vip_001",
    "sk_free_1",
    "sk_free_2",
    "sk_free_winner_2026",
    "sk_pro_1",
    "sk_ent_1",
    "sk_ent_initech",
    "sk_gold_1",
    "sk_gold_2",
    "sk_gold_vip",
    "sk_internal_ci",
    "sk_revoked_9",
    "sk_late",
    "acme-corp",
    "pk_acme",
    "pk_globex",
    "pk_loadtest",
    "pk_revoked_7",
];
const USERS: [&str; 4] = ["ann", "ben", "cleo", "dan"];
const TENANTS: [&str; 3] = ["north", "south", "sk_late"];
const ADDRESSES: [&str; 9] = [
    "203.0.113.9",
    "203.0.113.10",
    "::ffff:203.0.113.9",
    "10.1.2.3",
    "198.51.100.7",
    "192.0.2.1",
    "2001:db8::1",
    "2001:db8::2",
    "2001:db8:0:1::1",
];
const ENDPOINTS: [&str; 24] = [
    "",
    "/",
    "/hello",
    "/v1/orders",
    "/v1/orders/7?page=2",
    "/V1/Orders/",
    "/v1/customers",
    "/v1/reports/daily",
    "/v1/things/1",
    "/v1/things/2#top",
    "/v2/a",
    "/v2/b",
    "/users",
    "/users/42",
    "/users/42/photos",
    "/search",
    "/Search/;v=1?q=x",
    "/login",
    "/leaky",
    "/spaced",
    "/export",
    "/reports",
    "/reports",
    "/edge",
];
const METHODS: [Method; 5] = [Method::Get, Method::Post, Method::Put, Method::Delete, Method::Other];
const IDS: [&[(&str, &str)]; 4] = [
    &[("invoice", "EU-17")],
    &[("invoice", "EU-18")],
    &[("invoice", "US-1"), ("tier", "gold")],
    &[("device", "d1"), ("invoice", "EU-17")],
];

/// Requests with one count have the same limits: the tier follows from the API key, and users have none.
pub fn draw(rng: &mut Rng) -> Request<'static> {
    // A few clients are busy, most are not: buckets run empty, and selections are both cached and not cached.
    let busy = rng.u8(..) < 120;
    let most = |len: usize| if busy { len.min(4) } else { len };
    let pick = |rng: &mut Rng, from: &[&'static str]| from[rng.usize(..most(from.len()))];
    let api_key = (rng.u8(..) < 190).then(|| KEYS[rng.usize(..KEYS.len())]);
    Request {
        api_key,
        user: (rng.u8(..) < 130).then(|| pick(rng, &USERS)),
        tenant: (rng.u8(..) < 60).then(|| pick(rng, &TENANTS)),
        ip: (rng.u8(..) < 150).then(|| pick(rng, &ADDRESSES).parse::<IpAddr>().unwrap()),
        tier: tier(api_key),
        ids: if rng.u8(..) < 50 { IDS[rng.usize(..IDS.len())] } else { &[] },
        domain: (rng.u8(..) < 40).then_some("envoy"),
        endpoint: ENDPOINTS[rng.usize(..ENDPOINTS.len())],
        method: (rng.u8(..) < 220).then(|| METHODS[rng.usize(..METHODS.len())]),
        cost: cost(rng),
        priority: None,
        door: Door::Library,
    }
}

/// The tier that the caller of some clients knows.
fn tier(api_key: Option<&str>) -> Option<&'static str> {
    match api_key? {
        "alice" => Some("gold"),
        "bob" => Some("pro"),
        "sk_late" => Some("unheard-of"),
        _ => None,
    }
}

/// Mostly 1, often a few, sometimes invalid.
fn cost(rng: &mut Rng) -> u64 {
    match rng.u8(..) {
        0..=160 => 1,
        161..=230 => rng.u64(2..=6),
        231..=250 => rng.u64(7..=40),
        251..=253 => rng.u64(..=20_000),
        254 => 0,
        255 => u64::MAX,
    }
}
