//! Leases: how a node decides most checks without a call to the store, and nothing is over-admitted.
//!
//! For each key in use, a node keeps the tokens that it has taken ahead (`credit`), the last reply of the store
//! (`last_reply`) and the rate of requests (`request_rate`). A check is paid from credit if there is enough, and refused if
//! the remembered state refuses it. Otherwise it joins the call that is under way for its key, or starts one
//! (`table`). Nothing in here reads a clock or does I/O: the driver beside it talks to Redis, and the simulation
//! runs the same code on virtual time.
//!
//! What keeps it exact:
//! 1. The store notes what is lent, and the refill stops short by it (see `lending.rs` in the core): level and lent
//!    tokens together never exceed the capacity.
//! 2. Credit expires when the store forgets it, at the end of the epoch after its own: 2 to 4 seconds after it was
//!    taken. That is counted from when the call was *sent*, less a thousandth, on a clock that also runs while the
//!    machine sleeps. In windows credit lives for one epoch at most, and never beyond the window.
//! 3. A report moves tokens out of what is lent: spent ones disappear, returned ones go to the level. It holds within
//!    the epoch or window of the tokens, and is not repeated if the store may have seen it. Expired tokens are not
//!    reported: they count as spent.
//! 4. A request with limits in several calls does not know yet whether it passes. Its calls take their tokens as lent
//!    (`TakeMode::Tentative`), and its credit is reserved. When all limits have decided, [`LeaseTable::resolve`] commits or
//!    releases all of it. What is released is credit; under `strict` rules, and in logs, it is returned.
//! 5. Never leased: logs, and rules that are `strict` or queue.
//! 6. Credit of a limit whose numbers have changed is returned, not spent; or dropped, if its windows have another
//!    length now.
//!
//! How much is taken ahead (`table`, `Lease::prefetch`):
//! 1. What the client's rate at this node needs within the horizon, but not for longer than credit lives, and at most
//!    a quarter of what is left, divided by the number of nodes.
//! 2. All nodes together hold at most a hundredth of the capacity. The script enforces it for buckets (`lent_limit`),
//!    and one node of several takes at most half of it. Windows do not note what is lent: each node has its share.
//! 3. A key below two tokens a second takes at most a 500th of the capacity, divided by the number of nodes. That
//!    much is not worth a call of its own, and may expire.
//! 4. While a client sends more than its limit, calls are 100 ms apart, or half the time to full if that is shorter,
//!    and a call takes what came in. This may be more than a hundredth: the client spends it at once.
//! 5. Credit that is idle is returned: after two intervals without a request, or four times the mean gap, up to
//!    0.7 s, if that is longer. Credit that was too little for a request is returned with the call for that request.
//!
//! What is decided from the last reply:
//! 1. A cached refusal is the state that the store returned, applied to this request's cost: a refused cost of 10
//!    does not block a cost of 1. It is used for 250 ms, and ends with a change of the rule or when this node
//!    returns tokens.
//! 2. While the store cannot be asked, a refusal holds until its own retry time, and credit is spent until it
//!    expires. Everything else is left to the failure policy.
//! 3. While calls are held apart, the wait that a refusal tells ends with the next call at the earliest.
//!
//! Calls and waiters:
//! 1. For a group of limits of one client there is one call at a time. The requests that come meanwhile are in a
//!    queue and are served in order, each whole: from what the reply lends, or by the next call.
//! 2. A call belongs to the key, not to a request. If the waiter of a request is gone, tokens that were lent, or
//!    count in a window, are released; a debit of a bucket stays.
//! 3. A call that takes too long leaves its waiters to the failure policy. Its reply still counts: what it lends is
//!    credit, and tokens taken for requests that were denied are released if they were lent or count in a window.
//!
//! What keeps it cheap: spent tokens are reported with the next call. A call of their own is made only if the bucket
//! is full but for them, so that its refill waits, and if they are more than this node's part of a hundredth of the
//! capacity.

mod credit;
mod last_reply;
mod request_rate;
mod table;

pub use table::{
    Executed, LeaseCheck, LeaseSettings, LeaseTable, PendingGroupId, PendingLeaseCheck, ReservedTokens,
    StoreCall, Verdict, Waiter,
};
