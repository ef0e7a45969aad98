//! Reset markers: how a node tells the others that a client was reset.
//!
//! States are reset in the store. What else a node has of a client are its own holds and penalties, credit of windows,
//! and the last replies of the store. The node that resets a client writes a marker to every shard, in a list of its own,
//! and sends it as a message to the nodes that subscribe to changes of the control plane. Each node also reads the list
//! with its next heartbeat: a message may be missed.
//!
//! A marker is about identities, because each node hashes them with a seed of its own. The store never has them in clear:
//! a marker is sealed (AES-128-GCM) with a key that is derived from the fleet's secret, and is kept for half a minute.

use crate::StoreCore;
use crate::fleet::bytes_of;
use crate::script_call::NamedScript;
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use parking_lot::Mutex;
use redis::Value;
use std::collections::VecDeque;
use std::sync::LazyLock;
use tollgate_core::heartbeat;
use tollgate_core::state_address::FleetSecret;
use tollgate_limiter::{ClientIdentities, StoreUnavailable};

/// Markers are recognised by their nonces; so many are remembered.
const MOST_SEEN: usize = 4 * heartbeat::MOST_MARKERS;
/// Longer markers are not written, and not read.
const LONGEST_MARKER: usize = 16 << 10;

static MARK: LazyLock<NamedScript> = LazyLock::new(|| NamedScript::new(heartbeat::MARK_SCRIPT));

type MarkerNonce = [u8; NONCE_LEN];

/// The markers that this node has read.
#[derive(Debug, Default)]
pub(crate) struct ResetMarkers {
    seen: Mutex<VecDeque<MarkerNonce>>,
    /// Not followed yet.
    clients: Mutex<Vec<ClientIdentities>>,
}

impl ResetMarkers {
    /// The clients that were reset since the last call.
    pub(crate) fn take(&self) -> Vec<ClientIdentities> {
        std::mem::take(&mut self.clients.lock())
    }

    /// Whether a marker with this nonce is new.
    fn is_new(&self, nonce: MarkerNonce) -> bool {
        let mut seen = self.seen.lock();
        if seen.contains(&nonce) {
            return false;
        }
        if seen.len() == MOST_SEEN {
            seen.pop_front();
        }
        seen.push_back(nonce);
        true
    }

    /// Takes in the markers that a heartbeat has returned.
    pub(crate) fn note_all(&self, markers: &Value, secret: FleetSecret) {
        let Value::Array(markers) = markers else { return };
        for marker in markers.iter().filter_map(bytes_of).take(heartbeat::MOST_MARKERS) {
            self.note(marker, secret);
        }
    }

    /// Takes in a marker.
    fn note(&self, marker: &[u8], secret: FleetSecret) {
        let nonce = marker.first_chunk::<NONCE_LEN>();
        let Some(nonce) = nonce.filter(|_| marker.len() <= LONGEST_MARKER) else { return };
        if !self.is_new(*nonce) {
            return;
        }
        match open(marker, *nonce, secret) {
            Some(client) => {
                let mut clients = self.clients.lock();
                if clients.len() < MOST_SEEN {
                    clients.push(client);
                }
            }
            None => {
                tracing::warn!("reset marker in the store cannot be read; another node uses another secret");
            }
        }
    }
}

impl StoreCore {
    /// Takes in a marker that came as a message.
    pub(crate) fn note_marker(&self, marker: &[u8]) {
        if let Some(addresses) = &*self.addresses() {
            self.markers.note(marker, addresses.secret());
        }
    }

    /// Writes a marker to every shard, and sends it to the other nodes. One shard that has it is enough.
    pub(crate) async fn mark_reset(&self, client: &ClientIdentities) -> Result<(), StoreUnavailable> {
        let secret = self.addresses().as_ref().map(|addresses| addresses.secret()).ok_or(StoreUnavailable)?;
        let (nonce, marker) = seal(client, secret).ok_or(StoreUnavailable)?;
        // This node has followed it already.
        self.markers.is_new(nonce);
        let channel = heartbeat::resets_channel(&self.settings.prefix).into_bytes();
        let mut is_written = false;
        for shard in self.servers.shards() {
            let key = heartbeat::markers_key(&self.settings.prefix, &self.servers.own_tag(&shard));
            let arguments = |_: &_| vec![marker.clone(), channel.clone()];
            is_written |= self.run_script(&MARK, &[key.into_bytes()], arguments).await.is_ok();
        }
        if is_written { Ok(()) } else { Err(StoreUnavailable) }
    }
}

fn key_of(secret: FleetSecret) -> Option<LessSafeKey> {
    let key = UnboundKey::new(&AES_128_GCM, &secret.derived("reset marker")).ok()?;
    Some(LessSafeKey::new(key))
}

/// The nonce, and the marker that begins with it.
fn seal(client: &ClientIdentities, secret: FleetSecret) -> Option<(MarkerNonce, Vec<u8>)> {
    let mut nonce = [0; NONCE_LEN];
    aws_lc_rs::rand::fill(&mut nonce).ok()?;
    let mut text = serde_json::to_vec(&client.0).ok()?;
    key_of(secret)?
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut text)
        .ok()?;
    let marker = [&nonce[..], &text].concat();
    (marker.len() <= LONGEST_MARKER).then_some((nonce, marker))
}

fn open(marker: &[u8], nonce: MarkerNonce, secret: FleetSecret) -> Option<ClientIdentities> {
    let mut sealed = marker.get(NONCE_LEN..)?.to_vec();
    let nonce = Nonce::assume_unique_for_key(nonce);
    let text = key_of(secret)?.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
    serde_json::from_slice(text).ok().map(ClientIdentities)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_once_and_only_with_the_secret() {
        let (secret, other) = (FleetSecret([1; 16]), FleetSecret([2; 16]));
        let client = ClientIdentities::one("api_key", "sk_live_1");
        let (_, marker) = seal(&client, secret).unwrap();
        assert!(!marker.windows(4).any(|part| part == b"live"), "not in clear");
        let list = |marker: &[u8]| Value::Array(vec![Value::BulkString(marker.to_vec())]);
        let markers = ResetMarkers::default();
        markers.note_all(&list(&marker), secret);
        markers.note(&marker, secret);
        assert_eq!(markers.take(), [client]);
        assert_eq!(markers.take(), []);
        let foreign = ResetMarkers::default();
        foreign.note_all(&list(&marker), other);
        for end in 0..marker.len() {
            foreign.note(&marker[..end], secret);
        }
        foreign.note_all(&Value::Array(vec![Value::Nil, Value::Int(7)]), secret);
        foreign.note_all(&Value::Nil, secret);
        assert_eq!(foreign.take(), []);
    }
}
