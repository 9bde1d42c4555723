//! Ends all runs of a registry: at once by a shutdown, or after a drain.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{RunRegistry, abort::end, check_trees};
use crate::run::{Run, TerminalReason};

impl RunRegistry {
    /// Ends every live run as [`Shutdown`](TerminalReason::Shutdown), and admits none from now
    /// on. Returns the number of runs that it ended.
    ///
    /// A run with a deadline that has passed by now ends by that deadline instead. A shutdown is
    /// the one end after which clients may retry elsewhere.
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
    /// From now on the registry admits no run, and live runs admit no call, attempt, tool or
    /// sub-agent, but for attempts of a [last call](crate::TurnCapLayer::final_call) under way. Runs
    /// without work end at once. A run of one call ends as its call does, other runs as
    /// [`Shutdown`](TerminalReason::Shutdown) when their last work is done. Each run that is left
    /// ends at `limit`. A run that was closing before ends with the reason for which it closed; one
    /// that was [at its cap on turns](crate::layers::turn_cap#when-a-run-ends), and is left at
    /// `limit`, as `Shutdown`.
    ///
    /// The future resolves when all these runs have ended and their work is gone, a second after
    /// `limit` at the latest: a caller may hold a body that it does not read. The output is the
    /// number of runs that were cut at the limit.
    ///
    /// # Cancel safety
    ///
    /// The drain has begun when this method returns. Dropping the future does not stop the drain:
    /// the runs end all the same.
    ///
    /// # Panics
    ///
    /// The future panics if it is polled outside of a Tokio runtime with time while runs are left.
    pub fn drain(
        &self,
        limit: Duration,
    ) -> impl Future<Output = usize> + Send + Sync + Unpin + use<> {
        let mut live = self.close();
        let now = Instant::now();
        check_trees(&live, now);
        // From the roots down: the closing of a run reaches all nodes below it in one walk.
        live.sort_by_cached_key(|run| run.node().ancestors().count());
        for run in &live {
            let began = run.at(now);
            let until = began.saturating_add(limit);
            let node = run.node();
            node.close(&TerminalReason::Shutdown, until, began);
            // A run at its turn cap may be held open for a last call, which a drain does not admit.
            node.release(began);
        }
        Box::pin(drain(live, now.checked_add(limit)))
    }

    /// Whether the registry admits no run any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.is_closed()
    }

    /// Makes the registry admit no run from now on, and returns its live runs.
    fn close(&self) -> Vec<Run> {
        self.state.tidy();
        self.state.close();
        let mut live = Vec::new();
        self.state.each(|entries| live.extend(entries.live()));
        live
    }
}

/// How long after the limit the drain waits for the work of cut runs to be dropped.
const GRACE: Duration = Duration::from_secs(1);

/// Waits until the runs have settled, or until the grace after `limit` is over. At `limit` (never,
/// if that is `None`) it ends the runs that are left. Returns the number of runs that were cut.
async fn drain(mut left: Vec<Run>, limit: Option<Instant>) -> usize {
    let (mut cut, mut until) = (0, limit);
    // The loop waits for one run at a time, so that each end wakes the task at most once.
    while let Some(run) = left.last() {
        let is_settled = match until {
            Some(until) => timeout_at(until, run.settled()).await.is_ok(),
            None => {
                run.settled().await;
                true
            }
        };
        if is_settled {
            cut += usize::from(was_cut(run, limit));
            left.pop();
        } else if until == limit {
            until = limit.and_then(|limit| limit.checked_add(GRACE));
            let now = Instant::now();
            for run in &left {
                drop(run.node().check_from_outside(run.at(now)));
            }
        } else {
            break;
        }
    }
    cut + left.iter().filter(|run| was_cut(run, limit)).count()
}

/// Whether the run ended as `Shutdown` because the limit of the drain passed.
fn was_cut(run: &Run, limit: Option<Instant>) -> bool {
    let end = run.node().own_end();
    let end = end.filter(|end| end.reason == TerminalReason::Shutdown);
    let at = end.and_then(|end| run.instant(end.at()));
    at.zip(limit).is_some_and(|(at, limit)| at >= limit)
}
