//! Windows whose length is edited while the clock is behind the state: the script, its twin, the embedded algorithm and
//! the next read agree, on numbers worked out by hand.

use super::{SECOND_US, ScriptCall, Scripted, ask, at};
use tollgate_core::algorithm::{Algorithm, StateCell};
use tollgate_core::lending::StoredState;
use tollgate_core::limit::{Limit, LimitSize, LimitState};
use tollgate_core::script::{ReplyState, ScriptReply};
use tollgate_core::state_address::StateField;
use tollgate_core::virtual_store::VirtualStore;

/// Windows of 7 s and of 10 s both begin here.
const ORIGIN_US: u64 = 1_700_000_050 * SECOND_US;
const LIMIT: u32 = 10;
const KEY: &str = "{edited}";

/// One request. Times are in microseconds after the origin.
struct EditedStep {
    window_s: u64,
    at_us: u64,
    cost: u32,
    admitted: bool,
    remaining: u32,
    retry_us: u64,
    /// What is kept: the start of the window in seconds, its count, and that of the window before.
    kept: (u64, u32, u32),
}

const fn step(
    (window_s, at_us, cost): (u64, u64, u32),
    (admitted, remaining, retry_us): (bool, u32, u64),
    kept: (u64, u32, u32),
) -> EditedStep {
    EditedStep { window_s, at_us, cost, admitted, remaining, retry_us, kept }
}

impl EditedStep {
    fn limit(&self, algorithm: Algorithm) -> Limit {
        let window_us = Some(self.window_s * SECOND_US);
        let size = LimitSize { capacity: Some(LIMIT.into()), rate: None, window_us };
        Limit::new("edited", algorithm, size).unwrap()
    }

    fn cell(&self) -> StateCell {
        let (start_s, major, minor) = self.kept;
        StateCell { instant: at(ORIGIN_US + start_s * SECOND_US), grain: 0, major, minor }
    }
}

fn cell_of(reply: &ScriptReply) -> StateCell {
    match reply.charges[0].state {
        ReplyState::Stored(StoredState { cell: Some(cell), .. }) => cell,
        ref other => panic!("{other:?}"),
    }
}

fn agree(algorithm: Algorithm, steps: &[EditedStep]) {
    let mut scripted = Scripted::start();
    let mut twin: VirtualStore<()> = VirtualStore::default();
    let mut embedded: Option<LimitState> = None;
    let field = StateField::new(1 << 40, None);
    for (index, row) in steps.iter().enumerate() {
        let (limit, now_us) = (row.limit(algorithm), ORIGIN_US + row.at_us);
        let case = format!("{algorithm:?}, step {index}: {} s at {}", row.window_s, row.at_us);
        let call = ask(&limit, field, row.cost);
        let reply = scripted.charge_one(now_us, KEY, &call);
        assert_eq!(reply, twin.charge(&(), &call, at(now_us)), "{case}");
        assert_eq!(reply.admitted[0] == 1, row.admitted, "{case}: {reply:?}");
        assert_eq!(cell_of(&reply), row.cell(), "{case}");

        let (stepped, next) = limit.step_state(embedded.as_ref(), at(now_us), row.cost);
        embedded = next.or(embedded);
        let answer = (stepped.admitted, stepped.remaining, stepped.retry_after_us);
        assert_eq!(answer, (row.admitted, row.remaining, row.retry_us), "{case}");
        assert_eq!(embedded, Some(LimitState::Cell(row.cell())), "{case}");

        let read = ScriptCall { runs: Default::default(), ..call };
        let found = scripted.charge_one(now_us, KEY, &read);
        assert_eq!(found, twin.charge(&(), &read, at(now_us)), "{case}: the next read");
        assert_eq!(found.charges[0].state, reply.charges[0].state, "{case}: the next read");
        let ReplyState::Stored(state) = &found.charges[0].state else { panic!("{case}: {found:?}") };
        assert_eq!(state.available(limit.meter(), at(now_us)), row.remaining, "{case}: the next read");
    }
}

#[test]
fn a_sliding_counter_is_edited_while_the_clock_is_behind() {
    let steps = [
        step((10, 15_000_000, 4), (true, 6, 0), (10, 4, 0)),
        step((10, 23_000_000, 3), (true, 4, 0), (20, 3, 4)),
        // The state's window begins at 20 s, within the window of 7 s that begins at 14 s: 4·2/7 + 3.
        step((7, 19_000_000, 5), (true, 0, 0), (14, 8, 4)),
        // Before that window too the clock stands still at its start: 4 + 8, of which the 4 have faded to 1 after 5.25 s.
        step((7, 13_000_000, 1), (false, 0, 6_250_000), (14, 8, 4)),
        step((7, 19_249_999, 1), (false, 0, 1), (14, 8, 4)),
        step((7, 19_250_000, 1), (true, 0, 0), (14, 9, 4)),
        // Back to windows of 10 s, that of 14 s lies in the one of 10 s: 4·2/10 + 9.
        step((10, 18_000_000, 1), (false, 0, 2_000_000), (14, 9, 4)),
        step((10, 20_000_000, 1), (true, 0, 0), (20, 1, 9)),
        step((7, 12_500_000, 1), (false, 0, 2_277_778), (20, 1, 9)),
        // 14 s are more than a window ahead: the counts are moved to the present, 9·0.5/7 + 1.
        step((7, 6_500_000, 2), (true, 6, 0), (0, 3, 9)),
    ];
    agree(Algorithm::SlidingWindowCounter, &steps);
}

#[test]
fn a_fixed_window_is_edited_while_the_clock_is_behind() {
    let steps = [
        step((10, 15_000_000, 4), (true, 6, 0), (10, 4, 0)),
        step((10, 23_000_000, 3), (true, 7, 0), (20, 3, 0)),
        // The state's window begins at 20 s, within the window of 7 s that begins at 14 s.
        step((7, 19_000_000, 5), (true, 2, 0), (14, 8, 0)),
        step((7, 13_000_000, 3), (false, 2, 8_000_000), (14, 8, 0)),
        step((7, 20_999_999, 3), (false, 2, 1), (14, 8, 0)),
        step((7, 21_000_000, 3), (true, 7, 0), (21, 3, 0)),
        step((10, 19_500_000, 8), (false, 7, 10_500_000), (21, 3, 0)),
        step((10, 19_500_000, 7), (true, 0, 0), (20, 10, 0)),
        step((7, 13_500_000, 1), (false, 0, 7_500_000), (20, 10, 0)),
        // 20 s are more than a window ahead: the count is moved to the present, also by a refusal.
        step((7, 12_000_000, 1), (false, 0, 2_000_000), (7, 10, 0)),
    ];
    agree(Algorithm::FixedWindow, &steps);
}
