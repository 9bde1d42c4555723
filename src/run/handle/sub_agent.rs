//! Runs of sub-agents in trees of their own, which their parent's end does not cut at once.

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
    root: Run,
    parent: Run,
    /// The time that the root's tree has after the end of its parent.
    grace: Duration,
}

/// A link to a sub-agent's run that is asked to stop when the run with the link ends.
pub(crate) type StopOnEnd = Weak<Node<NodeState>>;

impl Run {
    /// Opens a sub-agent's run that lives on when this run ends.
    ///
    /// A detached run stores its parent's id. Signs of life, tokens, running work and deadlines of
    /// either run have no effect on the other.
    ///
    /// A detached child of a run that is over is opened alive. If this run or one above it is in a
    /// [`RunRegistry`](crate::RunRegistry), the child is in that registry too, under a generated
    /// id, with the same owner and session. Such a child ends when the session is aborted or the
    /// registry is shut down, and completes when it is idle. In a registry that is shut down
    /// already, the child is over from its birth.
    #[must_use]
    pub fn child_detached(&self) -> Self {
        self.open_sub_agent(None)
    }

    /// Opens a sub-agent's run that is asked to stop when this run ends.
    ///
    /// Once the parent has ended, a child that is asked to stop starts no work, and its running
    /// work goes on. The child ends with its parent's reason when the last work is done, at the
    /// latest `grace` after it was asked. The child's end leaves this run alone.
    ///
    /// In other respects the sub-agent's run is like a [detached](Self::child_detached) one. Under
    /// a run that is over the sub-agent's run is over from its birth.
    #[must_use]
    pub fn child_asked(&self, grace: Duration) -> Self {
        self.open_sub_agent(Some(grace))
    }

    fn open_sub_agent(&self, grace: Option<Duration>) -> Self {
        let parent = self.run();
        parent.run_state().set_used();
        let child = Self::open_root();
        let above = SubAgentLink {
            id: parent.id(),
            followed: grace.map(|grace| (parent.clone(), grace)),
        };
        // The link is set only once, here.
        let _set_before = child.run_state().rare().above.set(above);
        parent.enrol_sub_agent(&child);
        child.spans().trace_run(Some(self.spans()));
        if grace.is_some() {
            let stop_on_end = Arc::downgrade(child.node());
            let rare = parent.run_state().rare();
            rare.add_stop_on_end(stop_on_end);
            // An end that came before the child was listed did not reach it.
            child.stop_if_parent_ended();
        }
        child
    }

    fn enrol_sub_agent(&self, child: &Self) {
        let mut nodes = self.node().path();
        if let Some(node) = nodes.find(|node| node.payload.identity().is_some()) {
            if let Some(registration) = node.payload.registration() {
                registration.enrol_sub_agent(node, child);
            }
        }
    }

    /// Closes the root of this node's tree if the parent that it follows has ended.
    ///
    /// The outermost parent is checked first, because [`check`](Node::check) of a node does not
    /// reach the run that its root follows.
    pub(in crate::run) fn stop_if_parent_ended(&self) {
        let Some(first) = self.followed_parent() else {
            return;
        };
        // The parents are walked without recursion: a chain of sub-agents may be deep.
        let mut path = vec![first];
        while let Some(link) = path.last().and_then(|link| link.parent.followed_parent()) {
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
                root.node()
                    .close(&end.reason, now.saturating_add(grace), now);
            }
        }
    }

    /// The parent that the root of this node's tree follows; `None` if it follows none.
    #[inline]
    fn followed_parent(&self) -> Option<FollowedParent> {
        let mut root = self.node();
        while let Some(parent) = root.parent() {
            root = parent;
        }
        let above = root.payload.rare_if_any()?.above.get()?;
        let (parent, grace) = above.followed.as_ref()?;
        Some(FollowedParent {
            root: Self::of(Arc::clone(root)),
            parent: parent.run(),
            grace: *grace,
        })
    }
}

impl Run {
    /// Makes this run, which has no work yet, the sub-agent of a parent that is over or closing: it
    /// ends as the parent does.
    pub(crate) fn end_with_parent(&self, parent: &Self) {
        let above = SubAgentLink {
            id: parent.id(),
            followed: None,
        };
        // Another request may have named the parent before.
        let _set_before = self.run_state().rare().above.set(above);
        self.node().follow(parent.node());
    }
}

impl Node<NodeState> {
    /// The id of the nearest run's parent; `None` if the run is no sub-agent's.
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
