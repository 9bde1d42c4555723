//! The state of each node of a run's tree, by the kind of the node.
//!
//! This file also has the failure as which a node counts, and the rule that says which layer or
//! task settles a node.

mod attempts;
mod call;
mod identity;
mod pauses;
mod rare_state;
mod run;

pub(crate) use self::{
    attempts::CallAttempts,
    call::{AttemptTarget, CallState, FailedAttemptList, TargetState},
    identity::{Admission, Identity, Place, Registration, RunGuard},
    pauses::HeldBy,
    rare_state::{EVENTS, EventChannel, HEARTBEAT, RareRunState},
    run::RunState,
};

pub(in crate::run) use self::pauses::PausedAtCap;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    id::RunId,
    limits::{ErrorAllowance, ErrorKey},
    reason::TerminalReason,
    report::{ReportedUsage, SpanSlot},
    tree::{Node, NodeKind},
};
use crate::lock::Lock;

/// The state of one node of a run's tree.
// `repr(C)` fixes the order of the fields, so that those that an end reads stand close together.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct NodeState {
    /// The instant at which the tree was opened: zero of its clock.
    pub(crate) epoch: Instant,
    pub(crate) settlement: AtomicSettlement,
    /// Whether the node's end needs no further line in the log.
    logged: AtomicBool,
    /// Whether a stream of this node has shown a heartbeat.
    pub(in crate::run) pings: AtomicBool,
    /// Whether this node is marked as work with effects that must not happen twice.
    pub(in crate::run) effects: AtomicBool,
    /// Whether the node's request cannot be sent, or is not complete yet.
    refused: AtomicBool,
    /// Whether a silent attempt of this attempt's candidate, or of this call, was repeated.
    pub(in crate::run) repeated_silence: AtomicBool,
    /// Whether the program has opened an attempt below this node by `Run::attempt`.
    pub(in crate::run) attempted: AtomicBool,
    /// Whether a failure was ever set in `outcome`. If none was, a read of it takes no lock.
    has_failed: AtomicBool,
    pub(in crate::run) attempt_count: AtomicU32,
    /// The number of the run's last event, plus [`LAST_EVENT`] if that event was the end.
    events: AtomicU32,
    kind: KindState,
    /// The number of the tree's root. It tells the errors of this tree from those of others.
    pub(crate) tree: u64,
    outcome: Lock<Outcome>,
}

/// The mark of a run that has numbered its last event.
const LAST_EVENT: u32 = 1 << 31;

/// The values that a node's answers have reported, and the failure as which the node counts.
#[derive(Debug, Default)]
struct Outcome {
    reported: ReportedUsage,
    failing: Option<Box<Failing>>,
}

#[derive(Debug)]
enum KindState {
    Run(Box<RunState>),
    /// The state of a call or tool.
    Call(CallState),
    Attempt(TargetState),
}

impl NodeState {
    #[inline(always)]
    pub(crate) fn root(epoch: Instant, tree: u64) -> Self {
        Self::new(epoch, tree, NodeKind::Run)
    }

    /// Makes the state of a new child of this kind.
    #[inline(always)]
    pub(crate) fn for_child(&self, kind: NodeKind) -> Self {
        Self::new(self.epoch, self.tree, kind)
    }

    #[inline(always)]
    fn new(epoch: Instant, tree: u64, kind: NodeKind) -> Self {
        let (settlement, kind) = match kind {
            NodeKind::Run => (Settlement::Shared, KindState::Run(Box::default())),
            NodeKind::Call | NodeKind::Tool => {
                (Settlement::Opener, KindState::Call(CallState::default()))
            }
            NodeKind::Attempt => (
                Settlement::Opener,
                KindState::Attempt(TargetState::default()),
            ),
        };
        Self {
            epoch,
            settlement: AtomicSettlement::new(settlement),
            logged: AtomicBool::new(false),
            pings: AtomicBool::new(false),
            effects: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            repeated_silence: AtomicBool::new(false),
            attempted: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            attempt_count: AtomicU32::new(0),
            events: AtomicU32::new(0),
            kind,
            tree,
            outcome: Lock::default(),
        }
    }

    /// The current time on the tree's clock: since the tree was opened.
    pub(crate) fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.epoch)
    }

    /// Numbers an event of this run. `None` after the last event, or if the numbers are used up.
    ///
    /// From this call to the send, the caller holds the lock of the run's channel, if the run has
    /// one, and in a registry also the lock of the registry's events: so each observer receives the
    /// numbers in order.
    pub(crate) fn next_event(&self) -> Option<u64> {
        let next = |last: u32| (last < LAST_EVENT - 2).then(|| last + 1);
        let (set, load) = (Ordering::AcqRel, Ordering::Acquire);
        let last = self.events.fetch_update(set, load, next).ok()?;
        Some(u64::from(last) + 1)
    }

    /// The number of the run's end, which is its last event. The method assigns it when it first
    /// runs.
    pub(crate) fn last_event(&self) -> u64 {
        let next = |last: u32| (last < LAST_EVENT).then(|| (last + 1) | LAST_EVENT);
        let (set, load) = (Ordering::AcqRel, Ordering::Acquire);
        match self.events.fetch_update(set, load, next) {
            Ok(before) => u64::from(before) + 1,
            Err(last) => u64::from(last ^ LAST_EVENT),
        }
    }

    /// Whether the run's last event is numbered.
    pub(in crate::run) fn has_last_event(&self) -> bool {
        self.events.load(Ordering::Acquire) >= LAST_EVENT
    }

    /// The state that only runs have; `None` for other kinds.
    pub(crate) fn run(&self) -> Option<&RunState> {
        match &self.kind {
            KindState::Run(run) => Some(run),
            KindState::Call(_) | KindState::Attempt(_) => None,
        }
    }

    /// The state that calls have; tools have it too, and runs, which may be one call.
    pub(in crate::run) fn call(&self) -> Option<&CallState> {
        match &self.kind {
            KindState::Run(run) => Some(&run.call),
            KindState::Call(call) => Some(call),
            KindState::Attempt(_) => None,
        }
    }

    /// The state that only attempts have; `None` for other kinds.
    pub(in crate::run) fn attempt(&self) -> Option<&TargetState> {
        match &self.kind {
            KindState::Attempt(attempt) => Some(attempt),
            KindState::Run(_) | KindState::Call(_) => None,
        }
    }

    /// The slot that holds the node's tracing span; `None` before the slot is allocated.
    ///
    /// [`make_span_slot`](Self::make_span_slot) allocates it. An allocated slot may be empty: see
    /// [`SpanSlot`].
    #[inline]
    pub(in crate::run) fn span_slot(&self) -> Option<&SpanSlot> {
        match self.attempt() {
            Some(attempt) => attempt.span.get().map(|slot| &**slot),
            None => Some(&self.call()?.rare_if_any()?.span),
        }
    }

    /// The place for the node's span; allocated by this method if there is none yet.
    pub(in crate::run) fn make_span_slot(&self) -> &SpanSlot {
        match &self.kind {
            KindState::Run(run) => &run.call.rare().span,
            KindState::Call(call) => &call.rare().span,
            KindState::Attempt(attempt) => attempt.span.get_or_init(Box::default),
        }
    }

    /// The number of attempts that were counted on this node.
    pub(in crate::run) fn attempt_count(&self) -> u32 {
        self.attempt_count.load(Ordering::Acquire)
    }

    /// The label of the target to which the call's last attempt went.
    pub(in crate::run) fn last_target(&self) -> Option<Arc<str>> {
        let target = self.call()?.last_target.lock();
        target.as_ref().map(|target| Arc::clone(target.label()))
    }

    /// The identity that a registry gave this run. `None` if none did, or for other kinds of nodes.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.run()?.identity()
    }

    pub(crate) fn registration(&self) -> Option<Arc<dyn Registration>> {
        self.identity()?.registration()
    }

    pub(crate) fn rare_if_any(&self) -> Option<&RareRunState> {
        self.run()?.rare_if_any()
    }

    /// Records whether the node's request is refused or incomplete. Then no upstream has got all of
    /// it.
    pub(crate) fn set_refused(&self, is_refused: bool) {
        self.refused.store(is_refused, Ordering::Release);
    }

    pub(in crate::run) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// Claims the line of the log for the node's end. Returns true only when it first runs.
    pub(in crate::run) fn begin_log(&self) -> bool {
        !self.logged.swap(true, Ordering::AcqRel)
    }
}

/// What the rooms outside of `run/` ask of a node, and tell it.
impl Node<NodeState> {
    /// The time since the tree's root opened.
    #[inline]
    pub(crate) fn now(&self) -> Duration {
        self.payload.now()
    }

    /// The instant at which the tree's root opened.
    pub(crate) const fn started(&self) -> Instant {
        self.payload.epoch
    }

    /// Which layer or task settles this node.
    #[inline]
    pub(crate) const fn settlement(&self) -> &AtomicSettlement {
        &self.payload.settlement
    }

    /// Whether this node is a run that may have several calls.
    pub(crate) fn is_of_many(&self) -> bool {
        self.kind() == NodeKind::Run && !self.payload.settlement.ends_with_call()
    }

    /// Whether the nearest run ends with its one call.
    pub(crate) fn is_single(&self) -> bool {
        self.nearest_run().payload.settlement.ends_with_call()
    }

    /// Ends this node. If a deadline of the node or of an ancestor has passed by now, the outermost
    /// node with such a deadline ends first. Returns whether `reason` became the stored reason.
    pub(crate) fn end_from_outside(&self, reason: TerminalReason) -> bool {
        let now = self.now();
        // An end that this check stores makes `end` fail.
        let _over = self.check_from_outside(now);
        self.end(reason, None, now).is_ok()
    }

    /// The place of this very node in a registry; `None` if it is not a run of one.
    #[inline]
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.payload.identity()
    }

    /// Records whether a layer refused the request of this node.
    pub(crate) fn set_refused(&self, is_refused: bool) {
        self.payload.set_refused(is_refused);
    }

    /// Takes the number of the run's next event; `None` after the last one.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.payload.next_event()
    }

    /// Takes the number of the run's last event.
    pub(crate) fn last_event(&self) -> u64 {
        self.payload.last_event()
    }

    /// Whether the run has the state that few runs need, such as that of observers.
    pub(crate) fn has_rare_state(&self) -> bool {
        self.payload.rare_if_any().is_some()
    }

    /// Whether a tool of the nearest run is under way. The tools of its sub-agents are left out.
    pub(crate) fn has_tool(&self) -> bool {
        let mut found = false;
        self.nearest_run().descend(|node| {
            let is_live = node.own_end().is_none();
            found |= is_live && node.kind() == NodeKind::Tool;
            is_live && !found && node.kind() != NodeKind::Run
        });
        found
    }

    /// The nearest node of kind Run, at or above this node.
    pub(crate) fn nearest_run(&self) -> &Self {
        let mut nodes = self.path();
        nodes
            .find(|node| node.kind() == NodeKind::Run)
            .unwrap_or(self)
    }

    /// This node and its ancestors, up to and including the nearest that is not an attempt.
    pub(in crate::run) fn up_to_call(&self) -> impl Iterator<Item = &Self> {
        let mut nodes = self.path();
        let mut over = false;
        std::iter::from_fn(move || {
            let node = nodes.next().filter(|_| !over)?;
            over = node.kind() != NodeKind::Attempt;
            Some(node)
        })
    }

    /// The nearest node, at or above this one, that is not an attempt: mostly the call.
    pub(crate) fn call_node(&self) -> &Self {
        self.up_to_call().last().unwrap_or(self)
    }

    /// The attempts of the call that this node belongs to.
    #[inline]
    pub(crate) const fn attempts(&self) -> CallAttempts<'_> {
        CallAttempts::of(self)
    }

    /// The state of the nearest run, at or above this node.
    pub(crate) fn run_state(&self) -> &RunState {
        let run = self.nearest_run().payload.run();
        run.expect("the root of every tree is a run")
    }

    pub(crate) fn run_id(&self) -> RunId {
        let run = self.nearest_run();
        let known = run.payload.identity().map(|identity| identity.id.clone());
        known.unwrap_or_else(|| RunId::made(run.number()))
    }
}

/// The failure as which a node counts, if it fails.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    pub(crate) key: ErrorKey,
    /// The reason as which a layer classified the failure; `None` if no layer did.
    pub(crate) reason: Option<TerminalReason>,
    /// The result of counting the failure, if it was counted already.
    pub(crate) counted: Option<ErrorAllowance>,
    /// Whether no upstream was asked. Such a failure does not count as an error of the run.
    pub(crate) unasked: bool,
}

impl NodeState {
    /// Sets the failure as which this node would count; `None` clears it.
    pub(crate) fn fail_as(&self, failing: Option<Failing>) {
        if failing.is_none() && !self.has_failed.load(Ordering::Acquire) {
            return;
        }
        let failing = failing.map(Box::new);
        let before = {
            let mut outcome = self.outcome.lock();
            self.has_failed.store(true, Ordering::Release);
            std::mem::replace(&mut outcome.failing, failing)
        };
        drop(before);
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        if !self.has_failed.load(Ordering::Acquire) {
            return None;
        }
        self.outcome.lock().failing.as_deref().cloned()
    }

    /// Calls `act` with the values that the node's answers have reported so far.
    pub(in crate::run) fn with_reported<T>(&self, act: impl FnOnce(&mut ReportedUsage) -> T) -> T {
        act(&mut self.outcome.lock().reported)
    }
}

/// The rule that says which layer or task settles a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Settlement {
    /// The layer or task that opened or claimed the node settles it, after its work is dropped.
    Opener,
    /// The first layer that claims the call settles it. If no layer claims it, the drop of the last
    /// clone of its request settles it.
    Unclaimed,
    /// The opener settles the call, as for [`Opener`](Self::Opener). The run above ends as the call
    /// does if that run is [`Single`](Self::Single) or [`Layer`](Self::Layer) by then.
    OnlyCall,
    /// No layer settles the run: it spans calls, and ends by a reason or because it is idle.
    Shared,
    /// The run's one call settles the run: the run ends as the call does.
    Single,
    /// The layer that opened the run for one call settles it, unless a cut of its call ended it.
    Layer,
}

/// The [`Settlement`] of a node, which may change while threads read it.
#[derive(Debug)]
pub(crate) struct AtomicSettlement(AtomicU8);

impl AtomicSettlement {
    const fn new(settlement: Settlement) -> Self {
        Self(AtomicU8::new(settlement as u8))
    }

    pub(crate) fn set(&self, settlement: Settlement) {
        self.0.store(settlement as u8, Ordering::Release);
    }

    pub(crate) fn is(&self, settlement: Settlement) -> bool {
        self.0.load(Ordering::Acquire) == settlement as u8
    }

    /// Whether this run ends with its one call.
    pub(crate) fn ends_with_call(&self) -> bool {
        self.is(Settlement::Single) || self.is(Settlement::Layer)
    }

    /// Claims a call that no layer has claimed, and returns whether the caller must settle it now.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        let (unclaimed, opener) = (Settlement::Unclaimed as u8, Settlement::Opener as u8);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let claimed = || self.0.compare_exchange(unclaimed, opener, success, failure);
        // The call is mostly claimed already: a load leaves the cache line shared.
        self.is(Settlement::Unclaimed) && claimed().is_ok()
    }
}
