//! Free TCP ports.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

/// Below the ephemeral ports, so that no outgoing connection takes a port between the end of a server and its restart.
const RANGE: std::ops::Range<u16> = 10_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that is free now and was not returned before in this process. Another process may take it first: the caller
/// must check that its server started, and otherwise try another port.
pub(crate) fn free() -> u16 {
    loop {
        let port = fastrand::u16(RANGE);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && GIVEN.lock().insert(port) {
            return port;
        }
    }
}
