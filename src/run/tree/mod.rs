//! The decision core of a run: one node of the tree, its latch, its clocks.
//!
//! Nothing here reads a clock, touches a socket or knows a runtime: `now` is
//! always a parameter, a [`Duration`](std::time::Duration) since the tree was
//! opened, and waking is done through plain [`Waker`](std::task::Waker)s that
//! the caller registered. That is what makes the rules testable against a
//! model.
//!
//! # Invariants
//!
//! 1. A node has at most one [`End`], and it never changes. Whoever comes
//!    later is kept in `also`.
//! 2. The end is stored in the whole subtree before any waker is called.
//! 3. A child that is opened under an ended node is ended from its birth.
//! 4. Deadlines only tighten, but for those that are limits to the head or to
//!    the commit: they lapse there.
//! 5. A node's end never reaches an ancestor.
//! 6. Below a node that is closing nothing is opened alive but the one call that
//!    is to be its last; it ends with the last one who works on it.
//!
//! # Locks
//!
//! Each node has one mutex for what is cold (children, waiters, step windows).
//! At most one of them is held at a time, and never while a waker or a hook
//! runs, so there is no lock order to get wrong.

mod check;
mod closing;
mod deadlines;
mod descendants;
mod end;
#[cfg(test)]
pub(crate) mod gap;
mod idle_window;
mod locked;
mod node;
mod pause;
#[cfg(test)]
mod tests;
mod waiters;

pub(crate) use self::{
    deadlines::{Announcement, Clock, Nanos, nanos},
    end::{End, EndHook, LimitHit, LimitKind, PendingWakes},
    idle_window::{IdleWindow, TaskId},
    node::Node,
    pause::Paused,
};
