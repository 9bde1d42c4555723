use std::sync::{Arc, Weak};

use tokio::time::advance;

use super::{Known, Model, SESSIONS};
use crate::{
    registry::{AbortOutcome, RunRegistry, owner_caps::Owner},
    run::{RunEvent, RunEvents, RunNotice, TerminalReason},
};

const REASONS: [TerminalReason; 4] = [
    TerminalReason::Completed,
    TerminalReason::Completed,
    TerminalReason::TurnCap,
    TerminalReason::ClientDisconnect,
];

impl Model {
    pub(super) fn end(&mut self) {
        let reason = REASONS[self.random.usize(..REASONS.len())].clone();
        if self.all.is_empty() {
            return;
        }
        // Also one that is over, or whose id another one has.
        let n = self.random.usize(..self.all.len());
        let ours = self.all[n].run.end(reason.clone());
        assert_eq!(ours, self.all[n].reason.is_none());
        if ours {
            self.ended(n, reason);
        }
    }

    pub(super) fn abort(&mut self) {
        let name = self.any_name();
        let ours = self.registry.abort(self.owners[name.0], &name.1);
        let known = self.hit(&name);
        let live = known.filter(|n| self.all[*n].reason.is_none());
        let expected = match (known, live) {
            (None, _) => AbortOutcome::Unknown,
            (_, Some(_)) => AbortOutcome::Ended,
            _ => AbortOutcome::AlreadyOver,
        };
        assert_eq!(ours, expected);
        if let Some(n) = live {
            self.ended(n, TerminalReason::Aborted);
        }
    }

    pub(super) fn abort_session(&mut self) {
        let session = self.random.usize(..SESSIONS.len());
        let owner = self.random.usize(..self.owners.len());
        let aborted = self
            .registry
            .abort_session(self.owners[owner], SESSIONS[session]);
        let ours = self.of_session(session, Some(owner));
        let ids = ours.iter().map(|n| self.all[*n].name.1.clone());
        assert_eq!(aborted, ids.collect::<Vec<_>>(), "in the order of opening");
        for n in ours {
            self.ended(n, TerminalReason::Aborted);
        }
    }

    pub(super) async fn finish(mut self, mut events: RunEvents) {
        let live = self.live().count();
        assert_eq!(self.registry.shutdown(), live);
        let late = self
            .registry
            .open(Owner::default(), "late".parse().unwrap());
        assert_eq!(late.terminal_reason(), Some(TerminalReason::Shutdown));
        for n in self.live().collect::<Vec<_>>() {
            self.ended(n, TerminalReason::Shutdown);
        }
        self.compare();

        let nodes = self
            .all
            .iter()
            .map(|known| Arc::downgrade(known.run.node()));
        let nodes: Vec<Weak<_>> = nodes.collect();
        let mut expected: Vec<_> = self.all.drain(..).map(told).collect();
        advance(RunRegistry::REMEMBERED).await;
        assert!(self.registry.list().is_empty());
        assert!(nodes.iter().all(|node| node.upgrade().is_none()), "a leak");
        // When it would have been looked at, had it lived.
        advance(RunRegistry::IDLE).await;
        assert!(self.registry.list().is_empty());
        assert_eq!(self.registry.state.size(), 0);

        drop(self.registry);
        let (mut opened, mut ended) = (0, Vec::new());
        while let Some(event) = events.next().await {
            match event {
                RunEvent::Ended {
                    reason, snapshot, ..
                } => ended.push((snapshot.run.to_string(), snapshot.generation, reason)),
                RunEvent::Notice {
                    notice: RunNotice::Opened,
                    ..
                } => opened += 1,
                other => panic!("{other:?}"),
            }
        }
        let order = |told: &(String, u64, TerminalReason)| {
            (told.0.clone(), told.1, told.2.as_str().to_owned())
        };
        ended.sort_by_key(order);
        expected.sort_by_key(order);
        assert_eq!(opened, expected.len());
        assert_eq!(ended, expected, "each once");
    }
}

fn told(known: Known) -> (String, u64, TerminalReason) {
    let reason = known.reason.expect("all have ended");
    (known.name.1.to_string(), known.generation, reason)
}
