//! Runs by id: opened once, found again, ended from outside, remembered for a
//! while after their end.
//!
//! A run that spans many requests is one run only if every request finds the
//! same node; and a run that was stopped stays stopped only if its id is
//! remembered. An id whose run ended, but for `Completed`, is a *tombstone*:
//! until it expires, [`RunRegistry::open`] answers the ended run, and every
//! layer answers its stored reason without an upstream call.
//!
//! # What is counted
//!
//! Ids belong to an [`Owner`]: the same id of two owners is two runs. Live runs
//! are pinned; ended ones are kept for ten minutes, extended by each hit, and
//! at most [`RunRegistry::ENDED`] of them, where those that completed are
//! forgotten first, and those that a limit ended last: many new ids bring no old
//! one back. Idle ends, ends by a deadline that nobody else saw, and
//! forgetting happen lazily, when the registry is used or somebody
//! [waits](RunRegistry::wait); no task runs for them.
//!
//! # Runs that were never used
//!
//! A run that a request opened, by an id of its own, is completed at once if the request
//! is refused for its caller's fault before an upstream was asked (its body cannot be
//! read, is too large or not usable, no candidate can serve it) and no other work of the
//! run was ever admitted: ids that come with refused requests are not kept. The next
//! request with the id opens it anew. A call that an upstream refused counts as work.
//!
//! # Generations
//!
//! An id that is opened anew is another run: after it completed, or because the
//! program [reopened](RunRegistry::reopen) it. Its
//! [generation](RunSnapshot::generation) is one higher, as long as the one before
//! is remembered. Whoever holds on to, or waits for, the former run touches the
//! former run alone.
//!
//! # Shutdown
//!
//! After [`shutdown`](RunRegistry::shutdown) or [`drain`](RunRegistry::drain) a
//! registry admits nothing, for good: what is opened is over from its birth.
//!
//! # Examples
//!
//! ```
//! use tower_agent::{Owner, RunRegistry, TerminalReason};
//!
//! let registry = RunRegistry::new();
//! let run = registry.open(Owner::default(), "nightly".parse()?);
//!
//! assert!(registry.abort(Owner::default(), &"nightly".parse()?));
//! assert!(!registry.abort(Owner::default(), &"nightly".parse()?), "once");
//!
//! let again = registry.open(Owner::default(), "nightly".parse()?);
//! assert_eq!(again.terminal_reason(), Some(TerminalReason::Aborted));
//! # Ok::<_, tower_agent::InvalidRunId>(())
//! ```

mod abort;
mod drain;
mod entries;
mod eviction;
mod held;
mod idle;
mod key;
mod open;
mod owner;
mod owner_caps;
mod page;
mod sessions;
mod shared;
mod slab_map;
#[cfg(test)]
mod tests;
mod timer_queue;
mod weak;

pub use self::{
    drain::RunDrain,
    owner::Owner,
    owner_caps::OwnerCaps,
    page::{InvalidRunCursor, RunCursor, RunPage},
};

pub(crate) use self::{held::Held, owner_caps::OpenRun, weak::WeakRegistry};

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use self::shared::Shared;
use crate::run::{Run, RunEvents, RunId, RunSnapshot, RunWait, ShadowReport, Trajectory};

/// Runs by owner and id. Cheap to clone; all clones are the same registry.
#[derive(Clone, Debug)]
pub struct RunRegistry {
    shared: Arc<Shared>,
}

impl Default for RunRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl RunRegistry {
    /// How many ended runs are remembered; beyond it the oldest are forgotten,
    /// first of those that completed, whose id was made up, or that ended by a time
    /// that their caller announced, then of those that somebody ended, last of those
    /// that a limit or a clock did.
    pub const ENDED: usize = 10_000;

    /// How long an ended run is remembered after its last hit.
    pub const REMEMBERED: Duration = Duration::from_secs(600);

    /// How long a run that was given an id may have nothing in flight before
    /// it counts as completed, unless [`RunLayer::idle`](crate::RunLayer::idle)
    /// says otherwise.
    pub const IDLE: Duration = Duration::from_secs(1800);

    /// How many events an observer may be behind before it loses some.
    pub const EVENTS: usize = 1024;

    /// How long a [`wait`](Self::wait) takes at the longest, if the one who asks
    /// does not say.
    pub const WAIT: Duration = Duration::from_secs(30);

    /// How long after its deadline a run, or a call of it, may still count as
    /// live because nobody looked, or because what it held was never given back.
    pub const SAFETY: Duration = Duration::from_secs(60);

    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared::new()),
        }
    }

    /// Writes what the harness does to the runs of this registry, and what the caps of
    /// their owners refuse, to `trajectory`, as long as the registry is there. Of two the first stays.
    #[must_use]
    pub fn trajectory(self, trajectory: &Trajectory) -> Self {
        let _first = self.shared.trajectory.set(trajectory.clone());
        self
    }

    /// The owner's run of this id, live or remembered.
    #[must_use]
    pub fn get(&self, owner: Owner, id: &RunId) -> Option<Run> {
        self.shared.tidy();
        let (key, now) = (self.shared.key(owner, id.clone()), Instant::now());
        let run = self.shared.with(&key, |entries| entries.get(&key, now))?;
        run.node().check_below(run.at(now));
        Some(run)
    }

    /// The runs of this id, of all owners: for an operator.
    #[must_use]
    pub fn find(&self, id: &RunId) -> Vec<Run> {
        self.looked_at(|registry| {
            let of_id = |entries: &mut entries::Entries| entries.find(id).collect::<Vec<_>>();
            registry.shared.collect(of_id)
        })
    }

    /// The live runs of this session, of all owners and in the order of opening:
    /// for an operator.
    #[must_use]
    pub fn find_session(&self, session: &str) -> Vec<Run> {
        let mut runs = self.looked_at(|registry| {
            let session = registry.shared.session(Arc::from(session));
            let shared = &registry.shared;
            shared.sessions(&session, |sessions| sessions.find(&session))
        });
        runs.retain(|run| run.terminal_reason().is_none());
        runs
    }

    /// All that live or are remembered, in no order. A snapshot of each: where there may
    /// be many, [`page`](Self::page) shows a part, and [`open_runs`](Self::open_runs)
    /// counts them.
    #[must_use]
    pub fn list(&self) -> Vec<RunSnapshot> {
        let runs = self.looked_at(|registry| {
            let all = |entries: &mut entries::Entries| entries.all().collect::<Vec<_>>();
            registry.shared.collect(all)
        });
        runs.iter().map(Run::snapshot).collect()
    }

    /// Waits for the end of the owner's run of this id, as [`Run::wait`] does:
    /// [`RunRegistry::WAIT`] is the usual limit. A run that is remembered is
    /// answered at once. `None` if the id is unknown, or another owner's.
    ///
    /// The one who waits gets the end of the run that has the id now, also if the
    /// id is opened anew right after.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// use tower_agent::{Owner, RunRegistry, TerminalReason};
    ///
    /// let (registry, us) = (RunRegistry::new(), Owner::default());
    /// let id = "nightly".parse().unwrap();
    /// assert!(registry.wait(us, &id, RunRegistry::WAIT).is_none(), "unknown");
    ///
    /// let run = registry.open(us, id.clone());
    /// let wait = registry.wait(us, &id, RunRegistry::WAIT).unwrap();
    /// assert!(wait.await.is_none(), "it goes on after 30 seconds");
    ///
    /// run.end(TerminalReason::Completed);
    /// let ended = registry.wait(us, &id, RunRegistry::WAIT).unwrap().await.unwrap();
    /// assert_eq!(ended.reason, Some(TerminalReason::Completed));
    /// # }
    /// ```
    #[must_use]
    pub fn wait(&self, owner: Owner, id: &RunId, limit: Duration) -> Option<RunWait> {
        Some(self.get(owner, id)?.wait(limit))
    }

    /// What happens from now on. Each observer gets every event, or is told
    /// how many it lost.
    #[must_use]
    pub fn subscribe(&self) -> RunEvents {
        RunEvents::new(self.shared.events.subscribe())
    }

    /// What limits in shadow mode would have ended so far, and how often they would
    /// have been wrong.
    #[must_use]
    pub fn shadow(&self) -> ShadowReport {
        self.shared.shadow()
    }

    /// What was found, with the clocks compared.
    fn looked_at(&self, find: impl FnOnce(&Self) -> Vec<Run>) -> Vec<Run> {
        self.shared.tidy();
        let (runs, now) = (find(self), Instant::now());
        for run in &runs {
            run.node().check_below(run.at(now));
        }
        runs
    }
}
