//! What a run has and the calls below it have not: what observers are told, and
//! what is counted from the first request to the last.

use std::{
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::broadcast;

use super::identity::RunGuard;
use crate::run::{
    handle::{StopOnEnd, SubAgentLink},
    limits::{Actions, Partials, RepeatDetector, Shadows, Turns},
    report::{RunEvent, Trajectory},
};

/// How many events an observer of one run may be behind before it loses some.
pub(crate) const EVENTS: usize = 256;

/// How often a run that shows heartbeats is taken to show one.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// Made when a run first needs it.
#[derive(Debug, Default)]
pub(crate) struct RunState {
    pub(in crate::run) standstill: RepeatDetector,
    pub(in crate::run) shadows: Shadows,
    /// The longest interval of heartbeats that was set, in nanoseconds; none if 0.
    pub(in crate::run) heartbeat: AtomicU64,
    pub(in crate::run) turns: Turns,
    /// Counts it as its owner's, if somebody caps those; none after the end.
    pub(in crate::run) open: Mutex<Option<Box<dyn RunGuard>>>,
    /// Errors of a run that may have any number.
    pub(in crate::run) errors: AtomicU32,
    pub(in crate::run) trajectory: OnceLock<Trajectory>,
    /// How many tools that were refused were written down there.
    pub(in crate::run) refusals: AtomicU8,
    pub(in crate::run) actions: Actions,
    pub(in crate::run) notices: crate::run::limits::NoticeSettings,
    pub(in crate::run) partials: Partials,
    pub(in crate::run) observed: Mutex<EventChannel>,
    pub(in crate::run) above: OnceLock<SubAgentLink>,
    /// Who is asked to stop when the run ends.
    pub(in crate::run) asked: Mutex<Vec<StopOnEnd>>,
}

/// Who watches this one run.
#[derive(Debug, Default)]
pub(in crate::run) struct EventChannel {
    /// Of a run that is in no registry.
    pub(in crate::run) sequence: u64,
    /// Its end has a number.
    pub(in crate::run) over: bool,
    /// None until somebody watches, and after the end.
    pub(in crate::run) sender: Option<broadcast::Sender<RunEvent>>,
}

impl RunState {
    pub(in crate::run) fn heartbeat(&self) -> Duration {
        match self.heartbeat.load(Ordering::Acquire) {
            0 => HEARTBEAT,
            set => Duration::from_nanos(set),
        }
    }

    pub(in crate::run) fn lock_open(&self) -> MutexGuard<'_, Option<Box<dyn RunGuard>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an error that no limit counts.
    pub(in crate::run) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::AcqRel);
    }

    pub(in crate::run) fn errors(&self) -> u32 {
        self.errors.load(Ordering::Acquire)
    }

    pub(in crate::run) fn lock(&self) -> MutexGuard<'_, EventChannel> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::run) fn set_above(&self, above: SubAgentLink) {
        // It is set once, by the one who opens the run.
        let _set_before = self.above.set(above);
    }

    pub(in crate::run) fn above(&self) -> Option<&SubAgentLink> {
        self.above.get()
    }

    pub(in crate::run) fn ask_at_end(&self, child: StopOnEnd) {
        let mut asked = self.lock_asked();
        // Only when it would have to grow: each of many costs the same.
        if asked.len() == asked.capacity() {
            asked.retain(|child| child.strong_count() > 0);
        }
        asked.push(child);
    }

    pub(in crate::run) fn asked(&self) -> Vec<StopOnEnd> {
        std::mem::take(&mut *self.lock_asked())
    }

    pub(in crate::run) fn lock_asked(&self) -> MutexGuard<'_, Vec<StopOnEnd>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventChannel {
    /// The number of the end, which is the last event.
    pub(in crate::run) fn last(&mut self) -> u64 {
        if !std::mem::replace(&mut self.over, true) {
            self.sequence += 1;
        }
        self.sequence
    }

    pub(in crate::run) fn send(&mut self, told: Option<u64>, event: impl FnOnce(u64) -> RunEvent) {
        self.sequence += 1;
        if let Some(sender) = &self.sender {
            // Only that nobody listens any more can go wrong.
            let _ = sender.send(event(told.unwrap_or(self.sequence)));
        }
    }
}
