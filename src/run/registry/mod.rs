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
//! at most [`RunRegistry::ENDED`] of them. Idle ends and forgetting happen
//! lazily, when the registry is used; no task runs for them.
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

mod entries;
mod owner;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::broadcast, time::Instant};

pub use self::owner::Owner;

use self::entries::{Entries, Key};
use super::{
    Notice, Run, RunEvent, RunEvents, RunId, RunSnapshot, ShadowReport, TerminalReason, Trajectory,
    core::Node,
    info::{Identity, Info, Registration},
};

/// Runs by owner and id. Cheap to clone; all clones are the same registry.
#[derive(Clone, Debug)]
pub struct RunRegistry {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    entries: Mutex<Entries>,
    /// The number of the last event: locked while one is sent, so that they come
    /// in the order of their numbers.
    sequence: Mutex<u64>,
    events: broadcast::Sender<RunEvent>,
    /// What limits in shadow mode would have ended, and what of it completed.
    would_have_ended: AtomicU64,
    completed: AtomicU64,
    trajectory: OnceLock<Trajectory>,
}

impl Default for RunRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl RunRegistry {
    /// How many ended runs are remembered; beyond it the oldest are forgotten.
    pub const ENDED: usize = 10_000;

    /// How long an ended run is remembered after its last hit.
    pub const REMEMBERED: Duration = Duration::from_secs(600);

    /// How long a run that was given an id may have nothing in flight before
    /// it counts as completed, unless [`RunLayer::idle`](crate::RunLayer::idle)
    /// says otherwise.
    pub const IDLE: Duration = Duration::from_secs(1800);

    /// How many events an observer may be behind before it loses some.
    pub const EVENTS: usize = 1024;

    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                entries: Mutex::default(),
                sequence: Mutex::default(),
                events: broadcast::Sender::new(Self::EVENTS),
                would_have_ended: AtomicU64::new(0),
                completed: AtomicU64::new(0),
                trajectory: OnceLock::new(),
            }),
        }
    }

    /// Writes what the harness does to the runs of this registry to `trajectory`,
    /// as long as the registry is there. Of two the first stays.
    #[must_use]
    pub fn trajectory(self, trajectory: &Trajectory) -> Self {
        let _first = self.shared.trajectory.set(trajectory.clone());
        self
    }

    /// The owner's run of this id: the live one, else the tombstone, else a
    /// new one. Check [`Run::terminal_reason`] before you work for it.
    #[must_use]
    pub fn open(&self, owner: Owner, id: RunId) -> Run {
        self.open_with(owner, id, None, Self::IDLE)
    }

    /// The owner's run of this id, live or remembered.
    #[must_use]
    pub fn get(&self, owner: Owner, id: &RunId) -> Option<Run> {
        self.tidy();
        self.shared
            .lock()
            .get(&Key::new(owner, id.clone()), Instant::now())
    }

    /// The runs of this id, of all owners: for an operator.
    #[must_use]
    pub fn find(&self, id: &RunId) -> Vec<Run> {
        self.tidy();
        self.shared.lock().find(id)
    }

    /// All that live or are remembered, in no order.
    #[must_use]
    pub fn list(&self) -> Vec<RunSnapshot> {
        self.tidy();
        let runs = self.shared.lock().all();
        runs.iter().map(Run::snapshot).collect()
    }

    /// Ends the owner's run of this id as aborted. Answers whether it was this
    /// call that ended it; an unknown id, another owner's or an ended run's
    /// answers false, and nothing is touched.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know who won"
    )]
    pub fn abort(&self, owner: Owner, id: &RunId) -> bool {
        let run = self.get(owner, id);
        run.is_some_and(|run| run.terminal_reason().is_none() && run.end(TerminalReason::Aborted))
    }

    /// Ends every live run as [`Shutdown`](TerminalReason::Shutdown), the one
    /// end after which clients may try elsewhere. Answers how many it ended.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know how many"
    )]
    pub fn shutdown(&self) -> usize {
        let runs = self.shared.lock().all();
        runs.iter()
            .filter(|run| run.end(TerminalReason::Shutdown))
            .count()
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
        ShadowReport {
            would_have_ended: self.shared.would_have_ended.load(Relaxed),
            completed: self.shared.completed.load(Relaxed),
        }
    }

    pub(crate) fn open_with(
        &self,
        owner: Owner,
        id: RunId,
        session: Option<Arc<str>>,
        idle: Duration,
    ) -> Run {
        self.tidy();
        let now = Instant::now();
        let key = Key::new(owner, id);
        let run = {
            let mut entries = self.shared.lock();
            if let Some(run) = entries.reusable(&key, now) {
                // Found by its name, it is no longer the run of one call.
                entries.share(&key, idle, now);
                return run;
            }
            let run = Run::open();
            self.identify(&run, &key, session);
            entries.insert(key, run.clone(), Some(idle), now);
            run
        };
        run.notify(&Notice::Opened);
        run
    }

    /// Enrols a run that has no name yet: under this one if that is free, else,
    /// without one, under the id that is made up for it. Answers whether it was
    /// enrolled. A run that its opener does not settle ends after `idle`.
    pub(crate) fn adopt(
        &self,
        run: &Run,
        owner: Owner,
        id: Option<RunId>,
        session: Option<Arc<str>>,
        idle: Duration,
    ) -> bool {
        self.tidy();
        let now = Instant::now();
        let given = id.is_some();
        let key = Key::new(owner, id.unwrap_or_else(|| run.id()));
        let mut entries = self.shared.lock();
        if entries.reusable(&key, now).is_some() || !self.identify(run, &key, session) {
            return false;
        }
        if given {
            run.node().payload.set_single(false);
        }
        let idle = (!run.node().payload.is_single()).then_some(idle);
        entries.insert(key, run.clone(), idle, now);
        drop(entries);
        run.notify(&Notice::Opened);
        // It may have ended before it had a name to be remembered by.
        if run.terminal_reason().is_some() {
            self.shared.ended(run.node());
        }
        true
    }

    fn identify(&self, run: &Run, key: &Key, session: Option<Arc<str>>) -> bool {
        let shared: Weak<Shared> = Arc::downgrade(&self.shared);
        run.node().payload.identify(Identity {
            id: key.id.clone(),
            session,
            registration: shared,
            owner: key.owner,
        })
    }

    /// Completes what has been idle for too long, and forgets what is due.
    fn tidy(&self) {
        let now = Instant::now();
        let idle = self.shared.lock().due(now);
        for run in idle {
            // Outside the lock: an end comes back to the registry.
            drop(run.node().settle(TerminalReason::Completed, run.at(now)));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, sequence: &mut u64, event: impl FnOnce(u64) -> RunEvent) -> u64 {
        *sequence += 1;
        if self.events.receiver_count() > 0 {
            // Only that nobody listens any more can go wrong.
            let _ = self.events.send(event(*sequence));
        }
        *sequence
    }

    fn sequence(&self) -> MutexGuard<'_, u64> {
        self.sequence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration for Shared {
    fn ended(&self, node: &Node<Info>) -> Option<u64> {
        let identity = node.payload.identity()?;
        let key = Key {
            owner: identity.owner,
            id: identity.id.clone(),
        };
        if !self.lock().ended(&key, node.number(), Instant::now()) {
            return None;
        }
        let mut sequence = self.sequence();
        Some(self.send(&mut sequence, |number| RunEvent::ended(node, number)))
    }

    fn notified(&self, node: &Node<Info>, notice: &Notice, last: bool) -> Option<u64> {
        let mut sequence = self.sequence();
        if !last && node.nearest_end().is_some() {
            return None;
        }
        match notice {
            Notice::WouldHaveEnded { .. } => self.would_have_ended.fetch_add(1, Relaxed),
            Notice::FalsePositive { .. } => self.completed.fetch_add(1, Relaxed),
            _ => 0,
        };
        Some(self.send(&mut sequence, |number| {
            RunEvent::notice(node, notice, number)
        }))
    }

    fn trajectory(&self) -> Option<Trajectory> {
        self.trajectory.get().cloned()
    }
}
