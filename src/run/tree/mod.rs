//! The decision core of a run: the tree's nodes, their ends and their clocks.
//!
//! The module reads no clock, touches no socket and knows no runtime. `now` is always a
//! parameter, a time since the tree was opened; an end calls plain
//! [`Waker`](std::task::Waker)s that the waiting tasks registered. So a test can compare the
//! rules with a reference implementation, without a runtime.
//!
//! # Invariants
//!
//! 1. A node has at most one [`End`], which never changes. Later reasons are kept in `also`,
//!    eight at most, but not the reasons of settlements.
//! 2. The end is stored in the whole subtree before any waker is called.
//! 3. A child that is opened under an ended node is ended from its birth.
//! 4. Deadlines only tighten, with three exceptions: the program can move the ceiling and the
//!    timeout of a node once, an attempt's share of the time lapses at the commit of its answer,
//!    and announced deadlines can be withdrawn.
//! 5. A node's end never reaches an ancestor, except that a run of one call ends with the call.
//! 6. A node that is opened below a closing node is over from its birth, with two exceptions: the
//!    run's last call with its attempts; and, after a closing at a cap, what is opened below a call
//!    that was open before. The closing node ends at the latest when no work and no task is left at
//!    or below it, or at its drain deadline if that is sooner.
//!
//! # Locks
//!
//! Each node has one mutex for its cold data (children, waiters, and all windows of silence but
//! the first), and one for the deadlines that callers announced. A thread holds at most one of all
//! these at a time, and none while it calls a waker or a hook, so no lock order exists that could
//! be violated.

mod check;
mod clocks;
mod closing;
mod end;
mod idle_window;
mod nanos;
mod node;
mod node_kind;
mod pauses;
mod propagation;
mod small_slab;
#[cfg(test)]
mod tests;
mod waiters;

pub use self::node_kind::NodeKind;

pub(crate) use self::{
    clocks::{Announcement, Clock},
    end::End,
    idle_window::{IdleState, IdleWindow, TaskId, WindowKind},
    nanos::{NEVER, Nanos, nanos},
    node::{EndHook, Node, PendingWakes},
};

#[cfg(test)]
pub(crate) use self::propagation::gap;
