use std::{
    cmp::Reverse,
    collections::hash_map::RandomState,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::broadcast, time::Instant};

use super::{
    RunRegistry,
    entries::{Entries, Retirement},
    eviction::{EvictionEntry, EvictionQueue},
    key::{EntryKey, Hashed, RunName, Session, part},
    owner::Owner,
    owner_caps::Owners,
    sessions::Sessions,
};
use crate::run::{
    End, EntryLocation, Identity, Membership, Nanos, Node, NodeState, Registration, Run, RunEvent,
    RunId, RunNotice, ShadowReport, TerminalReason, Trajectory, nanos,
};

const SHARDS: usize = 16;

/// What all clones of a registry share.
///
/// Locks are taken in this order: memories, one shard, one part of the sessions.
/// None is held while a run is ended, woken or dropped.
#[derive(Debug)]
pub(crate) struct Shared {
    shards: [Mutex<Entries>; SHARDS],
    sessions: [Mutex<Sessions>; SHARDS],
    memories: Mutex<EvictionQueue>,
    /// How many ended runs are remembered.
    remembered: AtomicIsize,
    /// The number of the last entry.
    serial: AtomicU64,
    /// When some shard is to be tidied, since the registry was made.
    next: AtomicU64,
    epoch: Instant,
    hasher: RandomState,
    /// Nothing is opened any more. Set before the shards are walked through, and
    /// read under the lock of one: what was opened before is found there.
    closed: AtomicBool,
    /// The number of the last event: locked while one is sent, so that they come
    /// in the order of their numbers.
    sequence: Mutex<u64>,
    pub(crate) events: broadcast::Sender<RunEvent>,
    pub(crate) trajectory: OnceLock<Trajectory>,
    /// None unless somebody caps them.
    pub(crate) owners: OnceLock<Arc<Owners>>,
    /// What limits in shadow mode would have ended, and what of it completed.
    would_have_ended: AtomicU64,
    completed: AtomicU64,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            shards: Default::default(),
            sessions: Default::default(),
            memories: Mutex::default(),
            remembered: AtomicIsize::new(0),
            serial: AtomicU64::new(0),
            next: AtomicU64::new(Nanos::MAX),
            epoch: Instant::now(),
            hasher: RandomState::new(),
            closed: AtomicBool::new(false),
            sequence: Mutex::default(),
            events: broadcast::Sender::new(RunRegistry::EVENTS),
            trajectory: OnceLock::new(),
            owners: OnceLock::new(),
            would_have_ended: AtomicU64::new(0),
            completed: AtomicU64::new(0),
        }
    }

    pub(crate) fn key(&self, owner: Owner, id: RunId) -> EntryKey {
        Hashed::new(RunName { owner: owner.0, id }, &self.hasher)
    }

    pub(crate) fn session(&self, name: Arc<str>) -> Session {
        Hashed::new(name, &self.hasher)
    }

    /// What is known under the key.
    pub(crate) fn with<R>(&self, key: &EntryKey, f: impl FnOnce(&mut Entries) -> R) -> R {
        self.with_shard(key.part(SHARDS), f)
    }

    /// A list from all shards, which are not locked at the same time.
    pub(crate) fn collect<R: IntoIterator<Item = Run>>(
        &self,
        f: impl Fn(&mut Entries) -> R,
    ) -> Vec<Run> {
        let mut runs = Vec::new();
        for shard in 0..SHARDS {
            self.with_shard(shard, |entries| runs.extend(f(entries)));
        }
        runs
    }

    /// How many live.
    pub(crate) fn count_live(&self) -> usize {
        let shards = 0..SHARDS;
        shards
            .map(|shard| self.with_shard(shard, |entries| entries.count_live()))
            .sum()
    }

    /// The newest `most` runs that were opened before the run of that serial number,
    /// with their own, newest first.
    pub(crate) fn newest(&self, before: u64, most: usize) -> Vec<(u64, Run)> {
        let mut runs = Vec::new();
        for shard in 0..SHARDS {
            self.with_shard(shard, |entries| runs.extend(entries.newest(before, most)));
        }
        runs.sort_unstable_by_key(|(serial, _)| Reverse(*serial));
        runs.truncate(most);
        runs
    }

    pub(crate) fn sessions<R>(&self, session: &Session, f: impl FnOnce(&mut Sessions) -> R) -> R {
        let part = &self.sessions[session.part(SHARDS)];
        f(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Completes what has been idle for too long, ends what is past its deadline
    /// and forgets what is due.
    pub(crate) fn tidy(&self) {
        let now = Instant::now();
        let since = nanos(now.saturating_duration_since(self.epoch));
        if since < self.next.load(Ordering::Acquire) {
            return;
        }
        self.next.store(Nanos::MAX, Ordering::Release);
        for shard in 0..SHARDS {
            let suspects = self.with_shard(shard, |entries| entries.due(now));
            for run in suspects {
                run.node().check_below(run.at(now));
                let _later = self.idle(run.node(), now);
            }
        }
    }

    pub(crate) fn shadow(&self) -> ShadowReport {
        ShadowReport {
            would_have_ended: self.would_have_ended.load(Ordering::Relaxed),
            completed: self.completed.load(Ordering::Relaxed),
        }
    }

    /// How long the run may be idle, if that ever ends it.
    pub(crate) fn idle_limit(&self, identity: &Identity) -> Option<Duration> {
        let listed = self.listed(identity)?;
        self.with_shard(part(listed.hash, SHARDS), |entries| {
            entries.idle(listed.place)
        })
    }

    fn listed<'a>(&self, identity: &'a Identity) -> Option<&'a EntryLocation> {
        identity.listed.get().or_else(|| {
            // Somebody may be about to enrol it: either that is done by now, or who
            // does it sees what has become of the run.
            let key = self.key(Owner(identity.owner), identity.id.clone());
            self.with(&key, |_| identity.listed.get())
        })
    }

    fn with_shard<R>(&self, shard: usize, f: impl FnOnce(&mut Entries) -> R) -> R {
        // What is dropped may come back to the registry.
        let (result, _left) = self.with_shard_and_left(shard, f);
        result
    }

    /// The same, with what has left, for who holds another lock yet.
    fn with_shard_and_left<R>(
        &self,
        shard: usize,
        f: impl FnOnce(&mut Entries) -> R,
    ) -> (R, Vec<Run>) {
        let entries = self.shards[shard].lock();
        let mut entries = entries.unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut entries);
        if let Some(at) = entries.next() {
            let at = nanos(at.saturating_duration_since(self.epoch));
            // Mostly another is earlier: a load is cheaper than an exchange. Whoever has
            // just reset it comes to this shard yet, or was here before.
            if at < self.next.load(Ordering::Acquire) {
                self.next.fetch_min(at, Ordering::AcqRel);
            }
        }
        let (more, left) = entries.settle();
        self.remembered.fetch_add(more, Ordering::AcqRel);
        (result, left)
    }

    /// Remembers an ended run, and forgets others if they are too many.
    fn remember(&self, memory: EvictionEntry, end: Option<&End>, named: bool) {
        // Declared before the lock, so that they are dropped after it.
        let mut forgotten = Vec::new();
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.push(memory, end, named);
        while self.remembered.load(Ordering::Acquire) > RunRegistry::ENDED as isize {
            let Some(oldest) = memories.pop() else { break };
            let forget = |entries: &mut Entries| entries.forget(oldest.place);
            let (run, left) = self.with_shard_and_left(oldest.shard, forget);
            forgotten.extend(run.into_iter().chain(left));
        }
        if memories.len() > 2 * RunRegistry::ENDED {
            memories.retain(|memory| {
                let knows = |entries: &mut Entries| entries.knows(memory.place);
                let (known, left) = self.with_shard_and_left(memory.shard, knows);
                forgotten.extend(left);
                known
            });
        }
    }

    /// How much is known, and counted.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        let lock =
            |sessions: &Mutex<Sessions>| sessions.lock().map_or(0, |sessions| sessions.len());
        let sessions: usize = self.sessions.iter().map(lock).sum();
        let entries = (0..SHARDS).map(|shard| self.with_shard(shard, |entries| entries.size()));
        let remembered = self.remembered.load(Ordering::Acquire);
        sessions + entries.sum::<usize>() + remembered.unsigned_abs()
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
    fn ended(&self, node: &Node<NodeState>) -> Option<u64> {
        let identity = node.payload.identity()?;
        let listed = self.listed(identity)?;
        let (shard, place) = (part(listed.hash, SHARDS), listed.place);
        let now = Instant::now();
        let named = self.with_shard(shard, |entries| entries.ended(place, now))?;
        if let (Some(Membership { hash, slot }), Some(name)) = (listed.session, &identity.session) {
            let session = Hashed::known(hash, Arc::clone(name));
            let run = self.sessions(&session, |sessions| {
                sessions.remove(&session, identity.owner, slot)
            });
            drop(run);
        }
        self.remember(EvictionEntry { shard, place }, node.nearest_end(), named);
        let mut sequence = self.sequence();
        let number = self.send(&mut sequence, |number| RunEvent::ended(node, number));
        identity.told.store(number, Ordering::Release);
        Some(number)
    }

    fn notified(&self, node: &Node<NodeState>, notice: &RunNotice, last: bool) -> Option<u64> {
        let mut sequence = self.sequence();
        if !last && node.nearest_end().is_some() {
            return None;
        }
        match notice {
            RunNotice::WouldHaveEnded { .. } => {
                self.would_have_ended.fetch_add(1, Ordering::Relaxed)
            }
            RunNotice::FalsePositive { .. } => self.completed.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        Some(self.send(&mut sequence, |number| {
            RunEvent::notice(node, notice, number)
        }))
    }

    fn trajectory(&self) -> Option<Trajectory> {
        self.trajectory.get().cloned()
    }

    fn idle(&self, node: &Node<NodeState>, now: Instant) -> Option<Instant> {
        let identity = node.payload.identity()?;
        let listed = self.listed(identity)?;
        let retirement = self.with_shard(part(listed.hash, SHARDS), |entries| {
            entries.retire(listed.place, now)
        })?;
        if let Retirement::At(at) = retirement {
            return Some(at);
        }
        // Nobody works on it, so drivers above need no call.
        let now = now.saturating_duration_since(node.payload.epoch);
        drop(node.settle(TerminalReason::Completed, now));
        None
    }

    fn refused(&self, node: &Node<NodeState>) {
        let listed = node.payload.identity().and_then(|known| self.listed(known));
        let Some(listed) = listed else {
            return;
        };
        let retired = self.with_shard(part(listed.hash, SHARDS), |entries| {
            entries.retire_unused(listed.place)
        });
        if retired {
            drop(node.settle(TerminalReason::Completed, node.payload.now()));
        }
    }

    fn enrol_beside(self: Arc<Self>, node: &Node<NodeState>, child: &Run) {
        let Some(identity) = node.payload.identity() else {
            return;
        };
        let owner = Owner(identity.owner);
        let idle = self.idle_limit(identity).unwrap_or(RunRegistry::IDLE);
        let registry = RunRegistry { shared: self };
        registry.adopt(child, owner, None, identity.session.clone(), idle);
    }
}
