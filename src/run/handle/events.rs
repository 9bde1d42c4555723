//! The notices and events that observers of a run receive, and the reports of shadow mode.

use std::{
    sync::{
        MutexGuard,
        atomic::{Ordering, fence},
    },
    time::Duration,
};

use tokio::sync::broadcast;

use super::Run;
use crate::run::{
    handle::Scope,
    limits::{ProgressNotices, ShadowHit, WorkingNotices},
    reason::{ReasonClass, TerminalReason},
    report::{RunEvent, RunEvents, RunNotice},
    state::{EVENTS, EventChannel, HEARTBEAT, NodeState, RunGuard},
    step::Step,
    tree::{End, Nanos, Node, NodeKind, nanos},
};

impl Run {
    /// Opens an observer of the events of the nearest run from now on.
    ///
    /// Each observer receives every event, or learns how many it lost. For a run that has ended the
    /// observer receives the end. A sub-agent's run has observers of its own.
    #[must_use]
    pub fn subscribe(&self) -> RunEvents {
        let node = self.nearest();
        let mut observed = node.run_state().rare().observed.lock();
        // This fence pairs with the second one in `publish_end`: this thread sees that the last
        // event is numbered, or the ending thread sees the rare state.
        fence(Ordering::SeqCst);
        // Until the last event is numbered, the ending thread still finds this new observer.
        if node.payload.has_last_event() {
            let sender = broadcast::Sender::new(1);
            let events = RunEvents::new(&sender);
            // `send` cannot fail: the receiver exists.
            let _ = sender.send(RunEvent::ended(node).numbered(node));
            return events;
        }
        let sender = &mut observed.sender;
        let sender = sender.get_or_insert_with(|| broadcast::Sender::new(EVENTS));
        RunEvents::new(sender)
    }

    /// Sets the interval at which the streams of the nearest run are expected to show a heartbeat.
    ///
    /// Of several intervals the longest holds; one of `HEARTBEAT`, the default, is ignored.
    pub(crate) fn expect_heartbeat(&self, interval: Duration) {
        if interval != HEARTBEAT {
            let rare = self.run_state().rare();
            let set = &rare.heartbeat;
            set.fetch_max(nanos(interval), Ordering::AcqRel);
        }
    }

    /// Stores the guard that counts the nearest run as open for its owner, until the run ends. A
    /// guard that was stored before stays.
    pub(crate) fn count_as(&self, open: Box<dyn RunGuard>) {
        let run = self.nearest();
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

    /// Sends a notice to the observers of the nearest run and of its registry, unless the run is
    /// over.
    pub(crate) fn notify(&self, notice: &RunNotice) {
        self.nearest().publish(notice, false);
    }
}

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

impl Run {
    /// Sets when [observers](Self::subscribe) of this run receive notices about its slow tools.
    ///
    /// The setting holds for the tools of [child](Self::child) runs too, unless such a run has its
    /// own. A [`TerminalResponseLayer`](crate::TerminalResponseLayer) with notices sets its own if
    /// the program set none. Tools that are running already are not affected.
    pub fn notices(&self, notices: ProgressNotices) {
        self.run_state().rare().notices.lock().replace(notices);
    }

    /// Sets a layer's notices for the nearest run, unless the program or another layer set some.
    pub(crate) fn suggest_notices(&self, notices: ProgressNotices) {
        if notices.is_on() {
            let mut notices_of_run = self.run_state().rare().notices.lock();
            notices_of_run.get_or_insert(notices);
        }
    }

    /// The notices that are set for the tools of this node, on the nearest run that has some.
    pub(crate) fn asked_notices(&self) -> Option<ProgressNotices> {
        let mut nodes = self.node().path();
        nodes.find_map(|node| *node.payload.rare_if_any()?.notices.lock())
    }

    /// Sends a notice if the running step of this node is due for one. Returns the time at which
    /// the step's next notice is due.
    pub(crate) fn tell_working(
        &self,
        working: &mut WorkingNotices,
        now: Duration,
        step: impl FnOnce() -> Step,
    ) -> Option<Nanos> {
        if let Some(running_for) = working.wait(now) {
            self.notify(&RunNotice::working(step(), running_for));
        }
        working.next().map(nanos)
    }
}

impl Run {
    /// Reports a limit in shadow mode that has passed on the node of this scope.
    ///
    /// The report is sent once per node, reason and limit. If the node completes later, a second
    /// notice says that the limit was wrong.
    pub(crate) fn would_end(&self, scope: Scope, reason: &TerminalReason, limit: Option<Duration>) {
        let node = self.in_scope(scope);
        if node.nearest_end().is_some() {
            return;
        }
        let hit = ShadowHit {
            node: node.number(),
            reason: reason.clone(),
            limit,
            after: self.now().saturating_sub(node.opened()),
        };
        if !node.run_state().rare().shadows.note(hit) {
            return;
        }
        tracing::info!(
            target: "tower_agent",
            run = %node.run_id(),
            kind = node.kind().as_str(),
            reason = reason.as_str(),
            limit = limit.map(tracing::field::debug),
            "would have ended"
        );
        self.notify(&RunNotice::WouldHaveEnded {
            reason: reason.clone(),
            limit,
        });
        // This fence pairs with the one in `judge_shadows`: this thread sees the end, or the ending
        // thread sees the note.
        fence(Ordering::SeqCst);
        if node.own_end().is_some() {
            // The end of the node may have been published already, and no notice may follow it.
            let _too_late = node.run_state().rare().shadows.take(node.number());
        }
    }
}

impl Node<NodeState> {
    /// Removes the notes of shadow mode about this node, which has ended. If the node completed by
    /// itself, each note is reported as a false positive.
    pub(in crate::run) fn judge_shadows(&self, end: &End) {
        fence(Ordering::SeqCst);
        let run = self.nearest_run();
        let Some(rare) = run.payload.rare_if_any() else {
            return;
        };
        let hits = rare.shadows.take(self.number());
        if end.origin != self.number() || end.reason.class() != ReasonClass::Success {
            return;
        }
        let took = end.lasted();
        for hit in hits {
            let (reason, limit, after) = (hit.reason, hit.limit, hit.after);
            tracing::warn!(
                target: "tower_agent",
                run = %self.run_id(),
                kind = self.kind().as_str(),
                reason = reason.as_str(),
                limit = limit.map(tracing::field::debug),
                ?after,
                ?took,
                "false positive: it would have been ended, and completed"
            );
            let notice = RunNotice::FalsePositive {
                reason,
                after,
                took,
            };
            // The run's own end is stored already; its notices come before the end is published.
            run.publish(&notice, self.kind() == NodeKind::Run);
        }
    }
}
