//! The name of a run, and the registry that gave it.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicU64, Ordering},
};

use tokio::time::Instant;

use super::NodeState;
use crate::run::{
    handle::Run,
    id::RunId,
    report::{RunNotice, Trajectory},
    tree::Node,
};

/// The name of a registered run.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: RunId,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) registration: Weak<dyn Registration>,
    pub(crate) owner: u128,
    /// How often the name was opened, this time included.
    pub(crate) generation: u64,
    /// The number of the event that told of its end; 0 until then.
    pub(crate) told: AtomicU64,
    /// Where its registry has it, once that does.
    pub(crate) listed: OnceLock<EntryLocation>,
}

impl Identity {
    pub(crate) fn told(&self) -> Option<u64> {
        let number = self.told.load(Ordering::Acquire);
        (number > 0).then_some(number)
    }
}

/// Where a run is known: what its end looks up nowhere.
#[derive(Debug)]
pub(crate) struct EntryLocation {
    /// That of its key.
    pub(crate) hash: u64,
    pub(crate) place: Place,
    pub(crate) session: Option<Membership>,
}

/// Where an entry is, and its serial number: another one may be there later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) serial: u64,
    pub(crate) index: usize,
}

/// Where a run is among those of its session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    /// That of the session's name.
    pub(crate) hash: u64,
    pub(crate) slot: usize,
}

/// What a node tells the registry that it is enrolled in.
pub(crate) trait Registration: Send + Sync + std::fmt::Debug {
    /// Answers the number of the event; none if the end is not that of the run
    /// that stands under its name.
    fn ended(&self, node: &Node<NodeState>) -> Option<u64>;

    /// Answers the number of the event; none if the run is over, and this is not
    /// the `last` notice, of whoever ended it.
    fn notified(&self, node: &Node<NodeState>, notice: &RunNotice, last: bool) -> Option<u64>;

    /// Where the ends of its runs are written.
    fn trajectory(&self) -> Option<Trajectory>;

    /// Completes the run if it has been idle for too long; else answers when it
    /// can have been, if being idle ever ends it.
    fn idle(&self, node: &Node<NodeState>, now: Instant) -> Option<Instant>;

    /// Completes the run if nothing is in flight and all that it ever had were calls
    /// that were refused.
    fn refused(&self, node: &Node<NodeState>);

    /// Enrols a run that is no part of the tree of `node`, as its owner's and of its
    /// session: what is ended from outside, with or without it, ends as well.
    fn enrol_beside(self: Arc<Self>, node: &Node<NodeState>, child: &Run);
}

/// Dropped when the run has ended: it gives back what the run was counted as.
pub(crate) trait RunGuard: Send + Sync + std::fmt::Debug {}
