//! The events of a run, as its observers receive them, and the guard that counts it as open.

use std::sync::{
    MutexGuard,
    atomic::{Ordering, fence},
};

use crate::run::{
    report::{RunEvent, RunNotice},
    state::{EventChannel, NodeState, RunGuard},
    tree::Node,
};

impl Node<NodeState> {
    /// Sends a notice to the observers of this run and of its registry, unless the run is over.
    ///
    /// The lock of the run's channel, if it has one, is held from the check of the end to the send.
    /// The end is stored before it is published, so each observer receives the end as the run's
    /// last event. `last` marks a notice that the ending thread sends just before the end is
    /// published: it is sent though the run is over.
    pub(in crate::run) fn publish(&self, notice: &RunNotice, last: bool) {
        // The event of tracing comes before the lock: the program's subscriber must not run under
        // it.
        tracing::debug!(target: "tower_agent", run = %self.run_id(), notice = notice.name(), "notice");
        loop {
            let own = self.own_events();
            let own = own.as_deref();
            if !last && self.nearest_end().is_some() {
                return;
            }
            if let Some(registration) = self.payload.registration() {
                if registration.notified(self, notice, last, own) {
                    return;
                }
            } else {
                if let (Some(own), Some(number)) = (own, self.payload.next_event()) {
                    own.send(RunEvent::notice(self, notice, number, None));
                }
                return;
            }
        }
    }

    /// The locked channel to the run's observers; `None` if the run has no channel yet.
    fn own_events(&self) -> Option<MutexGuard<'_, EventChannel>> {
        let rare = self.payload.rare_if_any()?;
        Some(rare.observed.lock())
    }

    /// Stores the guard that counts the nearest run as open for its owner, until the run ends. A
    /// guard that was stored before stays.
    pub(crate) fn count_as(&self, open: Box<dyn RunGuard>) {
        let run = self.nearest_run();
        let rare = run.run_state().rare();
        let mut slot = rare.open.lock();
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

    /// Drops the guard that counts the run as open for its owner. The run is over or about to
    /// complete.
    pub(crate) fn uncount(&self) {
        let rare = self.payload.rare_if_any();
        let open = rare.and_then(|rare| rare.open.lock().take());
        drop(open);
    }

    /// Sends the run's end to its registry's observers, and to its own as their last event.
    pub(in crate::run) fn publish_end(&self) {
        fence(Ordering::SeqCst);
        let own = self.own_events();
        if let Some(registration) = self.payload.registration() {
            registration.ended(self, own.as_deref());
        }
        self.payload.last_event();
        // A thread that subscribes meanwhile sees the mark of the last event, or this thread sees
        // the channel of the new observer.
        fence(Ordering::SeqCst);
        if let Some(mut own) = own.or_else(|| self.own_events()) {
            if own.is_open() {
                own.send(RunEvent::ended(self).numbered(self));
                own.sender = None;
            }
        }
    }
}
