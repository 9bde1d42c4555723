//! Sub-agents that do not simply end with the run above them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::run::{
    handle::Run,
    id::RunId,
    reason::TerminalReason,
    state::NodeState,
    tree::{End, Node, PendingWakes, TaskId},
};

/// What binds a run to the one that it is a sub-agent of, though it is a tree of
/// its own.
#[derive(Debug)]
pub(crate) struct SubAgentLink {
    id: RunId,
    /// None if it is detached.
    asking: Option<(Run, Duration)>,
}

/// A sub-agent that is asked to stop when this run ends.
pub(crate) type StopOnEnd = Weak<Node<NodeState>>;

impl Run {
    /// Opens a sub-agent's run that lives on when this one ends. It knows its
    /// parent's id, and nothing else joins them: signs of life, tokens and work
    /// under way are each run's own, as are its deadlines.
    ///
    /// Under a run that is over it is opened alive. If this one is in a
    /// [`RunRegistry`](crate::registry::RunRegistry), so is the child, under an id that is made
    /// up: as the same owner's and of the same session it ends when that session is
    /// aborted or the registry shut down, and completes when it is idle.
    #[must_use]
    pub fn child_detached(&self) -> Self {
        self.open_beside(None)
    }

    /// Opens a sub-agent's run that is asked to stop when this one ends: it then
    /// starts nothing new, what is under way goes on, and it ends with its
    /// parent's reason when the last of it is done, `grace` after the parent at
    /// the latest. Its own end leaves this one alone.
    ///
    /// Else it is as [detached](Self::child_detached). Under a run that is over it
    /// is over from its birth.
    #[must_use]
    pub fn child_asked(&self, grace: Duration) -> Self {
        self.open_beside(Some(grace))
    }

    fn open_beside(&self, grace: Option<Duration>) -> Self {
        let parent = self.run();
        parent.node().payload.set_used();
        let child = Self::open();
        let above = SubAgentLink {
            id: parent.id(),
            asking: grace.map(|grace| (parent.clone(), grace)),
        };
        child.node().payload.harness().set_above(above);
        parent.enrol_beside(&child);
        if grace.is_some() {
            let asked = Arc::downgrade(child.node());
            parent.node().payload.harness().ask_at_end(asked);
            // An end that came before it was listed did not see it.
            child.stop_if_parent_ended();
        }
        child
    }

    fn enrol_beside(&self, child: &Self) {
        let node = self.nearest();
        let above = std::iter::once(node).chain(node.ancestors());
        let mut registered = above.filter(|node| node.payload.identity().is_some());
        let Some(node) = registered.next() else {
            return;
        };
        if let Some(registration) = node.payload.registration() {
            registration.enrol_beside(node, child);
        }
    }

    /// Stops, if the run above it has ended, and that one was to be heeded. Whoever
    /// reads no clock of its own above is looked at first.
    pub(in crate::run) fn stop_if_parent_ended(&self) {
        let Some((parent, _)) = self.asking() else {
            return;
        };
        // Without recursion: a chain of sub-agents may be deep.
        let mut path = vec![self.run(), parent];
        while let Some((parent, _)) = path.last().and_then(Self::asking) {
            path.push(parent);
        }
        while let (Some(parent), Some(child)) = (path.pop(), path.last()) {
            let checked = parent.node().check(parent.now(), TaskId::NONE);
            if let (Err(end), Some((_, grace))) = (checked, child.asking()) {
                let now = child.now();
                let until = now.saturating_add(grace);
                child.node().close(&end.reason, until, now);
            }
        }
    }

    /// The run that this one is to heed, and for how long it may go on after it.
    fn asking(&self) -> Option<(Self, Duration)> {
        let above = self.nearest().payload.harness_if_any()?.above()?;
        let (parent, grace) = above.asking.as_ref()?;
        Some((parent.run(), *grace))
    }
}

impl Node<NodeState> {
    /// The id of the run above the nearest one.
    pub(in crate::run) fn parent_id(&self) -> Option<RunId> {
        let run = self.nearest_run();
        if let Some(parent) = run.parent() {
            return Some(parent.run_id());
        }
        let harness = run.payload.harness_if_any()?;
        harness.above().map(|above| above.id.clone())
    }

    /// The run is over: who was to heed that is asked to stop.
    pub(in crate::run) fn ask_below(&self, end: &End, later: &mut PendingWakes<NodeState>) {
        let Some(harness) = self.payload.harness_if_any() else {
            return;
        };
        let asked = harness.asked().into_iter();
        let asked = asked.map(|child| (child, end.reason.clone()));
        later.asked.extend(asked);
        // One that stops at once asks those below it in turn: they wait for theirs,
        // for a chain of sub-agents may be deep.
        if std::mem::replace(&mut later.asking, true) {
            return;
        }
        while let Some((child, reason)) = later.asked.pop_front() {
            if let Some(child) = child.upgrade() {
                child.stop_for(&reason, later);
            }
        }
        later.asking = false;
    }

    fn stop_for(&self, reason: &TerminalReason, later: &mut PendingWakes<NodeState>) {
        let harness = self.payload.harness_if_any();
        let asking = harness.and_then(|harness| harness.above()?.asking.as_ref());
        if let Some((_, grace)) = asking {
            let now = self.payload.now();
            let until = now.saturating_add(*grace);
            self.close_with(reason, None, until, now, later);
        }
    }
}
