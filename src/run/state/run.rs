//! The state of a run.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{CallState, HEARTBEAT, Identity, RareRunState};
use crate::{
    lock::Lock,
    run::{
        limits::ErrorCounts,
        reason::TerminalReason,
        step::Step,
        tree::{NodeKind, nanos},
    },
};

// The values of `RunState::opened`: which nodes were opened right below the run.
const NOTHING: u8 = 0;
const ONE_CALL: u8 = 1;
const MORE: u8 = 2;

/// The state of a run.
// `repr(C)` fixes the order of the fields, so that those that an end reads stand close together.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct RunState {
    identity: OnceLock<Identity>,
    rare: OnceLock<Box<RareRunState>>,
    /// Whether the run is unused. The registry completes such a run as soon as it has no work.
    unused: AtomicBool,
    /// Whether the run completes as soon as it has no work, because it is done.
    done: AtomicBool,
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
    /// The reason of the run's call that ended last.
    pub(in crate::run) last_end: Lock<Option<TerminalReason>>,
    /// The state that the run has as one call; for any run, also the place for its span.
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

    pub(crate) fn rare(&self) -> &RareRunState {
        self.rare.get_or_init(Box::default)
    }

    pub(crate) fn rare_if_any(&self) -> Option<&RareRunState> {
        self.rare.get().map(|rare| &**rare)
    }

    /// Sets the interval at which the streams of this run are expected to show a heartbeat.
    ///
    /// Of several intervals the longest holds; one of `HEARTBEAT`, the default, is ignored.
    pub(crate) fn expect_heartbeat(&self, interval: Duration) {
        if interval != HEARTBEAT {
            let set = &self.rare().heartbeat;
            set.fetch_max(nanos(interval), Ordering::AcqRel);
        }
    }

    pub(crate) fn errors(&self) -> &ErrorCounts {
        let none = || Box::new(ErrorCounts::new(None, None));
        self.errors.get_or_init(none)
    }

    pub(crate) fn errors_if_any(&self) -> Option<&ErrorCounts> {
        self.errors.get().map(|errors| &**errors)
    }

    /// Marks the run as unused. The registry calls this under the lock of the run's shard, before
    /// another request can find the run.
    pub(crate) fn set_unused(&self) {
        self.unused.store(true, Ordering::Release);
    }

    /// Marks the run as used: from then on it does not complete for being unused.
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

    /// Marks the run as done: it completes as soon as it has no work.
    pub(crate) fn set_done(&self) {
        self.done.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
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

    /// Whether exactly one call, but no tool or run, was opened right below the run.
    pub(in crate::run) fn is_one_call(&self) -> bool {
        self.opened.load(Ordering::Acquire) == ONE_CALL
    }
}

impl RunState {
    /// Records the run's last step. A step without detail does not replace a step with detail,
    /// unless it completes that step: then it takes over the detail.
    pub(crate) fn set_step(&self, step: Step) {
        self.steps.lock().set(step, false);
    }

    /// Records a step of the run that was progress, as [`set_step`](Self::set_step) does.
    pub(crate) fn set_change(&self, step: Step) {
        self.steps.lock().set(step, true);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Records as progress that a child of the run is done. If the last step has the same kind as
    /// `done`, the last step is stored instead of `done`, because it may report the same end.
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
