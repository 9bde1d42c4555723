//! The state that every run has, and the states that only calls and attempts have.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{Identity, RunFeatures};
use crate::{
    lock::Lock,
    run::{
        limits::{ErrorCounts, Price},
        reason::TerminalReason,
        report::{Hooks, SpanSlot},
        step::Step,
        tree::NodeKind,
    },
};

// The values of `RunState::opened`: which nodes were opened right below the run.
const NOTHING: u8 = 0;
const ONE_CALL: u8 = 1;
const MORE: u8 = 2;

/// The state of a run.
// `repr(C)`: the fields that an end reads stand first, as in the node.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct RunState {
    identity: OnceLock<Identity>,
    features: OnceLock<Box<RunFeatures>>,
    /// Whether the run is unused, so that it completes when it has no work. A request opened
    /// such a run, and each call so far was refused or has not settled yet.
    unused: AtomicBool,
    /// Which nodes were opened right below the run, attempts aside: none, one call alone, or
    /// others.
    opened: AtomicU8,
    /// The number of the run's silent attempts in a row.
    pub(in crate::run) silent_attempts: AtomicU32,
    pub(in crate::run) heartbeats: AtomicU64,
    pub(in crate::run) changes: AtomicU64,
    /// The counts of the run's errors; allocated at the first error, or for a limit.
    errors: OnceLock<Box<ErrorCounts>>,
    steps: Lock<Steps>,
    /// The reason of the last call's end.
    pub(in crate::run) last_end: Lock<Option<TerminalReason>>,
    /// The state of the call, for a run that is one call.
    pub(super) call: CallState,
}

/// The last step of a run, and the last step that was progress.
#[derive(Debug, Default)]
pub(in crate::run) struct Steps {
    last: Option<Step>,
    change: Option<Step>,
}

impl RunState {
    pub(crate) fn identify(&self, identity: Identity) -> bool {
        self.identity.set(identity).is_ok()
    }

    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    pub(crate) fn features(&self) -> &RunFeatures {
        self.features.get_or_init(Box::default)
    }

    pub(crate) fn features_if_any(&self) -> Option<&RunFeatures> {
        self.features.get().map(|features| &**features)
    }

    pub(crate) fn errors(&self) -> &ErrorCounts {
        let none = || Box::new(ErrorCounts::new(None, None));
        self.errors.get_or_init(none)
    }

    pub(crate) fn errors_if_any(&self) -> Option<&ErrorCounts> {
        self.errors.get().map(|errors| &**errors)
    }

    /// Marks the run as unused. The registry, which opens the run for a request, calls this before
    /// another request can find the run.
    pub(crate) fn set_unused(&self) {
        self.unused.store(true, Ordering::Release);
    }

    /// Marks the run as used: work was admitted, or the program holds the run. A used run stays
    /// open under its id.
    #[inline]
    pub(crate) fn set_used(&self) {
        // The flag is mostly clear already: a load leaves the cache line shared.
        if self.unused.load(Ordering::Acquire) {
            self.unused.store(false, Ordering::Release);
        }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.unused.load(Ordering::Acquire)
    }

    /// Records that a node of this kind was opened right below the run; attempts do not count.
    pub(in crate::run) fn count_opened(&self, kind: NodeKind) {
        let opened = match kind {
            NodeKind::Attempt => return,
            NodeKind::Call => ONE_CALL,
            NodeKind::Run | NodeKind::Tool => MORE,
        };
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let first = self
            .opened
            .compare_exchange(NOTHING, opened, success, failure);
        if first.is_err() {
            self.opened.store(MORE, Ordering::Release);
        }
    }

    /// Whether one call was opened right below the run, and no tool or sub-agent.
    pub(in crate::run) fn is_one_call(&self) -> bool {
        self.opened.load(Ordering::Acquire) == ONE_CALL
    }
}

impl RunState {
    /// Records the run's last step. A step without detail does not replace a step with detail,
    /// unless it completes that step: then it has the same detail.
    pub(crate) fn set_step(&self, step: Step) {
        self.steps.lock().set(step, false);
    }

    /// Records a step of the run that was progress, as [`set_step`](Self::set_step) does.
    pub(crate) fn set_change(&self, step: Step) {
        self.steps.lock().set(step, true);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Records as progress that a child of the run is done. If the last step has the same kind as
    /// `done`, the last step itself is the progress, because it reported the same end.
    pub(crate) fn record_child_done(&self, done: Step) {
        let mut steps = self.steps.lock();
        let reported = steps.last.as_ref().filter(|it| it.kind() == done.kind());
        steps.change = Some(reported.cloned().unwrap_or(done));
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn step(&self) -> Option<Step> {
        self.steps.lock().last.clone()
    }

    /// The last step of the run that was progress.
    pub(crate) fn change(&self) -> Option<Step> {
        self.steps.lock().change.clone()
    }
}

impl Steps {
    fn set(&mut self, mut step: Step, is_change: bool) {
        if let Some(last) = &mut self.last {
            step.complete(last);
        }
        if is_change {
            self.change = Some(step.clone());
        }
        let has_detail = |step: &Step| step.description().is_some();
        if has_detail(&step) || !self.last.as_ref().is_some_and(has_detail) {
            self.last = Some(step);
        }
    }
}

/// The upstream to which an attempt goes.
pub(crate) trait AttemptTarget: Any + Send + Sync + std::fmt::Debug {
    fn label(&self) -> &Arc<str>;

    /// The price of the upstream's tokens; `None` if the price is not known.
    fn price(&self) -> Option<Price>;

    /// The target as a value for a downcast, by the module that set the target.
    fn as_any(&self) -> &dyn Any;
}

/// The state of a call, or of a run that is one call. A tool has this state too, because a request
/// may use a tool's node as its call.
#[derive(Debug, Default)]
pub(crate) struct CallState {
    rare: OnceLock<Box<RareCallState>>,
    /// The number that the call has among the run's turns; 0 if it is no turn.
    pub(in crate::run) turn: AtomicU32,
    /// Whether an attempt of the call has failed: mostly none has, and the lock is not taken.
    has_failed_attempts: AtomicBool,
    /// The address of the first retry bucket into which the call has made a deposit. 0 for none.
    first_deposit: AtomicUsize,
    /// The target of the call's last attempt.
    pub(in crate::run) last_target: Lock<Option<Arc<dyn AttemptTarget>>>,
    #[cfg(feature = "metrics")]
    pub(in crate::run) metrics: crate::run::report::CallMetrics,
}

/// A list of failed attempts. Only the module that set the list knows its type.
pub(crate) type FailedAttempts = Arc<dyn Any + Send + Sync>;

/// The state that few calls have, allocated when the call first needs it.
#[derive(Debug, Default)]
pub(crate) struct RareCallState {
    /// The hooks for the end of the call.
    pub(in crate::run) hooks: Hooks,
    /// The list of the call's failed attempts. Only the module that set it knows the type.
    failed_attempts: Lock<Option<FailedAttempts>>,
    /// The addresses of the retry buckets with a deposit, after the first one.
    more_deposits: Lock<Vec<usize>>,
    /// The span of the call, tool or run.
    pub(in crate::run) span: SpanSlot,
}

/// The state of an attempt: its target, the marks of its reports, and its span.
#[derive(Debug, Default)]
pub(crate) struct TargetState {
    /// The upstream to which the attempt goes. Only the module that set it knows the type.
    pub(in crate::run) target: OnceLock<Arc<dyn AttemptTarget>>,
    /// Whether targets other than this attempt's could serve the call.
    pub(in crate::run) has_others: AtomicBool,
    /// Whether the program's hook was called for this attempt, or for one within it.
    pub(in crate::run) is_reported: AtomicBool,
    /// Whether a metric has counted this attempt, or one within it.
    #[cfg(feature = "metrics")]
    pub(in crate::run) is_counted: AtomicBool,
    /// The place for the attempt's span, allocated if a subscriber wants it.
    pub(in crate::run) span: OnceLock<Box<SpanSlot>>,
}

impl CallState {
    pub(in crate::run) fn rare(&self) -> &RareCallState {
        self.rare.get_or_init(Box::default)
    }

    pub(in crate::run) fn rare_if_any(&self) -> Option<&RareCallState> {
        self.rare.get().map(|rare| &**rare)
    }

    pub(in crate::run) fn failed_attempts(&self) -> Option<FailedAttempts> {
        self.rare.get()?.failed_attempts.lock().clone()
    }

    /// Calls `act` with the list of the call's failed attempts, which is `None` until one has
    /// failed.
    pub(in crate::run) fn with_failed_attempts(
        &self,
        act: impl FnOnce(&mut Option<FailedAttempts>),
    ) {
        self.has_failed_attempts.store(true, Ordering::Release);
        act(&mut self.rare().failed_attempts.lock());
    }

    /// Clears the list of failed attempts, before a layer begins the attempts of a call.
    pub(in crate::run) fn forget_failed_attempts(&self) {
        if self.has_failed_attempts.load(Ordering::Acquire) {
            *self.rare().failed_attempts.lock() = None;
        }
    }

    /// Records the call's deposit into a retry bucket. Returns whether it is the first one into
    /// this bucket.
    pub(crate) fn first_deposit(&self, bucket: usize) -> bool {
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let first = &self.first_deposit;
        match first.compare_exchange(0, bucket, stored, failed) {
            Ok(_) => return true,
            Err(first) if first == bucket => return false,
            Err(_) => {}
        }
        let mut more = self.rare().more_deposits.lock();
        let is_new = !more.contains(&bucket);
        if is_new {
            more.push(bucket);
        }
        is_new
    }
}
