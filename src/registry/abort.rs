use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{RunRegistry, drain::RunDrain, entries::Entries, owner::Owner};
use crate::run::{Run, RunId, TerminalReason};

impl RunRegistry {
    /// Ends the owner's run of this id as aborted. Answers whether it was this
    /// call that ended it; an unknown id, another owner's or an ended run's
    /// answers false, and nothing is touched.
    ///
    /// By the time that anybody who waits for the run is woken, it is none of those
    /// that live any more, and observers have been told.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know who won"
    )]
    pub fn abort(&self, owner: Owner, id: &RunId) -> bool {
        let run = self.get(owner, id);
        run.is_some_and(|run| end(&run, TerminalReason::Aborted, run.now()))
    }

    /// Ends all live runs of this owner's session as aborted, each as
    /// [`abort`](Self::abort) does. Answers the ids of those that it was this call
    /// that ended, in the order in which they were opened.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry};
    ///
    /// let registry = RunRegistry::new();
    /// assert!(registry.abort_session(Owner::default(), "chat-7").is_empty());
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know which"
    )]
    pub fn abort_session(&self, owner: Owner, session: &str) -> Vec<RunId> {
        self.abort_but(owner, session, None)
    }

    /// The same for the session that this run belongs to, but for the run itself.
    pub(crate) fn abort_others(&self, run: &Run) -> Vec<RunId> {
        let node = run.nearest();
        let identity = node.payload.identity();
        let session = identity.and_then(|known| Some((known.owner, known.session.as_ref()?)));
        session.map_or_else(Vec::new, |(owner, session)| {
            self.abort_but(Owner(owner), session, Some(node.number()))
        })
    }

    fn abort_but(&self, owner: Owner, session: &str, spared: Option<u64>) -> Vec<RunId> {
        let shared = &self.shared;
        shared.tidy();
        let session = shared.session(Arc::from(session));
        let runs = shared.sessions(&session, |sessions| sessions.of(&session, owner.0));
        let (mut aborted, now) = (Vec::new(), Instant::now());
        // One after the other is looked at and ended and let go: what a run is made of
        // comes into the processor's cache once.
        for run in runs {
            let at = run.at(now);
            run.node().check_below(at);
            let spared = Some(run.node().number()) == spared;
            if !spared && end(&run, TerminalReason::Aborted, at) {
                aborted.push(run.id());
            }
        }
        aborted
    }

    /// Ends every live run as [`Shutdown`](TerminalReason::Shutdown), the one
    /// end after which clients may try elsewhere, and admits nothing from now on.
    /// Answers how many it ended.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know how many"
    )]
    pub fn shutdown(&self) -> usize {
        let live = self.close();
        let now = Instant::now();
        let ended = live
            .into_iter()
            .filter(|run| end(run, TerminalReason::Shutdown, run.at(now)));
        ended.count()
    }

    /// Begins a [shutdown](Self::shutdown) that lets what is under way finish, for
    /// `limit` at the longest: nothing is admitted from now on, neither a run nor
    /// a call or an attempt of one that lives. Runs that nobody works on end at
    /// once; a run of one call ends as that does; the others end as
    /// [`Shutdown`](TerminalReason::Shutdown) when the last that is under way is
    /// done. At `limit` all that is left ends so.
    ///
    /// It has begun when this returns, whatever becomes of the future.
    pub fn drain(&self, limit: Duration) -> RunDrain {
        let live = self.close();
        let now = Instant::now();
        for run in &live {
            let began = run.at(now);
            let until = began.saturating_add(limit);
            run.node().check_below(began);
            let node = run.node();
            node.close(&TerminalReason::Shutdown, until, began);
            // A last call would be new work.
            node.release(began);
        }
        RunDrain::new(live, now.checked_add(limit))
    }

    /// Admits nothing from now on; answers what lives.
    fn close(&self) -> Vec<Run> {
        self.shared.tidy();
        self.shared.close();
        let live = |entries: &mut Entries| entries.live().collect::<Vec<_>>();
        self.shared.collect(live)
    }
}

/// Answers whether this call ended it; of one that is over nothing is changed, not
/// even what came too late.
fn end(run: &Run, reason: TerminalReason, now: Duration) -> bool {
    run.node().nearest_end().is_none() && run.node().end(reason, None, now).is_ok()
}
