//! Opens runs, their sub-agents' runs and the nodes below them, and puts calls into requests.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{Run, SubAgentLink};
use crate::run::{
    reason::TerminalReason,
    state::{NodeState, Settlement},
    tree::{Node, NodeKind, TaskId},
};

impl Run {
    /// Opens a new run, the root of a tree of its own.
    ///
    /// The run's clock starts now. The run ends by [`end`](Self::end), or by a limit, a layer or a
    /// registry that acts on the run; a finished answer does not end it.
    #[must_use]
    pub fn open() -> Self {
        let run = Self::open_root();
        run.spans().trace_run(None);
        run
    }

    /// Opens a new run as [`open`](Self::open) does, but without a span.
    ///
    /// A run that a request opens needs no span beside that of its call, and under a lock the
    /// program's subscriber must not be called.
    pub(crate) fn open_root() -> Self {
        Self::open_aged(Duration::ZERO)
    }

    /// Opens a new run, as [`open_root`](Self::open_root) does, that was opened elsewhere this long
    /// ago.
    pub(crate) fn open_aged(age: Duration) -> Self {
        let number = fastrand::u64(..);
        let now = Instant::now();
        let state = NodeState::root(now.checked_sub(age).unwrap_or(now), number);
        Self(Node::root(NodeKind::Run, number, state))
    }

    /// Opens a sub-agent's run below this node.
    ///
    /// A run that this method opens ends when this node ends. Its own end ends no node above it.
    #[must_use]
    pub fn child(&self) -> Self {
        let child = self.open_below(NodeKind::Run);
        child.spans().trace_run(Some(self.spans()));
        child
    }

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

    /// Opens a call of this run and puts it into the request, where the layers find it.
    ///
    /// The first layer that acts on an attached call settles it. If none does, the call ends as
    /// [`Aborted`](TerminalReason::Aborted) when the last clone of the request is dropped.
    ///
    /// If the run is over or closing, the call is over from its birth, and the layers refuse the
    /// request with the call's end.
    #[must_use]
    pub fn attach<B>(&self, request: http::Request<B>) -> http::Request<B> {
        self.open_call().carried_by(request)
    }

    /// Opens the run's last call and puts it into the request. A turn beyond the run's cap must
    /// have been refused before.
    ///
    /// The [`final_call`](crate::TurnCapLayer::final_call) of the layer must allow a last call. The
    /// call and its attempts are admitted, though nothing else starts any more. The run ends as
    /// [`TurnCap`](TerminalReason::TurnCap) when the call and all other work are done, or when the
    /// time that the layer allows has passed. As for [`attach`](Self::attach), the first layer that
    /// acts on the call settles it; the call ends as aborted if none does.
    ///
    /// The method returns `None` if no turn beyond the cap was refused, if the run is over or has
    /// had its last call, or if it was closed for another reason.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::Run;
    ///
    /// let run = Run::open();
    /// assert!(run.final_call(http::Request::new(())).is_none(), "not at its cap");
    /// # }
    /// ```
    #[must_use = "the call ends when the request is dropped"]
    pub fn final_call<B>(&self, request: http::Request<B>) -> Option<http::Request<B>> {
        let run = self.run();
        let now = run.now();
        // The check ends the run, or a node above it, if a deadline has passed.
        run.node().check(now, TaskId::NONE).ok()?;
        if !run.node().take_last_call() {
            return None;
        }
        let call = run.open_last(now);
        // The call counts as work of the run now, so the placeholder task is not needed any more.
        run.node().end_task(now);
        Some(call.carried_by(request))
    }
}

impl Run {
    /// Opens a run for one call; the run ends as the call does.
    pub(crate) fn open_single() -> Self {
        let run = Self::open_root();
        run.node().payload.settlement.set(Settlement::Single);
        run
    }

    pub(crate) fn open_below(&self, kind: NodeKind) -> Self {
        // A call does not mark its run as used here: `settle` does, unless the request was refused.
        if kind != NodeKind::Call {
            self.run_state().set_used();
        }
        self.open_child(kind, self.now())
    }

    fn open_child(&self, kind: NodeKind, now: Duration) -> Self {
        self.count_opened(kind);
        let state = self.node().payload.for_child(kind);
        let child = Self::of(self.node().child(kind, fastrand::u64(..), state, now));
        if kind == NodeKind::Run {
            child.stand_with_paused();
        }
        child
    }

    /// Opens the last call of this run, the one call that may start though the run is closing.
    fn open_last(&self, now: Duration) -> Self {
        self.count_opened(NodeKind::Call);
        let state = self.node().payload.for_child(NodeKind::Call);
        let call = Self::of(self.node().last_call(fastrand::u64(..), state, now));
        call.node().begin_work();
        call
    }

    /// Opens a piece of work below this node, unless the node is over or closing.
    ///
    /// The method checks the clocks first. The caller must settle the new node.
    pub(crate) fn admit(&self, kind: NodeKind) -> Option<Self> {
        self.node().stop_if_parent_ended();
        let now = self.now();
        self.node().check(now, TaskId::NONE).ok()?;
        if self.node().refuses_work() {
            return None;
        }
        self.run_state().set_used();
        let child = self.open_child(kind, now);
        child.node().begin_work();
        Some(child)
    }

    /// Records on this node, if it is a run, that a node of this kind was opened right below it.
    fn count_opened(&self, kind: NodeKind) {
        if let Some(run) = self.node().payload.run() {
            run.count_opened(kind);
        }
    }

    fn open_sub_agent(&self, grace: Option<Duration>) -> Self {
        let parent = self.run();
        parent.run_state().set_used();
        let child = Self::open_root();
        let above = SubAgentLink::to(&parent, grace);
        // The link is set only once, here.
        let _set_before = child.run_state().rare().above.set(above);
        parent.enrol_sub_agent(&child);
        child.spans().trace_run(Some(self.spans()));
        if grace.is_some() {
            let stop_on_end = Arc::downgrade(child.node());
            let rare = parent.run_state().rare();
            rare.add_stop_on_end(stop_on_end);
            // An end that came before the child was listed did not reach it.
            child.node().stop_if_parent_ended();
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

    /// Opens a call below this node; the caller must settle the call.
    pub(crate) fn open_call(&self) -> Self {
        // The check ends the node with a passed deadline; the call inherits that end.
        drop(self.check());
        self.run_state().set_used();
        let call = self.open_below(NodeKind::Call);
        call.node().begin_work();
        call
    }

    /// Makes this call end when `outer` ends: the run of another tree in the request.
    pub(crate) fn end_with(&self, outer: &Self) {
        self.node().follow(outer.node());
        if !outer.node().is_of_many() {
            // The line of the log for this call stands for the outer run, too.
            outer.node().payload.begin_log();
        }
    }

    /// Makes this run, which has no work yet, the sub-agent of a parent that is over or closing: it
    /// ends as the parent does.
    pub(crate) fn end_with_parent(&self, parent: &Self) {
        let above = SubAgentLink::to(parent, None);
        // Another request may have named the parent before.
        let _set_before = self.run_state().rare().above.set(above);
        self.node().follow(parent.node());
        let rare = self.run_state().rare();
        rare.ends_at_birth.store(false, Ordering::Release);
    }

    /// Waits for a request on another thread that has opened this run for a parent that is over, and is
    /// about to end it: for that instant the run looks like one that is open.
    ///
    /// If that thread panicked in between, the wait ends all the same.
    pub(crate) fn wait_for_birth(&self) {
        const MOST: usize = 10_000;
        let ends_at_birth = || {
            let rare = self.node().payload.rare_if_any();
            rare.is_some_and(|rare| rare.ends_at_birth.load(Ordering::Acquire))
        };
        for _ in 0..MOST {
            if !ends_at_birth() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Puts this call into the request; the first layer that acts on the call settles it.
    fn carried_by<B>(self, mut request: http::Request<B>) -> http::Request<B> {
        self.node().payload.settlement.set(Settlement::Unclaimed);
        let ticket = Arc::new(Unclaimed(self.clone()));
        request.extensions_mut().insert(ticket);
        request.extensions_mut().insert(self);
        request
    }
}

/// A guard in a request's extensions, which the clones of the request share.
///
/// If no layer claims the attached call, the drop of the last clone settles it. The call then ends
/// as aborted, unless it has ended before, or is closing for a reason of its own.
struct Unclaimed(Run);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if self.0.node().payload.settlement.claim() {
            self.0.settle(TerminalReason::Aborted);
        }
    }
}

impl Node<NodeState> {
    /// Makes this a run that several calls share, also if it was opened for one call. The deadlines
    /// that callers have announced no longer end the run.
    pub(crate) fn make_shared(&self) {
        self.payload.settlement.set(Settlement::Shared);
        self.clocks.forget_announced();
    }
}
