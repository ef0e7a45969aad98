//! Ports that nobody uses.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

/// Below those that the system gives to outgoing connections, so that none of these takes one away
/// between a server's end and its restart.
const RANGE: std::ops::Range<u16> = 10_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that is free now and was not given to anybody in this process. Another process may take it
/// first: who starts a server on it must look whether that worked, and ask for another.
pub(crate) fn free() -> u16 {
    loop {
        let port = fastrand::u16(RANGE);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && GIVEN.lock().insert(port) {
            return port;
        }
    }
}
