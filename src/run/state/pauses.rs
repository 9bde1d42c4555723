//! The pauses of a run that hold its turns, and the order of the turns that wait.

use std::{
    collections::BTreeSet,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::NodeState;
use crate::{
    lock::Lock,
    run::{limit_kind::LimitHit, reason::TerminalReason, tree::Node},
};

/// The pauses of one run, and the turns that wait.
#[derive(Debug, Default)]
pub(in crate::run) struct TurnPauses {
    /// Whether the state is not empty. Without a pause a turn takes no lock.
    any: AtomicBool,
    state: Lock<PauseState>,
}

/// The layer that holds a turn: each holds its turns in an order of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBy {
    TurnCap,
    TokenCap,
}

#[derive(Debug, Default)]
pub(in crate::run) struct PauseState {
    /// Since when the run is suspended by hand.
    pub(in crate::run) suspended: Option<Duration>,
    pub(in crate::run) at_cap: Option<PausedAtCap>,
    /// The tickets of the turns that each layer holds.
    pub(in crate::run) waiting: [BTreeSet<u64>; 2],
    tickets: u64,
}

/// The pause of a run at a cap.
#[derive(Debug)]
pub(in crate::run) struct PausedAtCap {
    pub(in crate::run) reason: TerminalReason,
    pub(in crate::run) limit: LimitHit,
    pub(in crate::run) since: Duration,
    /// The runs of sub-agents whose clocks stand for this pause.
    pub(in crate::run) below: Vec<Weak<Node<NodeState>>>,
}

impl TurnPauses {
    /// Whether a pause is on, or a turn waits.
    #[inline]
    pub(in crate::run) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(in crate::run) fn is_suspended(&self) -> bool {
        self.any() && self.state.lock().suspended.is_some()
    }

    /// Calls `act` with the state.
    pub(in crate::run) fn with<T>(&self, act: impl FnOnce(&mut PauseState) -> T) -> T {
        let mut state = self.state.lock();
        let result = act(&mut state);
        self.any.store(!state.is_empty(), Ordering::Release);
        result
    }
}

impl PauseState {
    fn is_empty(&self) -> bool {
        let waits = self.waiting.iter().any(|tickets| !tickets.is_empty());
        self.suspended.is_none() && self.at_cap.is_none() && !waits
    }

    /// The ticket of one more turn that this layer holds, behind all others.
    pub(in crate::run) fn queue(&mut self, held_by: HeldBy) -> u64 {
        self.tickets += 1;
        self.waiting[held_by as usize].insert(self.tickets);
        self.tickets
    }

    /// Whether this layer holds a turn that came before the one with this ticket, or before one
    /// without.
    pub(in crate::run) fn is_behind(&self, held_by: HeldBy, ticket: Option<u64>) -> bool {
        let first = self.waiting[held_by as usize].first();
        first.is_some_and(|first| ticket.is_none_or(|ticket| *first < ticket))
    }

    /// The number of turns that wait.
    pub(in crate::run) fn held(&self) -> usize {
        self.waiting.iter().map(BTreeSet::len).sum()
    }
}
