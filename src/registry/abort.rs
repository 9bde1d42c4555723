//! Ends runs from outside: one, a session, or all at a shutdown or after a drain.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use super::{RunRegistry, entries::Entries, owner_caps::Owner};
use crate::run::{Run, RunId, Settled, TaskId, TerminalReason};

impl RunRegistry {
    /// Ends the owner's run of this id as aborted. Answers whether this call ended it.
    ///
    /// The answer is false, without any effect, if the id is unknown, another owner's, or its run
    /// has ended.
    ///
    /// Observers have received the end before any waiter of the run wakes; by then the run has also
    /// left the live runs.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know who won"
    )]
    pub fn abort(&self, owner: Owner, id: &RunId) -> bool {
        let run = self.get(owner, id);
        run.is_some_and(|run| end(&run, TerminalReason::Aborted, run.now()))
    }

    /// Ends all live runs of this owner's session as aborted, each as [`abort`](Self::abort)
    /// does.
    ///
    /// Answers the ids of the runs that this call ended, in the order in which they were
    /// opened.
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

    /// Ends the other live runs of this run's session as aborted, and answers their ids.
    pub(crate) fn abort_others(&self, run: &Run) -> Vec<RunId> {
        let node = run.nearest();
        let identity = node.payload.identity();
        let session = identity.and_then(|known| Some((known.owner, known.session.as_ref()?)));
        session.map_or_else(Vec::new, |(owner, session)| {
            self.abort_but(Owner(owner), session, Some(node.number()))
        })
    }

    fn abort_but(&self, owner: Owner, session: &str, spared: Option<u64>) -> Vec<RunId> {
        self.shared.tidy();
        let runs = self.shared.sessions.lock().find(session, Some(owner));
        let (mut aborted, now) = (Vec::new(), Instant::now());
        // Each run is checked, ended and dropped before the next, so that its memory enters the
        // processor's cache once.
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

    /// Ends every live run as [`Shutdown`](TerminalReason::Shutdown), and admits none from now
    /// on. Answers the number of runs that it ended.
    ///
    /// A shutdown is the one end after which clients may retry elsewhere.
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

    /// Begins a [shutdown](Self::shutdown) that lets running work finish, for `limit` at most.
    ///
    /// From now on the registry admits no run, and live runs admit no call and no attempt. Runs
    /// without work end at once. A run of one call ends as its call does. Other runs end as
    /// [`Shutdown`](TerminalReason::Shutdown) when their last work is done. At `limit` all runs
    /// that are left end so.
    ///
    /// The drain has begun when this method returns; dropping the future does not stop the drain.
    pub fn drain(&self, limit: Duration) -> RunDrain {
        let live = self.close();
        let now = Instant::now();
        for run in &live {
            let began = run.at(now);
            let until = began.saturating_add(limit);
            run.node().check_below(began);
            let node = run.node();
            node.close(&TerminalReason::Shutdown, until, began);
            // A run at its turn cap is held open for a last call, which a drain does not admit.
            node.release(began);
        }
        RunDrain::new(live, now.checked_add(limit))
    }

    /// Makes the registry admit no run from now on, and answers its live runs.
    fn close(&self) -> Vec<Run> {
        self.shared.tidy();
        self.shared.close();
        let live = |entries: &mut Entries| entries.live().collect::<Vec<_>>();
        self.shared.collect(live)
    }
}

/// Ends a live run, and answers whether this call ended it. An ended run stays unchanged: `reason`
/// does not become one of its late reasons.
fn end(run: &Run, reason: TerminalReason, now: Duration) -> bool {
    run.node().nearest_end().is_none() && run.node().end(reason, None, now).is_ok()
}

/// Resolves when all live runs have ended and their work is gone.
///
/// [`RunRegistry::drain`](crate::registry::RunRegistry::drain) returns this future. The future
/// resolves a second after the drain's limit at the latest, because a caller may hold a body that
/// it does not read. The output is the number of runs that were cut at the limit.
///
/// # Cancel safety
///
/// Dropping the future does not stop the drain: the runs end all the same.
///
/// # Panics
///
/// If the future is polled outside of a Tokio runtime with time while runs are left.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct RunDrain {
    /// The runs that the drain still waits for; the next one stands last. The future waits for one
    /// at a time, so each end wakes it at most once.
    left: Vec<Run>,
    settled: Option<Settled>,
    /// The timer for `until`; `None` until it is needed, and after it fired.
    timer: Option<Pin<Box<Sleep>>>,
    /// The instant at which the drain cuts runs; `None` (never) if no instant can hold it.
    limit: Option<Instant>,
    /// The instant for which the timer is set: the limit, then the end of the grace.
    until: Option<Instant>,
    fired: bool,
    cut: usize,
}

/// How long after the limit the drain waits for the work of cut runs to be dropped.
const GRACE: Duration = Duration::from_secs(1);

impl RunDrain {
    pub(super) const fn new(left: Vec<Run>, limit: Option<Instant>) -> Self {
        Self {
            left,
            settled: None,
            timer: None,
            limit,
            until: limit,
            fired: false,
            cut: 0,
        }
    }

    /// Ends the runs that still live, because the limit has passed, and moves the timer to the end
    /// of the grace.
    fn latch(&mut self, now: Instant) {
        self.fired = true;
        self.timer = None;
        self.until = self.until.and_then(|until| until.checked_add(GRACE));
        for run in &self.left {
            drop(run.node().check(run.at(now), TaskId::NONE));
        }
    }

    /// Whether the run ended as `Shutdown` because the limit of the drain passed.
    fn was_cut(&self, run: &Run) -> bool {
        let end = run.node().own_end();
        let end = end.filter(|end| end.reason == TerminalReason::Shutdown);
        let at = end.and_then(|end| run.instant(end.at));
        at.zip(self.limit).is_some_and(|(at, limit)| at >= limit)
    }
}

impl Future for RunDrain {
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<usize> {
        let this = &mut *self;
        loop {
            if let Some(settled) = &mut this.settled {
                if Pin::new(settled).poll(cx).is_pending() {
                    break;
                }
                this.settled = None;
                if let Some(run) = this.left.pop() {
                    this.cut += usize::from(this.was_cut(&run));
                }
            }
            match this.left.last() {
                Some(run) => this.settled = Some(run.settled()),
                None => {
                    this.timer = None;
                    return Poll::Ready(this.cut);
                }
            }
        }
        let Some(until) = this.until else {
            return Poll::Pending;
        };
        let timer = this
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        // The timer is polled outside tokio's coop budget, as in `RunWait`.
        let mut timer = tokio::task::unconstrained(timer);
        if Pin::new(&mut timer).poll(cx).is_ready() {
            if this.fired {
                this.settled = None;
                let left = std::mem::take(&mut this.left);
                this.cut += left.iter().filter(|run| this.was_cut(run)).count();
                return Poll::Ready(this.cut);
            }
            this.latch(Instant::now());
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
