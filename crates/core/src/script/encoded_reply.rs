//! Encodes a reply as the script does. Only tests use it: they pass it to [`ScriptReply::decode`], intact and damaged.

use super::{ChargeCall, NARROW, ReplyState, ScriptCall, ScriptReply, WIDE, class, uint};
use crate::lending::StoredState;

impl ScriptReply {
    /// The bytes in which the script would return this reply to `call`.
    pub fn encode(&self, call: &ScriptCall) -> Vec<u8> {
        if let Some(state) = self.state_if_plain(call) {
            return [b"=", &*state].concat();
        }
        let mut out = vec![b'+'];
        for (number, admitted) in self.admitted.iter().enumerate() {
            uint(&mut out, (*admitted).into(), 4);
            for reply in &self.charges {
                if let Some(counted) = reply.counted.get(number) {
                    uint(&mut out, (*counted).into(), 4);
                }
                if let ReplyState::Log(statuses) = &reply.state {
                    uint(&mut out, statuses[number].remaining.into(), 4);
                    uint(&mut out, statuses[number].retry_after_us, 7);
                    uint(&mut out, statuses[number].reset_after_us, 7);
                }
            }
        }
        for (charge, reply) in call.charges.iter().zip(&self.charges) {
            if let ReplyState::Stored(state) = &reply.state {
                uint(&mut out, reply.lent.into(), 4);
                let state = encode_state(charge, state);
                out.push(state.len() as u8);
                out.extend(state);
            }
        }
        out
    }

    /// Only the state is returned if all requests of one plain token bucket are admitted.
    fn state_if_plain(&self, call: &ScriptCall) -> Option<Vec<u8>> {
        let ([charge], [run], [reply]) = (&*call.charges, &*call.runs, &*self.charges) else { return None };
        let ReplyState::Stored(state) = &reply.state else { return None };
        let all_admitted = run.repeats > 0 && self.admitted.first() == Some(&run.repeats);
        (charge.is_plain() && all_admitted && state.lent.total() == 0).then(|| encode_state(charge, state))
    }
}

/// The counterpart of `read_state`.
fn encode_state(charge: &ChargeCall, state: &StoredState) -> Vec<u8> {
    let Some(cell) = state.cell else { return Vec::new() };
    let (format, count_bytes) = if cell.major < 1 << 16 { (NARROW, 2) } else { (WIDE, 4) };
    let mut out = vec![format as u8, class(&charge.meter)];
    uint(&mut out, cell.instant.as_us(), 7);
    uint(&mut out, cell.grain.into(), 2);
    uint(&mut out, cell.major.into(), count_bytes);
    uint(&mut out, cell.minor.into(), 4);
    if state.lent.total() > 0 {
        for part in [state.lent.epoch, state.lent.current, state.lent.previous] {
            uint(&mut out, part.into(), 4);
        }
    }
    out
}
