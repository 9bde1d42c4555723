//! Links from sub-agents' runs, in trees of their own, to their parents.

use std::{
    cell::RefCell,
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

/// The link from a sub-agent's run to its parent, which is in another tree.
#[derive(Debug)]
pub(crate) struct SubAgentLink {
    id: RunId,
    /// The parent that the run follows, and the grace; `None` if the run is detached.
    followed: Option<(Run, Duration)>,
}

impl SubAgentLink {
    /// Makes the link to `parent`; without a `grace` the run is detached from it.
    pub(super) fn to(parent: &Run, grace: Option<Duration>) -> Self {
        Self {
            id: parent.id(),
            followed: grace.map(|grace| (parent.clone(), grace)),
        }
    }
}

thread_local! {
    /// The parents that this thread has still to drop; `None` while it drops no link.
    static PARENTS: RefCell<Option<Vec<Run>>> = const { RefCell::new(None) };
}

impl Drop for SubAgentLink {
    /// Drops the parents above one by one, and not by recursion: a chain of sub-agents may be deep.
    fn drop(&mut self) {
        let mut next = self.followed.take().map(|(parent, _)| parent);
        let is_nested = PARENTS.try_with(|parents| match &mut *parents.borrow_mut() {
            Some(parents) => {
                parents.extend(next.take());
                true
            }
            none => {
                *none = Some(Vec::new());
                false
            }
        });
        if is_nested == Ok(true) {
            return;
        }
        while let Some(parent) = next {
            // The drop adds the parent of this parent, if it was the last handle.
            drop(parent);
            let taken = PARENTS.try_with(|parents| parents.borrow_mut().as_mut()?.pop());
            next = taken.unwrap_or_default();
        }
        let _thread_is_over = PARENTS.try_with(|parents| parents.take());
    }
}

/// A root, and the run of another tree with which the root ends.
struct FollowedParent {
    root: Arc<Node<NodeState>>,
    parent: Run,
    /// The time that the root's tree has after the end of its parent.
    grace: Duration,
}

/// A link to a sub-agent's run that is asked to stop when the run with the link ends.
pub(crate) type StopOnEnd = Weak<Node<NodeState>>;

impl Node<NodeState> {
    /// Closes the root of this node's tree if the parent that it follows has ended.
    ///
    /// The outermost parent is checked first, because [`check`](Node::check) of a node does not
    /// reach the run that its root follows.
    pub(super) fn stop_if_parent_ended(self: &Arc<Self>) {
        let Some(first) = self.followed_parent() else {
            return;
        };
        // The parents are walked without recursion: a chain of sub-agents may be deep.
        let mut path = vec![first];
        while let Some(link) = path
            .last()
            .and_then(|link| link.parent.node().followed_parent())
        {
            path.push(link);
        }
        while let Some(FollowedParent {
            root,
            parent,
            grace,
        }) = path.pop()
        {
            if let Err(end) = parent.node().check(parent.now(), TaskId::NONE) {
                let now = root.now();
                root.close(&end.reason, now.saturating_add(grace), now);
            }
        }
    }

    /// The parent that the root of this node's tree follows; `None` if it follows none.
    #[inline]
    fn followed_parent(self: &Arc<Self>) -> Option<FollowedParent> {
        let mut root = self;
        while let Some(parent) = root.parent() {
            root = parent;
        }
        let above = root.payload.rare_if_any()?.above.get()?;
        let (parent, grace) = above.followed.as_ref()?;
        Some(FollowedParent {
            root: Arc::clone(root),
            parent: parent.run(),
            grace: *grace,
        })
    }

    /// The id of the nearest run's parent; `None` if the run is not a sub-agent's.
    pub(in crate::run) fn parent_id(&self) -> Option<RunId> {
        let run = self.nearest_run();
        if let Some(parent) = run.parent() {
            return Some(parent.run_id());
        }
        let rare = run.payload.rare_if_any()?;
        rare.above.get().map(|above| above.id.clone())
    }

    /// Asks the sub-agents that follow this run to stop, because the run is over.
    pub(in crate::run) fn stop_sub_agents(&self, end: &End, later: &mut PendingWakes<NodeState>) {
        let Some(rare) = self.payload.rare_if_any() else {
            return;
        };
        let children = std::mem::take(&mut *rare.stop_on_end.lock());
        let children = children
            .into_iter()
            .map(|child| (child, end.reason.clone()));
        later.stop_requests.get_or_insert_default().extend(children);
        // A child that stops at once adds its own children to this queue, so there is no
        // recursion: a chain of sub-agents may be deep.
        if std::mem::replace(&mut later.is_stopping, true) {
            return;
        }
        let next = |later: &mut PendingWakes<NodeState>| later.stop_requests.as_mut()?.pop_front();
        while let Some((child, reason)) = next(later) {
            if let Some(child) = child.upgrade() {
                child.stop_for(&reason, later);
            }
        }
        later.is_stopping = false;
    }

    fn stop_for(&self, reason: &TerminalReason, later: &mut PendingWakes<NodeState>) {
        let rare = self.payload.rare_if_any();
        let followed = rare.and_then(|rare| rare.above.get()?.followed.as_ref());
        if let Some((_, grace)) = followed {
            let now = self.payload.now();
            let until = now.saturating_add(*grace);
            self.close_with(reason, until, now, later);
        }
    }
}
