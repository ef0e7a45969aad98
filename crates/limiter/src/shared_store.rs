//! The seam for a store that nodes share.
//!
//! The engine decides with the embedded store, or hands the charges of a request to a [`SharedStore`]. The store decides
//! what it can on this node and asks its servers for the rest. The crate `tollgate-redis` implements it.

use crate::charge::OwnedCharge;
use crate::client_identities::ClientIdentities;
use smallvec::SmallVec;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::grant::{DrawOutcome, PoolDraw};
use tollgate_core::key::StateKey;
use tollgate_core::limit::{Limit, Meter};
use tollgate_core::request::Request;
use tollgate_core::rules::{Rule, RuleSet};
use tollgate_core::script::RequestStatus;
use tollgate_core::state_address::StateAddress;

/// Steps by the index of their charge.
pub type Steps = SmallVec<[(usize, LimitStep); 4]>;

/// A store that nodes share.
pub trait SharedStore: fmt::Debug + Send + Sync {
    /// Takes note of the rules that come into force.
    fn install(&self, rules: &RuleSet);

    /// The number of nodes that share the store, this one included.
    fn node_count(&self) -> u32;

    /// Whether no shard can be reached.
    fn is_unavailable(&self) -> bool;

    /// The address of a state; none as long as the store has never been reached. `route` is the hash of the request's
    /// route.
    fn locate(&self, rule: &Rule, limit: &Limit, request: &Request<'_>, route: u64) -> Option<StateAddress>;

    /// Charges a request of `cost`, all or nothing. `rules` is the number of the rule set in force, and `address` returns
    /// the address of the state of a charge. If the request is decided, `steps` has its steps: a value of that size is
    /// not returned, which would copy it several times.
    fn take(
        &self,
        charges: &[OwnedCharge],
        cost: u32,
        rules: u32,
        address: &dyn Fn(usize) -> Option<StateAddress>,
        steps: &mut Steps,
    ) -> SharedTake;

    /// The same for a request that other requests may still undo: what can be taken is reserved until
    /// [`PendingTake::resolve`].
    fn reserve(
        &self,
        charges: &[OwnedCharge],
        cost: u32,
        rules: u32,
        address: &dyn Fn(usize) -> Option<StateAddress>,
    ) -> Box<dyn PendingTake>;

    /// The steps of `charges`, if one is known to refuse. Spends nothing and calls no server.
    fn known_refusal(&self, charges: &[OwnedCharge], cost: u32, rules: u32) -> Option<Steps>;

    /// The last refusal of `charge` by the store, if its retry time has not come: it holds while the store cannot be
    /// asked.
    fn last_refusal(&self, charge: &OwnedCharge, cost: u32) -> Option<LimitStep>;

    /// A slot for a request in flight, not taken yet. `number` is unique on this node; the slot expires after
    /// `longest_us`.
    fn slot(&self, address: &StateAddress, number: u64, longest_us: u64) -> Box<dyn SharedSlot>;

    /// Reads states, without spending. The answers are in the order of the questions; none for a state that could not be
    /// read.
    fn peek(&self, states: Vec<StateQuestion>) -> PeekFuture<'_>;

    /// Gives tokens back to states: the cost of each question. A bucket rises to its capacity less what is lent, at most,
    /// and a window counts down to nothing. The answers are as those of [`SharedStore::peek`], with the wait of a request
    /// that costs 1; none for a state that was not changed, or of which that is not known. A future that is dropped after it was
    /// polled changes the states all the same.
    fn refund(&self, states: Vec<StateQuestion>) -> PeekFuture<'_>;

    /// Lets states start fresh, and tells the other nodes which client it was. Returns how many existed.
    fn reset<'s>(&'s self, states: Vec<StateQuestion>, client: &ClientIdentities) -> ResetFuture<'s>;

    /// The clients that were reset since the last call, also by other nodes.
    fn take_resets(&self) -> Vec<ClientIdentities>;

    /// Drops what this node keeps of the states of `charges`: last replies, and credit that the store does not count.
    fn forget(&self, charges: &[OwnedCharge]);

    /// The longest time that a decision waits for the store.
    fn timeout(&self) -> Duration;

    /// Draws `amount` tokens from the pools of grants, from all or from none; or returns them, if it is negative. It is done
    /// also if the answer is not waited for.
    fn draw(&self, pools: Vec<PoolDraw>, amount: i64) -> DrawFuture<'_>;

    /// How many tokens were drawn from the pool of the grant `id`.
    fn drawn<'s>(&'s self, id: &'s str) -> BalanceFuture<'s>;
}

/// The answer to [`SharedStore::draw`].
pub type DrawFuture<'s> = Pin<Box<dyn Future<Output = Result<DrawOutcome, StoreUnavailable>> + Send + 's>>;

/// The answer to [`SharedStore::drawn`].
pub type BalanceFuture<'s> = Pin<Box<dyn Future<Output = Result<u64, StoreUnavailable>> + Send + 's>>;

/// A state that an operator asks for.
#[derive(Clone, Debug)]
pub struct StateQuestion {
    /// The key of the state on this node.
    pub key: StateKey,
    /// The client's hash on this node.
    pub client: u64,
    /// The numbers of the limit.
    pub meter: Meter,
    /// Where the state is; none as long as the store has never been reached.
    pub address: Option<StateAddress>,
    /// The cost of a request whose wait is asked for, at least 1 and at most the limit.
    pub cost: u32,
    /// Whether the limit has a state for each route: then the one that routes share is meant as well.
    pub is_by_route: bool,
}

/// The state of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateAnswer {
    /// What is left, the wait of one more request, and the time until nothing is used.
    pub status: RequestStatus,
    /// The tokens that are lent to nodes.
    pub lent: u32,
}

/// The answer to [`SharedStore::peek`].
pub type PeekFuture<'s> = Pin<Box<dyn Future<Output = Vec<Option<StateAnswer>>> + Send + 's>>;

/// The answer to [`SharedStore::reset`].
pub type ResetFuture<'s> = Pin<Box<dyn Future<Output = Result<usize, StoreUnavailable>> + Send + 's>>;

/// The answer to [`SharedStore::take`].
#[derive(Debug)]
pub enum SharedTake {
    /// If no enforced step refuses, all are spent; otherwise none is.
    Decided,
    /// The servers have to be called.
    Pending(Box<dyn PendingTake>),
}

/// A take that waits for servers. Dropped before [`PendingTake::resolve`], it returns what is reserved for it.
pub trait PendingTake: fmt::Debug + Send + Sync {
    /// Waits until all servers have answered or timed out.
    fn poll_answered(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// The steps that are known, and the charges that the store could not decide: those without an answer, if the caller stops
    /// waiting.
    fn answers(&mut self) -> TakeAnswers;

    /// Spends what is reserved if the request has passed all of its limits, else returns it.
    fn resolve(&mut self, passed: Passed);
}

/// What servers have answered to a take.
#[derive(Clone, Debug, Default)]
pub struct TakeAnswers {
    /// The steps that are known.
    pub steps: Steps,
    /// The indices of the charges that the store could not decide.
    pub failed: SmallVec<[usize; 4]>,
}

/// Whether a request has passed all of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// All of them admit it.
    Yes,
    /// One refuses it.
    No,
}

/// A slot for a request in flight, counted over all nodes. Dropped, it is returned.
pub trait SharedSlot: fmt::Debug + Send + Sync {
    /// Asks the store for the slot, one of `limit`.
    fn take(&self, limit: u32) -> SlotFuture<'_>;

    /// Keeps the slot although the store does not answer. It is sent to the store as soon as that is reachable.
    fn hold(&mut self);
}

/// The answer to [`SharedSlot::take`].
pub type SlotFuture<'s> = Pin<Box<dyn Future<Output = Result<SlotTaken, StoreUnavailable>> + Send + 's>>;

/// The answer of the store about a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTaken {
    /// Whether the slot is taken.
    pub admitted: bool,
    /// How many slots are taken, this one included.
    pub taken: u32,
}

/// The store did not answer in time, or with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUnavailable;
