//! Finds runs by id across requests, ends them from outside, and remembers their ends.
//!
//! A run that spans many requests is one run only if every request finds the same node, and a
//! run that was stopped stays stopped only if its id is remembered. The id of a run that ended,
//! except as `Completed`, is a *tombstone*: until the registry forgets it, [`RunRegistry::open`]
//! returns the ended run, and every layer returns the stored reason without an upstream call.
//!
//! # What is remembered
//!
//! Ids belong to an [`Owner`]: the same id of two owners is two runs. Live runs stay in the
//! registry. Ended runs stay for ten minutes after their end, or after the last lookup by owner and
//! id, and at most [`RunRegistry::ENDED`] of them. The docs of that constant say which runs the
//! registry forgets first.
//!
//! The registry works lazily, and has no task of its own: when the program or a layer uses the
//! registry, or a task [waits](RunRegistry::wait), the registry completes idle runs, ends runs past
//! a deadline, and forgets expired ones.
//!
//! # Runs that were never used
//!
//! A run that a request opened by an id completes at once, and so leaves no tombstone, if the
//! request is refused for its caller's fault before an upstream was asked (its body cannot be read,
//! is too large or not usable, or no candidate accepts its dialect), and no other work of the run
//! was ever admitted. The next request with the id opens it anew. A call that an upstream refused
//! counts as work.
//!
//! # Generations
//!
//! An id that is opened anew is another run: after it completed, or because the program
//! [reopened](RunRegistry::reopen) it. The [generation](RunSnapshot::generation) of the new run
//! is one higher, as long as the former run is remembered. A handle on the former run, or a
//! wait for it, affects that run alone.
//!
//! # Shutdown
//!
//! After [`shutdown`](RunRegistry::shutdown) or [`drain`](RunRegistry::drain) a registry never
//! admits a run again: a new run is over from its birth.
//!
//! # The secret
//!
//! An owner is a keyed digest of a credential, so that neither a record nor a store of runs has the
//! credential. The keys are random in each process. Processes that share runs also share a
//! [`SharedSecret`], from which each derives the same keys: for owners, for the run ids of
//! [known agents](crate::layers::run::KnownAgents), and for the keys of cooldowns and sticky
//! sessions. A program installs it before it makes the first of these. The secret cannot be
//! exchanged while processes share runs.
//!
//! # Examples
//!
//! ```
//! use tower_agent::{Owner, RunRegistry, TerminalReason, registry::AbortOutcome};
//!
//! let registry = RunRegistry::new();
//! let run = registry.open(Owner::default(), "nightly".parse()?);
//!
//! assert_eq!(registry.abort(Owner::default(), &run.id()), AbortOutcome::Ended);
//! assert_eq!(registry.abort(Owner::default(), &run.id()), AbortOutcome::AlreadyOver);
//!
//! let again = registry.open(Owner::default(), "nightly".parse()?);
//! assert_eq!(again.terminal_reason(), Some(TerminalReason::Aborted));
//! # Ok::<_, tower_agent::InvalidRunId>(())
//! ```

mod abort;
mod admission;
mod entries;
mod eviction;
mod freeze;
mod key;
mod open;
mod owner_caps;
mod page;
mod secret;
mod sessions;
mod shutdown;
mod state;
pub mod store;
#[cfg(test)]
mod tests;

pub use self::{
    abort::AbortOutcome,
    freeze::{Frozen, RunsFrozen},
    owner_caps::{Calendar, CalendarPeriod, Owner, OwnerCaps, UtcCalendar},
    page::{InvalidRunCursor, RunCursor, RunPage, RunPlace},
    secret::{SecretInUse, SecretTooShort, SharedSecret},
};

pub(crate) use self::{
    admission::{AdmittedUnread, Finder, Uncounted},
    owner_caps::{AskedOwner, OwnerAsk, OwnerTokens},
    secret::{DigestKeys, Purpose},
    store::AskedRun,
};

use std::{
    collections::HashSet,
    fmt,
    future::Future,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use self::state::RegistryState;
use crate::run::{Run, RunEvents, RunId, RunSnapshot, ShadowReport, TerminalReason, Trajectory};

/// A registry of runs by owner and id. Cheap to clone; all clones are the same registry.
#[derive(Clone, Default)]
pub struct RunRegistry {
    state: Arc<RegistryState>,
}

impl fmt::Debug for RunRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl RunRegistry {
    /// The maximum of ended runs that the registry remembers.
    ///
    /// Beyond the maximum the registry first forgets runs that completed, that had a generated id,
    /// or that ended by a deadline or silence limit that their caller announced; then runs that
    /// were ended by other causes; last, runs that a limit or a clock ended. Among runs of one such
    /// kind the registry forgets the oldest end first.
    pub const ENDED: usize = 10_000;

    /// How long at most the registry remembers an ended run after the last lookup that found it.
    ///
    /// Only a lookup by owner and id counts, as by [`get`](Self::get) or by a request. Without a
    /// lookup the time runs from the run's end.
    pub const REMEMBERED: Duration = Duration::from_secs(600);

    /// The time without work after which a run with a given id completes, by default.
    ///
    /// A run with a given id completes after this time with no work in flight, no pause and no sign
    /// of life, unless [`RunLayer::idle`](crate::RunLayer::idle) sets another limit.
    pub const IDLE: Duration = Duration::from_secs(1800);

    /// The usual idle limit of runs that end at `ceiling`: half of the ceiling, and at most
    /// [`IDLE`](Self::IDLE).
    pub(crate) fn idle_below(ceiling: Duration) -> Duration {
        (ceiling / 2).clamp(Duration::from_nanos(1), Self::IDLE)
    }

    /// The idle limit from which on a run never completes for being idle.
    pub(crate) const NEVER_IDLE: Duration = Duration::from_secs(365 * 24 * 3600);

    /// The number of events that an observer of a registry may lag behind before it loses some.
    pub const EVENTS: usize = 1024;

    /// The usual limit for a [`wait`](Self::wait): how long a caller waits for a run's end.
    pub const WAIT: Duration = Duration::from_secs(30);

    /// How long a run or call may still count as live after its deadline.
    ///
    /// When the registry is used, it checks the clocks of all live runs at least this often. Work
    /// that ended this long ago, but was never dropped, no longer keeps its run from being idle.
    pub const SAFETY: Duration = Duration::from_secs(60);

    /// Makes a registry without runs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records in `trajectory` the ends of the registry's runs by a limit or clock. Their refused
    /// tools, and refusals by owner caps, are recorded too.
    ///
    /// If the method is called twice, the first trajectory stays for the registry's life.
    #[must_use]
    pub fn trajectory(self, trajectory: &Trajectory) -> Self {
        let _first = self.state.trajectory.set(trajectory.clone());
        self
    }

    /// Finds the owner's run of this id, live or remembered; `None` if the id is unknown.
    #[must_use]
    pub fn get(&self, owner: Owner, id: &RunId) -> Option<Run> {
        self.state.tidy();
        let (key, now) = (self.state.key(owner, id.clone()), Instant::now());
        let run = self.state.with(&key, |entries| entries.get(&key, now))?;
        run.node().check_below(run.at(now));
        Some(run)
    }

    /// Finds the runs of this id, of all owners: for an operator.
    #[must_use]
    pub fn find(&self, id: &RunId) -> Vec<Run> {
        self.find_checked(|registry| {
            let mut runs = Vec::new();
            registry.state.each(|entries| runs.extend(entries.find(id)));
            runs
        })
    }

    /// Finds the live runs of this session, of all owners, oldest first: for an operator.
    #[must_use]
    pub fn find_session(&self, session: &str) -> Vec<Run> {
        let mut runs =
            self.find_checked(|registry| registry.state.sessions.lock().find(session, None));
        runs.retain(|run| run.terminal_reason().is_none());
        runs
    }

    /// The number of the registry's last event so far; 0 before the first.
    ///
    /// Read it before a list of runs: the events with higher numbers tell what changes in the list.
    #[must_use]
    pub fn last_event(&self) -> u64 {
        self.state.last_event()
    }

    /// Snapshots of all runs that live or are remembered, in no order.
    ///
    /// Each run costs a snapshot. For many runs, [`page`](Self::page) returns a part of them,
    /// and [`open_runs`](Self::open_runs) counts them.
    #[must_use]
    pub fn list(&self) -> Vec<RunSnapshot> {
        let runs = self.find_checked(Self::runs);
        runs.iter().map(Run::snapshot).collect()
    }

    /// The live runs, each with its owner, in no order.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry};
    ///
    /// let (registry, us) = (RunRegistry::new(), Owner::of(b"sk-one"));
    /// let _run = registry.open(us, "nightly".parse()?);
    ///
    /// for (owner, run) in registry.live_runs() {
    ///     assert_eq!((owner, run.id().to_string()), (us, "nightly".to_owned()));
    /// }
    /// # Ok::<_, tower_agent::InvalidRunId>(())
    /// ```
    #[must_use]
    pub fn live_runs(&self) -> Vec<(Owner, Run)> {
        let runs = self.find_checked(Self::runs).into_iter();
        let live = runs.filter(|run| run.terminal_reason().is_none());
        live.filter_map(|run| Some((Owner(run.node().identity()?.owner), run)))
            .collect()
    }

    /// Waits for the end of the owner's run of this id, as [`Run::wait`] does.
    ///
    /// [`RunRegistry::WAIT`] is the usual limit. For a remembered run, or an unknown id, the future
    /// resolves at once.
    ///
    /// The future waits for the run that has the id now, even if the id is opened anew right
    /// after.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// use tower_agent::{Owner, RunRegistry, registry::WaitOutcome};
    ///
    /// let (registry, us) = (RunRegistry::new(), Owner::default());
    /// let run = registry.open(us, "nightly".parse().unwrap());
    ///
    /// match registry.wait(us, &run.id(), RunRegistry::WAIT).await {
    ///     WaitOutcome::Ended { reason, snapshot } => println!("{reason} at {:?}", snapshot.elapsed),
    ///     WaitOutcome::Open => println!("it goes on after 30 seconds"),
    ///     WaitOutcome::Unknown => println!("no such run of ours"),
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only removes its waker.
    pub fn wait(
        &self,
        owner: Owner,
        id: &RunId,
        limit: Duration,
    ) -> impl Future<Output = WaitOutcome> + Send + use<> {
        let wait = self.get(owner, id).map(|run| run.wait(limit));
        async {
            let Some(wait) = wait else {
                return WaitOutcome::Unknown;
            };
            let ended = wait.await.map(Box::new);
            match ended.and_then(|snapshot| Some((snapshot.reason.clone()?, snapshot))) {
                Some((reason, snapshot)) => WaitOutcome::Ended { reason, snapshot },
                None => WaitOutcome::Open,
            }
        }
    }

    /// Subscribes to the events of all runs from now on. Each observer receives every event, or
    /// learns how many it lost.
    #[must_use]
    pub fn subscribe(&self) -> RunEvents {
        RunEvents::new(&self.state.events)
    }

    /// The counts of shadow mode: how often limits would have ended a node, and how often wrongly.
    #[must_use]
    pub fn shadow(&self) -> ShadowReport {
        self.state.shadow()
    }

    /// Finds runs with `find`, and checks the clocks of each before it returns them.
    fn find_checked(&self, find: impl FnOnce(&Self) -> Vec<Run>) -> Vec<Run> {
        self.state.tidy();
        let runs = find(self);
        check_trees(&runs, Instant::now());
        runs
    }
}

/// Checks the clocks of the trees of these runs, each tree once and from its root.
pub(super) fn check_trees<'a>(runs: impl IntoIterator<Item = &'a Run>, now: Instant) {
    let mut checked = HashSet::new();
    for run in runs {
        if checked.insert(run.seed()) {
            run.root().check_below(run.at(now));
        }
    }
}

/// The outcome of a wait for the end of a run: see [`RunRegistry::wait`].
#[derive(Clone, Debug)]
pub enum WaitOutcome {
    /// The run has ended.
    Ended {
        /// The reason of the run's end.
        reason: TerminalReason,
        /// A snapshot of the ended run.
        snapshot: Box<RunSnapshot>,
    },
    /// The limit has passed, and the run goes on.
    Open,
    /// The registry knows no run of this id, or it is another owner's.
    Unknown,
}

/// A handle on a registry that does not keep the registry alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakRegistry(Weak<RegistryState>);

impl RunRegistry {
    pub(crate) fn downgrade(&self) -> WeakRegistry {
        WeakRegistry(Arc::downgrade(&self.state))
    }

    /// Whether no request has built a too deep chain of sub-agents before. True once.
    pub(crate) fn is_first_deep_chain(&self) -> bool {
        !self.state.deep_chain.swap(true, Ordering::Relaxed)
    }

    /// All live and remembered runs of the registry, in no order.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        self.state.each(|entries| runs.extend(entries.all()));
        runs
    }
}

impl WeakRegistry {
    pub(crate) fn upgrade(&self) -> Option<RunRegistry> {
        let state = self.0.upgrade()?;
        Some(RunRegistry { state })
    }
}
