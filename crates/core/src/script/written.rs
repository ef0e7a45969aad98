//! An answer as the script writes it. No node sends one: tests feed it to [`ScriptReply::decode`], whole and damaged.

use super::{ChargeCall, NARROW, ReplyState, ScriptCall, ScriptReply, WIDE, class, uint};
use crate::lending::StoredState;

impl ScriptReply {
    /// The bytes in which the script would give this answer to `ask`, which must be the one that it answers.
    pub fn encode(&self, ask: &ScriptCall) -> Vec<u8> {
        if let Some(state) = self.state_if_plain(ask) {
            return [b"=", &*state].concat();
        }
        let mut out = vec![b'+'];
        for (number, passing) in self.admitted.iter().enumerate() {
            uint(&mut out, (*passing).into(), 4);
            for answer in &self.charges {
                if let Some(counted) = answer.counted.get(number) {
                    uint(&mut out, (*counted).into(), 4);
                }
                if let ReplyState::Log(standings) = &answer.state {
                    uint(&mut out, standings[number].remaining.into(), 4);
                    uint(&mut out, standings[number].retry_after_us, 7);
                    uint(&mut out, standings[number].reset_after_us, 7);
                }
            }
        }
        for (charge, answer) in ask.charges.iter().zip(&self.charges) {
            if let ReplyState::Stored(account) = &answer.state {
                uint(&mut out, answer.lent.into(), 4);
                let state = state(charge, account);
                out.push(state.len() as u8);
                out.extend(state);
            }
        }
        out
    }

    /// The state alone says it all if all requests to one plain token bucket passed.
    fn state_if_plain(&self, ask: &ScriptCall) -> Option<Vec<u8>> {
        let ([charge], [run], [answer]) = (&*ask.charges, &*ask.runs, &*self.charges) else { return None };
        let ReplyState::Stored(account) = &answer.state else { return None };
        let all_passed = run.repeats > 0 && self.admitted.first() == Some(&run.repeats);
        (charge.is_plain() && all_passed && account.lent.total() == 0).then(|| state(charge, account))
    }
}

/// The counterpart of `read_account`.
fn state(charge: &ChargeCall, account: &StoredState) -> Vec<u8> {
    let Some(cell) = account.cell else { return Vec::new() };
    let (format, count_bytes) = if cell.major < 1 << 16 { (NARROW, 2) } else { (WIDE, 4) };
    let mut out = vec![format as u8, class(&charge.meter)];
    uint(&mut out, cell.instant_us, 7);
    uint(&mut out, cell.grain.into(), 2);
    uint(&mut out, cell.major.into(), count_bytes);
    uint(&mut out, cell.minor.into(), 4);
    if account.lent.total() > 0 {
        for part in [account.lent.epoch, account.lent.current, account.lent.previous] {
            uint(&mut out, part.into(), 4);
        }
    }
    out
}
