//! Leases: how most checks of a fleet are decided without asking the store, and yet nothing is over-admitted.
//!
//! For each key that is in use, a node keeps what it has taken ahead ([`credit`]), what the store last said
//! ([`memory`]), and how busy the key is ([`pace`]). A check spends credit if there is enough; is refused if
//! the store would refuse it; otherwise it joins the one call that is under way for its key, or starts it
//! ([`book`]). Nothing in here reads a clock or does I/O: the driver beside it talks to Redis, and the
//! simulation runs the very same code on virtual time.
//!
//! What keeps it exact:
//! 1. What is lent is remembered at the store, and the refill stops short by it (see `lending.rs` in the core):
//!    level and credit together never exceed the capacity.
//! 2. Credit dies when the store forgets it, counted from when the call was *sent*, on a clock that also runs
//!    while the machine sleeps; in windows, at the end of the window.
//! 3. Bringing back moves tokens from what is lent to the level, within the same epoch or window, and is
//!    never repeated.
//! 4. Never leased: logs, and rules that are `strict`.
//! 5. Taken ahead is for keys that this node sees at two tokens a second or more, for a fraction of a second or what
//!    the rule says, never for longer than it lives, and at most a share of what is left. A node that finds each
//!    time that nobody else has touched the key takes enough for two seconds: nobody misses them. And any key takes
//!    *small change*: for all nodes together less than a hundredth of the capacity and of what is left, and less than
//!    a sixteenth of what comes in while an epoch lasts. Where that is less than a token, quiet keys ask each time.
//! 6. A remembered refusal is the state that the store answered, asked with this request's cost: a refused
//!    cost of 10 does not block a cost of 1. It is believed for a second at most, and ends with a change of
//!    the rule or when this node brings tokens back.
//! 7. After a refusal the next call comes 50 ms after the last, and the wait that is promised says so.
//! 8. Who waits for a call is served in order, each whole. The call belongs to the key: who goes away leaves
//!    tokens that are brought back, not a leak.
//! 9. A call that takes too long leaves its waiters to the failure policy. Its answer still counts: what it
//!    lends is credit, what it took for waiters that were denied is brought back.
//! 10. A request with several limits pays from credit where there is some and asks for the rest; if one
//!     refuses, all is brought back at once. No transaction across slots is needed.
//! 11. Credit of a limit whose numbers have changed is not spent any more, and is brought back; or dropped, if
//!     its epochs have another length now.
//! 12. While the store is away, credit is spent to its deadline.
//!
//! What keeps it cheap: what was spent is reported with the next question, and by itself only if the bucket is
//! full but for it, so that its refill waits; what is too little to be missed is left to die.

mod book;
mod credit;
mod memory;
mod pace;

pub(crate) use book::{
    Asked, Book, Call, Charged, Checked, FlightId, Passed, Reserved, Settings, Steps, Verdict, Waiter,
};
