//! What a run has and the calls below it have not: what observers are told, and
//! what is counted from the first request to the last.

use std::{
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use tokio::sync::broadcast;

use super::{
    Info,
    identity::{Identity, RunGuard},
};
use crate::run::{
    handle::Run,
    limits::{Above, Actions, Asked, Partials, Shadows, Standstill, Turns},
    report::{Notice, RunEvent, RunEvents, Trajectory},
    tree::{Node, nanos},
};

/// How many events an observer of one run may be behind before it loses some.
const EVENTS: usize = 256;

/// How often a run that shows heartbeats is taken to show one.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// Made when a run first needs it.
#[derive(Debug, Default)]
pub(crate) struct Harness {
    pub(in crate::run) standstill: Standstill,
    pub(in crate::run) shadows: Shadows,
    /// The longest interval of heartbeats that was set, in nanoseconds; none if 0.
    heartbeat: AtomicU64,
    pub(in crate::run) turns: Turns,
    /// Counts it as its owner's, if somebody caps those; none after the end.
    open: Mutex<Option<Box<dyn RunGuard>>>,
    /// Errors of a run that may have any number.
    errors: AtomicU32,
    pub(in crate::run) trajectory: OnceLock<Trajectory>,
    /// How many tools that were refused were written down there.
    pub(in crate::run) refusals: AtomicU8,
    pub(in crate::run) actions: Actions,
    pub(in crate::run) notices: crate::run::limits::NoticeSettings,
    pub(in crate::run) partials: Partials,
    observed: Mutex<Observed>,
    above: OnceLock<Above>,
    /// Who is asked to stop when the run ends.
    asked: Mutex<Vec<Asked>>,
}

/// Who watches this one run.
#[derive(Debug, Default)]
struct Observed {
    /// Of a run that is in no registry.
    sequence: u64,
    /// Its end has a number.
    over: bool,
    /// None until somebody watches, and after the end.
    sender: Option<broadcast::Sender<RunEvent>>,
}

impl Harness {
    pub(in crate::run) fn heartbeat(&self) -> Duration {
        match self.heartbeat.load(Ordering::Acquire) {
            0 => HEARTBEAT,
            set => Duration::from_nanos(set),
        }
    }

    fn lock_open(&self) -> MutexGuard<'_, Option<Box<dyn RunGuard>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an error that no limit counts.
    pub(in crate::run) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::AcqRel);
    }

    pub(in crate::run) fn errors(&self) -> u32 {
        self.errors.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::run) fn set_above(&self, above: Above) {
        // It is set once, by the one who opens the run.
        let _set_before = self.above.set(above);
    }

    pub(in crate::run) fn above(&self) -> Option<&Above> {
        self.above.get()
    }

    pub(in crate::run) fn ask_at_end(&self, child: Asked) {
        let mut asked = self.lock_asked();
        // Only when it would have to grow: each of many costs the same.
        if asked.len() == asked.capacity() {
            asked.retain(|child| child.strong_count() > 0);
        }
        asked.push(child);
    }

    pub(in crate::run) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.lock_asked())
    }

    fn lock_asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    /// What happens to this run from now on: each observer gets every event, or is
    /// told how many it lost. Of a run that has ended, its end.
    ///
    /// A sub-agent's run has observers of its own.
    #[must_use]
    pub fn subscribe(&self) -> RunEvents {
        let node = self.nearest();
        let mut observed = node.payload.harness().lock();
        // Either the end is seen here, or whoever ends it sees the harness.
        fence(Ordering::SeqCst);
        if node.nearest_end().is_some() {
            let (sender, receiver) = broadcast::channel(1);
            let told = node.payload.identity().and_then(Identity::told);
            let sequence = told.unwrap_or(observed.last());
            // The receiver is there.
            let _ = sender.send(RunEvent::ended(node, sequence));
            return RunEvents::new(receiver);
        }
        let sender = &mut observed.sender;
        let sender = sender.get_or_insert_with(|| broadcast::Sender::new(EVENTS));
        RunEvents::new(sender.subscribe())
    }

    /// How often the streams of the nearest run show a heartbeat, if they do; of
    /// several the longest.
    pub(crate) fn expect_heartbeat(&self, interval: Duration) {
        if interval != HEARTBEAT {
            let harness = self.nearest().payload.harness();
            let set = &harness.heartbeat;
            set.fetch_max(nanos(interval), Ordering::AcqRel);
        }
    }

    /// Counts the nearest run as its owner's until it ends; what was counted for it
    /// before stays.
    pub(crate) fn count_as(&self, open: Box<dyn RunGuard>) {
        let run = self.nearest();
        let harness = run.payload.harness();
        let mut slot = harness.lock_open();
        let second = match &*slot {
            Some(_) => Some(open),
            None => slot.replace(open),
        };
        drop(slot);
        drop(second);
        fence(Ordering::SeqCst);
        if run.nearest_end().is_some() {
            run.uncount();
        }
    }

    /// Tells whoever watches the nearest run, unless that is over.
    pub(crate) fn notify(&self, notice: &Notice) {
        self.nearest().publish(notice, false);
    }
}

impl Node<Info> {
    /// Locks are held from the look at the end to the sending, so that the end,
    /// which is stored before it is told, comes last for everybody. The `last`
    /// notice is that of whoever ends the run, before the end is told.
    pub(in crate::run) fn publish(&self, notice: &Notice, last: bool) {
        // A subscriber of the program's is not called under a lock.
        tracing::debug!(target: "tower_agent", run = %self.run_id(), notice = notice.name(), "notice");
        let mut observed = self.payload.harness_if_any().map(Harness::lock);
        if !last && self.nearest_end().is_some() {
            return;
        }
        let registration = self.payload.registration();
        let told = registration.and_then(|registration| registration.notified(self, notice, last));
        if let Some(observed) = &mut observed {
            observed.send(told, |sequence| RunEvent::notice(self, notice, sequence));
        }
    }

    /// The run is over, and no longer one that its owner has open.
    pub(crate) fn uncount(&self) {
        let harness = self.payload.harness_if_any();
        let open = harness.and_then(|harness| harness.lock_open().take());
        drop(open);
    }

    /// The run is over: its observers are told, and nothing after it.
    pub(in crate::run) fn publish_end(&self) {
        fence(Ordering::SeqCst);
        let mut observed = self.payload.harness_if_any().map(Harness::lock);
        let registration = self.payload.registration();
        let told = registration.and_then(|registration| registration.ended(self));
        if let Some(observed) = &mut observed {
            let sequence = told.unwrap_or(observed.last());
            if let Some(sender) = &observed.sender {
                // Only that nobody listens any more can go wrong.
                let _ = sender.send(RunEvent::ended(self, sequence));
            }
            observed.sender = None;
        }
    }
}

impl Observed {
    /// The number of the end, which is the last event.
    fn last(&mut self) -> u64 {
        if !std::mem::replace(&mut self.over, true) {
            self.sequence += 1;
        }
        self.sequence
    }

    fn send(&mut self, told: Option<u64>, event: impl FnOnce(u64) -> RunEvent) {
        self.sequence += 1;
        if let Some(sender) = &self.sender {
            // Only that nobody listens any more can go wrong.
            let _ = sender.send(event(told.unwrap_or(self.sequence)));
        }
    }
}
