//! The handle on a node: what a program does with it, and what the layers do.
//!
//! [`Run`] has many methods, and a file for each part of them: `open` (nodes and requests),
//! `settle` (how a node that was worked on ends), `limits` (turns, loops, repetition),
//! `events` (observers, notices, shadow mode), `record` (tries, usage, texts),
//! `sub_agent` and `wait`. What a program reads of a run, [`Run::snapshot`] and
//! [`Run::record_to`], stands with the reports; [`Run::tool`] stands with the tools.

mod events;
mod limits;
mod open;
mod record;
mod settle;
mod sub_agent;
mod wait;

pub use self::wait::{Ended, RunWait, Settled};

pub(crate) use self::sub_agent::{StopOnEnd, SubAgentLink};

use std::{
    fmt,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    id::RunId,
    kinds::{NodeKind, ResetOn, Scope, Step, StepKind},
    reason::TerminalReason,
    report::Terminated,
    state::NodeState,
    tree::{LimitHit, LimitKind, Node, TaskId},
};

/// A handle on one node of a run's tree: the run itself, a call, an attempt or
/// a tool. Cheap to clone; all clones are the same node.
///
/// Layers look for it in a request's extensions, and act on the node they find.
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

impl Run {
    /// Opens a run that no other handle refers to. Its clock starts now.
    ///
    /// It ends by [`end`](Self::end) or by a limit that a layer set on it; a
    /// finished answer does not end it.
    #[must_use]
    pub fn open() -> Self {
        let number = fastrand::u64(..);
        let info = NodeState::new(Instant::now(), number);
        Self(Node::root(NodeKind::Run, number, info))
    }

    /// Opens a sub-agent's run below this one: it ends when this one ends, and
    /// its own end leaves this one alone.
    #[must_use]
    pub fn child(&self) -> Self {
        self.open_below(NodeKind::Run)
    }

    /// Ends the node and everything below it. Answers whether this reason won;
    /// a later one is kept in [`Terminated::also`].
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know who won"
    )]
    pub fn end(&self, reason: TerminalReason) -> bool {
        self.0.end(reason, None, self.now()).is_ok()
    }

    /// Why this node is over: its own reason, or that of the nearest ended
    /// ancestor. Reads what is stored, no clock.
    #[must_use]
    pub fn terminal_reason(&self) -> Option<TerminalReason> {
        self.0.nearest_end().map(|end| end.reason.clone())
    }

    /// The same as an error, with what is known about the end.
    #[must_use]
    pub fn terminated(&self) -> Option<Terminated> {
        self.0.nearest_end()?;
        Some(self.to_terminated())
    }

    /// Compares the clocks from the run down to this node with the time, and
    /// ends the outermost node whose deadline has come. Call it before you
    /// start something that the layers do not see.
    ///
    /// # Errors
    ///
    /// If this node is over, from now or from before, or if its caller is gone
    /// and only what is under way goes on.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub fn check(&self) -> Result<(), Terminated> {
        self.stop_if_parent_ended();
        let checked = self.0.check(self.now(), TaskId::NONE);
        if checked.is_err() || self.0.is_closing() {
            return Err(self.to_terminated());
        }
        Ok(())
    }

    /// Resolves with the reason when the node ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future forgets the waiting and nothing else. It watches no
    /// clock: a deadline is noticed by the layers and by [`check`](Self::check).
    pub fn ended(&self) -> Ended {
        Ended::new(self.clone())
    }

    /// Resolves with the reason when the node has ended and no call, attempt
    /// or tool at or below it is still being dropped, nor the task of a pump;
    /// [`on_end`](crate::RunLayer::on_end) was told by then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future forgets the waiting and nothing else.
    pub fn settled(&self) -> Settled {
        Settled::new(self.clone())
    }

    /// Stops the step windows at, above and below this node until the guard is
    /// dropped: a person is asked, a queue is full, a backend restarts.
    /// Ceilings go on, and alone bound what happens meanwhile.
    ///
    /// A pause at one call stops the windows of the run above it as well, so they do
    /// not see the silence of another call or tool of the run until it is over; the
    /// windows of those themselves go on.
    #[must_use = "the pause ends when the guard is dropped"]
    pub fn pause(&self) -> PauseGuard {
        PauseGuard::new(self.clone())
    }

    /// A sign of life that is no progress: resets windows that
    /// [`ResetOn::AnyByte`] resets, and no others.
    pub fn heartbeat(&self) {
        self.beat(1);
        self.0.record(ResetOn::AnyByte, self.now());
    }

    /// A sign of progress that no layer sees: resets every step window of this
    /// node and of what is above it.
    pub fn state_change(&self, state: impl Into<std::borrow::Cow<'static, str>>) {
        if let Some(harness) = self.nearest().payload.harness_if_any() {
            harness.standstill.moved();
        }
        self.step(Step::new(StepKind::StateChange).detail(state));
    }

    /// A step was done, or begun: resets every step window of this node and of
    /// what is above it, and is what the message for people calls the last step.
    pub fn step(&self, step: Step) {
        self.nearest().payload.set_change(step);
        self.0.record(ResetOn::Step, self.now());
    }

    /// What kind of node this is.
    #[must_use]
    pub fn kind(&self) -> NodeKind {
        self.0.kind()
    }

    /// The id of the nearest run; made up if it was given none.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.0.run_id()
    }

    /// The session of the nearest run, if it has one.
    #[must_use]
    pub fn session(&self) -> Option<Arc<str>> {
        self.nearest().payload.identity()?.session.clone()
    }

    /// How long ago this node was opened; how long it lasted, if it has ended.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let until = self
            .0
            .nearest_end()
            .map_or_else(|| self.now(), |end| end.at);
        until.saturating_sub(self.0.opened())
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

    /// The node above this one.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.parent().map(|node| Self(Arc::clone(node)))
    }

    /// How many calls, attempts and tools are under way at or below this node.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.active()
    }
}

impl Run {
    pub(in crate::run) const fn of(node: Arc<Node<NodeState>>) -> Self {
        Self(node)
    }

    /// A number that no other run has, for what is to differ between runs.
    pub(crate) fn seed(&self) -> u64 {
        self.0.payload.tree
    }

    pub(crate) const fn node(&self) -> &Arc<Node<NodeState>> {
        &self.0
    }

    /// The node that a layer of this scope acts on, if it found this one.
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

    pub(crate) fn note(&self, step: Step) {
        self.nearest().payload.set_step(step);
    }

    /// So many signs of life that are no progress.
    pub(crate) fn beat(&self, count: u64) {
        let heartbeats = &self.nearest().payload.heartbeats;
        heartbeats.fetch_add(count, Ordering::AcqRel);
    }

    /// The same, of a stream of this node.
    pub(crate) fn beat_of_stream(&self, count: u64) {
        self.0.payload.pings().store(true, Ordering::Release);
        self.beat(count);
    }

    /// The core's clock.
    pub(crate) fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.0.payload.epoch)
    }

    /// A point of the core's clock as the runtime's; none if it is out of range.
    pub(crate) fn instant(&self, at: Duration) -> Option<Instant> {
        self.0.payload.epoch.checked_add(at)
    }

    /// The end as an error; a node that is not over reads as aborted.
    pub(crate) fn to_terminated(&self) -> Terminated {
        Terminated::of(&self.0)
    }

    /// Ends a node whose upstream sent nothing for `silent` and failed its health
    /// probes, unless a clock of its own or of one above it comes first.
    pub(crate) fn end_unhealthy(&self, silent: Duration) {
        let now = self.now();
        if self.node().check(now, TaskId::NONE).is_err() {
            return;
        }
        let passed = LimitHit {
            limit: Some(silent),
            measure: LimitKind::Unhealthy,
        };
        // Losing means that it is over as well.
        drop(
            self.node()
                .end(TerminalReason::StepTimeout, Some(passed), now),
        );
    }

    pub(crate) fn downgrade(&self) -> WeakRun {
        WeakRun(Arc::downgrade(self.node()))
    }

    /// Tells one run from another.
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

/// Keeps step windows stopped while it lives: [`Run::pause`].
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

/// A handle that does not keep the run alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakRun(Weak<Node<NodeState>>);

impl WeakRun {
    /// The run, if it is there and goes on.
    pub(crate) fn live(&self) -> Option<Run> {
        let run = Run::of(self.0.upgrade()?);
        run.terminal_reason().is_none().then_some(run)
    }
}
