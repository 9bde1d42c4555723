//! Sub-agents that do not simply end with the run above them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    Run, RunId,
    core::{End, Node},
    info::Info,
};

/// What binds a run to the one that it is a sub-agent of, though it is a tree of
/// its own.
#[derive(Debug)]
pub(super) struct Above {
    id: RunId,
    /// None if it is detached.
    asking: Option<(Run, Duration)>,
}

/// A sub-agent that is asked to stop when this run ends.
pub(super) type Asked = Weak<Node<Info>>;

impl Run {
    /// Opens a sub-agent's run that lives on when this one ends. It knows its
    /// parent's id, and nothing else joins them: signs of life, tokens and work
    /// under way are each run's own, as are its deadlines.
    ///
    /// Under a run that is over it is opened alive. If this one is in a
    /// [`RunRegistry`](super::RunRegistry), so is the child, under an id that is made
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
        let child = Self::open();
        let above = Above {
            id: parent.id(),
            asking: grace.map(|grace| (parent.clone(), grace)),
        };
        child.node().payload.harness().set_above(above);
        parent.enrol_beside(&child);
        if grace.is_some() {
            let asked = Arc::downgrade(child.node());
            parent.node().payload.harness().ask_at_end(asked);
            // An end that came before it was listed did not see it.
            child.heed();
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

    /// Stops, if the run above it has ended or stops itself, and that one was to be
    /// heeded.
    pub(super) fn heed(&self) {
        let Some(harness) = self.nearest().payload.harness_if_any() else {
            return;
        };
        let Some((parent, grace)) = harness.above().and_then(|above| above.asking.as_ref()) else {
            return;
        };
        if parent.check().is_err() {
            let node = parent.node();
            let reason = node.nearest_end().map(|end| &end.reason);
            if let Some(reason) = reason.or_else(|| node.closing()) {
                let now = self.now();
                let until = now.saturating_add(*grace);
                self.nearest().close(reason, until, now);
            }
        }
    }
}

impl Node<Info> {
    /// The id of the run above the nearest one.
    pub(super) fn parent_id(&self) -> Option<RunId> {
        let run = self.nearest_run();
        if let Some(parent) = run.parent() {
            return Some(parent.run_id());
        }
        let harness = run.payload.harness_if_any()?;
        harness.above().map(|above| above.id.clone())
    }

    /// The run is over: who was to heed that is asked to stop.
    pub(super) fn ask_below(&self, end: &End) {
        let Some(harness) = self.payload.harness_if_any() else {
            return;
        };
        for asked in harness.asked() {
            let Some(child) = asked.upgrade() else {
                continue;
            };
            let harness = child.payload.harness_if_any();
            let asking = harness.and_then(|harness| harness.above()?.asking.as_ref());
            if let Some((_, grace)) = asking {
                let now = child.payload.now();
                child.close(&end.reason, now.saturating_add(*grace), now);
            }
        }
    }
}
