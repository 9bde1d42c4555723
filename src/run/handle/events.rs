//! What observers of a run are told: events, notices, limits in shadow mode.

use std::{
    sync::atomic::{Ordering, fence},
    time::Duration,
};

use tokio::sync::broadcast;

use super::Run;
use crate::run::{
    kinds::{NodeKind, Scope, Step},
    limits::{Noted, ProgressNotices, WorkingNotices},
    reason::{ReasonClass, TerminalReason},
    report::{RunEvent, RunEvents, RunNotice},
    state::{EVENTS, HEARTBEAT, Identity, NodeState, RunGuard, RunState},
    tree::{End, Nanos, Node, nanos},
};

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
    pub(crate) fn notify(&self, notice: &RunNotice) {
        self.nearest().publish(notice, false);
    }
}

impl Node<NodeState> {
    /// Locks are held from the look at the end to the sending, so that the end,
    /// which is stored before it is told, comes last for everybody. The `last`
    /// notice is that of whoever ends the run, before the end is told.
    pub(in crate::run) fn publish(&self, notice: &RunNotice, last: bool) {
        // A subscriber of the program's is not called under a lock.
        tracing::debug!(target: "tower_agent", run = %self.run_id(), notice = notice.name(), "notice");
        let mut observed = self.payload.harness_if_any().map(RunState::lock);
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
        let mut observed = self.payload.harness_if_any().map(RunState::lock);
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

impl Run {
    /// Has [observers](Self::subscribe) told of tools of this run that take long,
    /// and of those of its sub-agents, unless they ask for something else. A
    /// [`ProgressLayer`](crate::ProgressLayer) asks for its own if the program
    /// did not. Tools that are running already are not concerned.
    pub fn notices(&self, notices: ProgressNotices) {
        self.nearest().payload.harness().notices.set(notices);
    }

    /// The same from a layer: what the program asked for stays.
    pub(crate) fn suggest_notices(&self, notices: ProgressNotices) {
        if notices.is_on() {
            self.nearest().payload.harness().notices.suggest(notices);
        }
    }

    /// What holds for the tools of this node.
    pub(crate) fn asked_notices(&self) -> Option<ProgressNotices> {
        let node = &**self.node();
        let mut nodes = std::iter::once(node).chain(node.ancestors());
        nodes.find_map(|node| {
            let run = node.kind() == NodeKind::Run;
            let harness = node.payload.harness_if_any().filter(|_| run)?;
            harness.notices.get()
        })
    }

    /// The step of this node is waited for, which is not over: tells if it is
    /// time. Answers when to look again.
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
    /// A limit that ends nothing has passed on the node of this scope: told once for
    /// each, and once more if the node completes all the same.
    pub(crate) fn would_end(&self, scope: Scope, reason: &TerminalReason, limit: Option<Duration>) {
        let node = self.in_scope(scope);
        if node.nearest_end().is_some() {
            return;
        }
        let noted = Noted {
            node: node.number(),
            reason: reason.clone(),
            limit,
            after: self.now().saturating_sub(node.opened()),
        };
        if !node.nearest_run().payload.harness().shadows.note(noted) {
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
        // Either the end is seen here, or whoever ends it sees the note.
        fence(Ordering::SeqCst);
        if node.own_end().is_some() {
            // Its end may have been told already, and nothing comes after that.
            let _too_late = node
                .nearest_run()
                .payload
                .harness()
                .shadows
                .take(node.number());
        }
    }
}

impl Node<NodeState> {
    /// The node is over: tells which limits in shadow mode would have been wrong.
    pub(in crate::run) fn judge_shadows(&self, end: &End) {
        fence(Ordering::SeqCst);
        let run = self.nearest_run();
        let Some(harness) = run.payload.harness_if_any() else {
            return;
        };
        let completed = end.origin == self.number() && end.reason.class() == ReasonClass::Success;
        for noted in harness.shadows.take(self.number()) {
            if !completed {
                continue;
            }
            let Noted {
                reason,
                limit,
                after,
                ..
            } = noted;
            let took = end.lasted;
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
            // Of its own end a run tells this last, before the end.
            run.publish(&notice, self.kind() == NodeKind::Run);
        }
    }
}
