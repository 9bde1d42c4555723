//! The handle on a node, for the program and for the layers.
//!
//! [`Run`] has many methods, and they stand in ten files:
//!
//! | file | methods |
//! |---|---|
//! | this one | how a node ends, is checked and settles; its signs of life, its place in the tree |
//! | `open` | what opens a run or a node, and puts it into a request |
//! | `wait` | futures of the end; a run that is done |
//! | `current` | the run of a task |
//! | `limits` | limits that the program sets beside those of the layers, and their counts |
//! | `extend` | what raises the limits of a run that goes on |
//! | `pauses` | what holds the turns of a run, and lets them go on |
//! | `reports` | snapshots, events, notices, usage, texts, spans |
//! | `src/tool/mod.rs` | [`Run::tool`] |
//! | `src/attempt/mod.rs` | [`Run::attempt`], and what the program says or asks of an attempt |
//!
//! The layers do more with a run, each concern through a view: `run.attempts()`, which is of the
//! state, `run.actions()`, `run.errors()` and `run.tokens()` of the files here with those subjects,
//! and `run.spans()` of the reports. What needs a node alone is a method of the node: in `settle`,
//! `turns`, `events`, `shadow`, `partial_text` and `sub_agent`; `end_hook` has the effects of its
//! end.

mod actions;
mod current;
mod end_hook;
mod error_counts;
mod events;
mod extend;
mod limits;
mod open;
mod partial_text;
mod pauses;
mod reports;
mod settle;
mod shadow;
mod sub_agent;
mod tokens;
mod turns;
mod wait;

pub use self::{current::InScope, wait::RunCompletion};

pub(crate) use self::{
    pauses::TurnRefused,
    sub_agent::{StopOnEnd, SubAgentLink},
};

use std::{
    fmt,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    id::RunId,
    limit_kind::{LimitHit, LimitKind},
    reason::TerminalReason,
    report::Terminated,
    state::{CallAttempts, NodeState, RunState},
    step::{ResetOn, Step, StepKind},
    tree::{Node, NodeKind, TaskId},
};
use crate::error::BoxError;

/// A handle on one node of a run's tree: run, call, attempt or tool.
///
/// A clone is cheap, and a handle on the same node. A layer looks for the handle in the request's
/// extensions, and acts on the handle's node, or with [`Scope::Run`] on the nearest run.
///
/// ```
/// use tower_agent::{Run, TerminalReason};
///
/// let run = Run::open();
/// let child = run.child();
///
/// assert!(run.end(TerminalReason::Aborted));
/// assert!(!run.end(TerminalReason::Shutdown), "the first reason stays");
/// assert_eq!(child.terminal_reason(), Some(TerminalReason::Aborted));
/// ```
#[derive(Clone)]
pub struct Run(Arc<Node<NodeState>>);

/// The node that a layer acts on: the node in the request, or its run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The layer acts on the node that it finds in the request.
    #[default]
    Found,
    /// The layer acts on the nearest node of kind [`NodeKind::Run`], at or above the found one.
    Run,
}

impl Run {
    /// Ends this node and every node below it, with a reason.
    ///
    /// The method returns whether `reason` became the stored reason. If an absolute deadline of
    /// this node or of an ancestor has passed by now, the method first ends the outermost node with
    /// such a deadline; not a run of a registry that is idle, which may be done. A node that was itself ended keeps the first eight later reasons, for
    /// [`Terminated::also`].
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know who won"
    )]
    pub fn end(&self, reason: TerminalReason) -> bool {
        self.0.end_from_outside(reason)
    }

    /// The reason of this node's end, or of the nearest ended ancestor's. The result is `None`
    /// while neither the node nor an ancestor has ended. The method reads the stored end, and
    /// checks no clock.
    #[must_use]
    pub fn terminal_reason(&self) -> Option<TerminalReason> {
        self.0.nearest_end().map(|end| end.reason.clone())
    }

    /// The reason of the nearest run's call that ended last; `None` before a call ended.
    ///
    /// A client that reads an answer through a library may get the error of a cut stream as text
    /// alone. The run itself goes on when a call was cut, so its
    /// [`terminal_reason`](Self::terminal_reason) does not say why; this method does. Of
    /// several calls the one that ended last counts; calls of sub-agents do not.
    #[must_use]
    pub fn last_end(&self) -> Option<TerminalReason> {
        let run = self.nearest();
        if run.payload.settlement.ends_with_call() {
            return run.nearest_end().map(|end| end.reason.clone());
        }
        self.run_state().last_end.lock().clone()
    }

    /// The end of this node, or of an ancestor, as an error; `None` while the node lives.
    #[must_use]
    pub fn terminated(&self) -> Option<Terminated> {
        self.0.nearest_end()?;
        Some(self.to_terminated())
    }

    /// Checks the absolute deadlines of the nodes from the root down to this one.
    ///
    /// The check ends the outermost node with a passed deadline; it checks no step windows. If the
    /// root run of the tree [follows](Self::child_asked) a parent, the parent is checked first.
    /// Call the method before you start work that the layers do not see.
    ///
    /// # Errors
    ///
    /// The method fails if this node is over, whether its end is new or old. It also fails if the
    /// node is closing: then only running work goes on, for example because the caller went away.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub fn check(&self) -> Result<(), Terminated> {
        self.0.stop_if_parent_ended();
        let checked = self.0.check(self.now(), TaskId::NONE);
        if checked.is_err() || self.0.refuses_work() {
            return Err(self.to_terminated());
        }
        Ok(())
    }

    /// Stops the step windows at, above and below this node until the guard is dropped.
    ///
    /// Pause while a person is asked, a queue is full, or a backend restarts. During a pause
    /// ceilings, other absolute deadlines, and the silence after which a caller gives up go on.
    ///
    /// A pause at one call stops the windows of the run above it as well. Until the pause is over
    /// the run's windows do not see the silence of another call or tool of the run; the windows of
    /// that call or tool go on.
    #[must_use = "the pause ends when the guard is dropped"]
    pub fn pause(&self) -> PauseGuard {
        PauseGuard::new(self.clone())
    }

    /// Records a sign of life that is not progress. The sign resets the step windows with
    /// [`ResetOn::AnyByte`] of this node and of its ancestors.
    pub fn heartbeat(&self) {
        self.beat(1);
        self.0.record(ResetOn::AnyByte, self.now());
    }

    /// Records progress that no layer sees, such as a change of the program's state. The progress
    /// resets every step window of this node and of its ancestors.
    pub fn state_change(&self, state: impl Into<Arc<str>>) {
        if let Some(rare) = self.run_state().rare_if_any() {
            rare.repeat_detector.moved();
        }
        self.step(Step::new(StepKind::StateChange).detail(state));
    }

    /// Records a step that the program has done or begun.
    ///
    /// The step resets every step window of this node and of its ancestors. The message for people
    /// names the step as the last one. A step without a description replaces a described one only
    /// if it completes that step.
    pub fn step(&self, step: Step) {
        self.run_state().set_change(step);
        self.0.record(ResetOn::Step, self.now());
    }

    /// The kind of this node: run, call, attempt or tool.
    #[must_use]
    pub fn kind(&self) -> NodeKind {
        self.0.kind()
    }

    /// The id of the nearest run; a generated one if the run was given none.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.0.run_id()
    }

    /// The session of the nearest run; `None` if the run has no session.
    #[must_use]
    pub fn session(&self) -> Option<Arc<str>> {
        self.0.session()
    }

    /// The time since this node was opened, or how long it lasted if it has ended.
    ///
    /// A run that a passed deadline ended lasted until that deadline, also if it was found later.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed(self.now())
    }

    /// The nearest node of kind Run, at or above this one.
    #[must_use]
    pub fn run(&self) -> Self {
        let mut node = &self.0;
        while let (true, Some(parent)) = (node.kind() != NodeKind::Run, node.parent()) {
            node = parent;
        }
        Self(Arc::clone(node))
    }

    /// The node above this one in the tree; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.parent().map(|node| Self(Arc::clone(node)))
    }

    /// The number of calls, attempts and tools in flight at or below this node.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.active()
    }
}

impl Run {
    pub(in crate::run) const fn of(node: Arc<Node<NodeState>>) -> Self {
        Self(node)
    }

    /// A random number that all nodes of this tree share. The number seeds values that must differ
    /// between trees.
    pub(crate) fn seed(&self) -> u64 {
        self.0.payload.tree
    }

    pub(crate) const fn node(&self) -> &Arc<Node<NodeState>> {
        &self.0
    }

    /// The node that a layer of `scope` acts on when it finds this node.
    #[inline]
    pub(crate) fn in_scope(&self, scope: Scope) -> &Node<NodeState> {
        match scope {
            Scope::Found => &self.0,
            Scope::Run => self.0.nearest_run(),
        }
    }

    pub(crate) fn nearest(&self) -> &Node<NodeState> {
        self.0.nearest_run()
    }

    pub(crate) fn run_state(&self) -> &RunState {
        self.0.run_state()
    }

    /// The attempts of the call that this node belongs to.
    #[inline]
    pub(crate) fn attempts(&self) -> CallAttempts<'_> {
        self.0.attempts()
    }

    /// A digest of the owner of the nearest run; `None` if no registry knows the run.
    pub(crate) fn owner_digest(&self) -> Option<u64> {
        // The owner is a random digest itself, so half of it will do.
        let owner = self.run_state().identity()?.owner;
        Some(owner as u64)
    }

    pub(crate) fn note(&self, step: Step) {
        self.run_state().set_step(step);
    }

    /// Counts `count` signs of life on the nearest run that are not progress.
    pub(crate) fn beat(&self, count: u64) {
        let heartbeats = &self.run_state().heartbeats;
        heartbeats.fetch_add(count, Ordering::AcqRel);
    }

    /// Counts signs of life like [`beat`](Self::beat), and marks that a stream of this node gave
    /// them.
    pub(crate) fn beat_of_stream(&self, count: u64) {
        self.0.payload.pings.store(true, Ordering::Release);
        self.beat(count);
    }

    /// Settles this node with `reason`, after its opener has dropped the node's work: see
    /// [`settle_by_opener`](Node::settle_by_opener).
    pub(crate) fn settle(&self, reason: TerminalReason) {
        self.0.settle_by_opener(reason);
    }

    /// The current time on the tree's clock: since the tree was opened.
    pub(crate) fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.0.payload.epoch)
    }

    /// The instant of a time on the tree's clock; `None` if an instant cannot hold it.
    pub(crate) fn instant(&self, at: Duration) -> Option<Instant> {
        self.0.payload.epoch.checked_add(at)
    }

    /// The end of this node as an error. A node that has not ended gives its closing reason, or
    /// else [`Aborted`](TerminalReason::Aborted).
    pub(crate) fn to_terminated(&self) -> Terminated {
        Terminated::of(&self.0)
    }

    /// The end of this node as an error, with `error` as its source. An `error` that reports this
    /// same end already is returned unchanged.
    pub(crate) fn end_error(&self, error: BoxError) -> BoxError {
        if Terminated::find(&*error).is_some_and(|ended| ended.is_end_of(self.node())) {
            return error;
        }
        self.to_terminated().because(error).into()
    }

    /// Ends this node because its upstream was silent for `silent` and failed its health probes. If
    /// a deadline of the node or of an ancestor has passed, that deadline ends its node instead.
    pub(crate) fn end_unhealthy(&self, silent: Duration) {
        let now = self.now();
        if self.node().check(now, TaskId::NONE).is_err() {
            return;
        }
        let passed = LimitHit {
            limit: Some(silent),
            kind: LimitKind::Unhealthy,
        };
        // `end` fails only if the node is over already.
        drop(
            self.node()
                .end(TerminalReason::StepTimeout, Some(passed), now),
        );
    }

    pub(crate) fn downgrade(&self) -> WeakRun {
        WeakRun(Arc::downgrade(self.node()))
    }

    /// The root of this node's tree.
    pub(crate) fn root(&self) -> &Node<NodeState> {
        self.0.path().last().unwrap_or(&self.0)
    }

    /// The number of this node, which no other node has.
    pub(crate) fn number(&self) -> u64 {
        self.node().number()
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("kind", &self.kind())
            .field("id", &self.id())
            .field("reason", &self.terminal_reason())
            .finish_non_exhaustive()
    }
}

/// A guard that keeps step windows stopped until it is dropped: see [`Run::pause`].
#[derive(Debug)]
pub struct PauseGuard(Run);

impl PauseGuard {
    pub(crate) fn new(run: Run) -> Self {
        run.node().pause(run.now());
        Self(run)
    }
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.0.node().resume(self.0.now());
    }
}

/// A handle on a node that does not keep the node alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakRun(Weak<Node<NodeState>>);

impl WeakRun {
    /// A handle on the node, if the node still exists and has not ended.
    pub(crate) fn live(&self) -> Option<Run> {
        let run = Run::of(self.0.upgrade()?);
        run.terminal_reason().is_none().then_some(run)
    }
}
