use std::{
    cmp::Reverse,
    collections::VecDeque,
    fmt,
    hash::RandomState,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::broadcast, time::Instant};

use super::{
    RunRegistry,
    admission::Finder,
    check_trees,
    entries::Entries,
    eviction::rank,
    freeze::Freezes,
    key::EntryKey,
    owner_caps::{Owner, Owners, Periods},
    sessions::Sessions,
    store::Parts,
};
use crate::{
    lock::Lock,
    run::{
        End, EventChannel, Identity, Nanos, Node, NodeState, Place, Registration, Run, RunEvent,
        RunId, RunNotice, ShadowReport, TerminalReason, Trajectory, nanos,
    },
};

const SHARDS: usize = 16;

/// The state that all clones of a registry share.
///
/// Lock order: evictions, one shard, then the sessions or the owners' counts. None of these locks
/// is held while a run is ended, woken or dropped.
pub(crate) struct RegistryState {
    shards: [Lock<Entries>; SHARDS],
    pub(super) sessions: Lock<Sessions>,
    /// The places of ended runs by [`rank`], and within a rank in the order of their ends.
    /// Some may be forgotten already.
    evictions: Lock<[VecDeque<Place>; 3]>,
    /// The number of ended runs that the registry remembers.
    remembered: AtomicUsize,
    /// The number of entries so far: see [`next_place`](Self::next_place).
    count: AtomicU64,
    /// The earliest time at which a shard is due for `tidy`, in nanoseconds since `epoch`;
    /// `Nanos::MAX` if none is.
    next: AtomicU64,
    epoch: Instant,
    hasher: RandomState,
    /// Whether the registry is shut down. Set before the walk over the shards, and read under a
    /// shard's lock, so that the walk finds every run opened before.
    closed: AtomicBool,
    /// The number of the registry's last event. Its lock is held while an event is sent, so
    /// that events come in the order of their numbers.
    sequence: Lock<u64>,
    pub(crate) events: broadcast::Sender<RunEvent>,
    pub(crate) trajectory: OnceLock<Trajectory>,
    /// The counts of runs, turns and tokens by owner; unset until a layer caps owners.
    pub(crate) owners: OnceLock<Arc<Owners>>,
    /// The periods of the calendar in which these count.
    pub(crate) periods: Arc<Periods>,
    /// Whose new runs are refused.
    pub(super) freezes: Freezes,
    /// The store that the registry shares with those of other replicas, and its parts of their runs.
    pub(super) parts: Parts,
    /// How often a limit in shadow mode would have ended a node. `completed` counts how often that
    /// node completed later.
    would_have_ended: AtomicU64,
    completed: AtomicU64,
    /// Whether the log has told of a chain of sub-agents that was too deep.
    pub(super) deep_chain: AtomicBool,
}

impl fmt::Debug for RegistryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRegistry")
            .field("opened", &self.count)
            .field("remembered", &self.remembered)
            .finish_non_exhaustive()
    }
}

impl Default for RegistryState {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            sessions: Lock::default(),
            evictions: Lock::default(),
            remembered: AtomicUsize::new(0),
            count: AtomicU64::new(0),
            next: AtomicU64::new(Nanos::MAX),
            epoch: Instant::now(),
            hasher: RandomState::new(),
            closed: AtomicBool::new(false),
            sequence: Lock::default(),
            events: broadcast::Sender::new(RunRegistry::EVENTS),
            trajectory: OnceLock::new(),
            owners: OnceLock::new(),
            periods: Arc::default(),
            freezes: Freezes::default(),
            parts: Parts::default(),
            would_have_ended: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            deep_chain: AtomicBool::new(false),
        }
    }
}

impl RegistryState {
    pub(crate) fn key(&self, owner: Owner, id: RunId) -> EntryKey {
        EntryKey::new(owner, id, &self.hasher)
    }

    /// Calls `f` with the shard in which the key's run is stored.
    pub(crate) fn with<R>(&self, key: &EntryKey, f: impl FnOnce(&mut Entries) -> R) -> R {
        self.with_shard(key.shard(SHARDS), f)
    }

    /// Calls `f` with the shard in which the entry of this place is stored.
    pub(super) fn with_entry<R>(&self, place: Place, f: impl FnOnce(&mut Entries) -> R) -> R {
        self.with_shard((place.serial % SHARDS as u64) as usize, f)
    }

    /// Calls `f` with each shard, with one lock at a time.
    pub(crate) fn each(&self, mut f: impl FnMut(&mut Entries)) {
        (0..SHARDS).for_each(|shard| self.with_shard(shard, &mut f));
    }

    /// The newest `most` runs with a serial number below `before`, newest first, each with its number
    /// and when it was opened.
    pub(crate) fn newest(&self, before: u64, most: usize) -> Vec<(u64, Instant, Run)> {
        let mut runs = Vec::new();
        self.each(|entries| runs.extend(entries.newest(before, most)));
        runs.sort_unstable_by_key(|(serial, ..)| Reverse(*serial));
        runs.truncate(most);
        runs
    }

    /// The place of the key's new entry. Its serial number is higher than those of all entries
    /// before, in all shards; the remainder by `SHARDS` is the entry's shard.
    pub(crate) fn next_place(&self, key: &EntryKey) -> Place {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let serial = count * SHARDS as u64 + key.shard(SHARDS) as u64;
        let hash = key.hash;
        Place { serial, hash }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The number of the last event.
    pub(super) fn last_event(&self) -> u64 {
        *self.sequence.lock()
    }

    /// Completes idle runs, ends runs past a deadline, and forgets expired ended runs. Does nothing
    /// while no shard is due.
    pub(crate) fn tidy(&self) {
        let now = Instant::now();
        let since = nanos(now.saturating_duration_since(self.epoch));
        if since < self.next.load(Ordering::Acquire) {
            return;
        }
        self.next.store(Nanos::MAX, Ordering::Release);
        for shard in 0..SHARDS {
            let suspects = self.with_shard(shard, |entries| entries.due(now));
            // No deadline ends a run that was idle for too long: that run completes.
            check_trees(&suspects, now);
            for run in suspects {
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

    /// The idle limit of the run. `None` if idleness does not end the run, or the registry has
    /// forgotten it.
    pub(crate) fn idle_limit(&self, identity: &Identity) -> Option<Duration> {
        let place = identity.place;
        self.with_entry(place, |entries| entries.idle(place))
    }

    /// Removes the run from the live runs of its session. The session knows a run that was a `turn`
    /// until the registry forgets that run.
    pub(super) fn leave_session(&self, identity: &Identity, turn: bool) {
        if let (Some(name), Some(slot)) = (&identity.session, identity.session_slot.get()) {
            let mut sessions = self.sessions.lock();
            let run = sessions.remove(name, identity.owner, &identity.id, *slot, turn);
            drop(sessions);
            drop(run);
        }
    }

    /// Lets the session forget this run, which the registry no longer knows.
    pub(super) fn forget_in_session(&self, run: &Run) {
        let Some(identity) = run.node().identity() else {
            return;
        };
        if let (Some(name), Some(_)) = (&identity.session, identity.id.prefix()) {
            let (owner, serial) = (identity.owner, identity.place.serial);
            self.sessions
                .lock()
                .forget(name, owner, &identity.id, serial);
        }
    }

    fn with_shard<R>(&self, shard: usize, f: impl FnOnce(&mut Entries) -> R) -> R {
        let mut entries = self.shards[shard].lock();
        let before = entries.remembered();
        let result = f(&mut entries);
        if let Some(at) = entries.next() {
            let at = nanos(at.saturating_duration_since(self.epoch));
            // Mostly another entry is earlier: a load is cheaper than an exchange. A thread that
            // resets `next` then locks each shard: it finds this entry, or this thread sees the
            // reset.
            if at < self.next.load(Ordering::Acquire) {
                self.next.fetch_min(at, Ordering::AcqRel);
            }
        }
        // The addition wraps, so that it also counts down.
        let more = entries.remembered().wrapping_sub(before);
        self.remembered.fetch_add(more, Ordering::AcqRel);
        let removed = entries.take_removed();
        // A dropped run may call the registry, so it is dropped without the lock.
        drop(entries);
        removed.iter().for_each(|run| self.forget_in_session(run));
        drop(removed);
        result
    }

    /// Adds an ended run to the queue of its rank. While more than `RunRegistry::ENDED` runs are
    /// remembered, forgets the oldest run of the lowest rank.
    fn remember(&self, place: Place, end: Option<&End>, named: bool) {
        // Declared before the lock guard, so that the runs are dropped after the lock is released.
        let mut forgotten = Vec::new();
        let mut evictions = self.evictions.lock();
        evictions[rank(end, named)].push_back(place);
        while self.remembered.load(Ordering::Acquire) > RunRegistry::ENDED {
            let oldest = evictions.iter_mut().find_map(VecDeque::pop_front);
            let Some(oldest) = oldest else { break };
            let run = self.with_entry(oldest, |entries| entries.forget(oldest));
            run.iter().for_each(|run| self.forget_in_session(run));
            forgotten.extend(run);
        }
        if evictions.iter().map(VecDeque::len).sum::<usize>() > 2 * RunRegistry::ENDED {
            let known = |place: &Place| self.with_entry(*place, |entries| entries.knows(*place));
            evictions.iter_mut().for_each(|rank| rank.retain(known));
        }
    }

    /// The number of items that the registry holds, in all its maps, queues and counts.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        let sessions = self.sessions.lock().len();
        let mut size = sessions + self.remembered.load(Ordering::Acquire);
        self.each(|entries| size += entries.size());
        size
    }

    /// Numbers a notice, and sends it to the observers of the registry and of the run.
    fn send(
        &self,
        last: &mut u64,
        node: &Node<NodeState>,
        notice: &RunNotice,
        own: Option<&EventChannel>,
    ) {
        let Some(number) = node.next_event() else {
            return;
        };
        *last += 1;
        let event = || RunEvent::notice(node, notice, number, Some(*last));
        if let Some(own) = own.filter(|own| own.is_open()) {
            own.send(event());
        }
        if self.events.receiver_count() > 0 {
            // `send` fails only if no receiver is left.
            let _ = self.events.send(event());
        }
    }
}

impl Registration for RegistryState {
    fn ended(&self, node: &Node<NodeState>, own: Option<&EventChannel>) {
        let Some(identity) = node.identity() else {
            return;
        };
        let (place, now) = (identity.place, Instant::now());
        let Some(named) = self.with_entry(place, |entries| entries.mark_ended(place, now)) else {
            return;
        };
        // A run whose every request was refused was no turn.
        self.leave_session(identity, !node.run_state().is_unused());
        let end = node.nearest_end();
        if named {
            self.parts.tell_end(node);
        }
        if let Some(part) = node.shared() {
            part.leave();
        }
        // A sub-agent's run that its parent's end ended is found again by its parent.
        let is_own = end.is_some_and(|end| end.origin == node.number());
        self.remember(place, end, named && is_own);
        // The event, with its snapshot, is mostly made before the lock of `sequence`.
        let event = (self.events.receiver_count() > 0).then(|| RunEvent::ended(node));
        let mut sequence = self.sequence.lock();
        if identity.admission.announce() {
            self.send(&mut sequence, node, &RunNotice::Opened, own);
        }
        *sequence += 1;
        // Stored before `last_event` marks the run's end as numbered: a late observer that sees the
        // mark reads this number, too.
        identity.end_event.store(*sequence, Ordering::Release);
        node.last_event();
        if self.events.receiver_count() > 0 {
            let event = event.unwrap_or_else(|| RunEvent::ended(node));
            // `send` fails only if no receiver is left.
            let _ = self.events.send(event.numbered(node));
        }
    }

    fn notified(
        &self,
        node: &Node<NodeState>,
        notice: &RunNotice,
        last: bool,
        own: Option<&EventChannel>,
    ) -> bool {
        let Some(identity) = node.identity() else {
            return true;
        };
        let mut sequence = self.sequence.lock();
        if !last && node.nearest_end().is_some() {
            return true;
        }
        if own.is_none() && node.has_rare_state() {
            return false;
        }
        match notice {
            RunNotice::WouldHaveEnded { .. } => {
                self.would_have_ended.fetch_add(1, Ordering::Relaxed)
            }
            RunNotice::FalsePositive { .. } => self.completed.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        if identity.admission.announce() {
            self.send(&mut sequence, node, &RunNotice::Opened, own);
        }
        if !matches!(notice, RunNotice::Opened) {
            self.send(&mut sequence, node, notice, own);
        }
        true
    }

    fn trajectory(&self) -> Option<Trajectory> {
        self.trajectory.get().cloned()
    }

    fn idle(&self, node: &Node<NodeState>, now: Instant) -> Option<Instant> {
        let place = node.identity()?.place;
        let retirement = self.with_entry(place, |entries| entries.retire(place, now))?;
        if let Err(at) = retirement {
            return Some(at);
        }
        // `settle` and not `end`: the run has no work left, so no task above has to wake.
        let now = now.saturating_duration_since(node.started());
        drop(node.settle(TerminalReason::Completed, now));
        None
    }

    fn complete(&self, node: &Node<NodeState>, now: Instant) {
        let Some(place) = node.identity().map(|known| known.place) else {
            return;
        };
        self.with_entry(place, |entries| entries.complete_when_idle(place, now));
        // The mark is set before the run's work is looked at: the thread with the last piece of
        // work sees the mark, or this thread sees that no work is left.
        node.run_state().set_done();
        let _later = self.idle(node, now);
    }

    fn completes_when_idle(&self, node: &Node<NodeState>) -> bool {
        let limit = node.identity().and_then(|own| self.idle_limit(own));
        limit.is_some_and(|limit| limit < RunRegistry::NEVER_IDLE)
    }

    fn refused(&self, node: &Node<NodeState>) {
        let Some(place) = node.identity().map(|known| known.place) else {
            return;
        };
        if self.with_entry(place, |entries| entries.retire_unused(place)) {
            drop(node.settle(TerminalReason::Completed, node.now()));
        }
    }

    fn give_turn_back(&self, run: &Node<NodeState>, counted: Instant) {
        if let (Some(identity), Some(owners)) = (run.identity(), self.owners.get()) {
            owners.give_turn_back(Owner(identity.owner), counted);
        }
    }

    fn enrol_sub_agent(self: Arc<Self>, node: &Node<NodeState>, child: &Run) {
        let Some(identity) = node.identity() else {
            return;
        };
        let owner = Owner(identity.owner);
        let idle = self.idle_limit(identity).unwrap_or(RunRegistry::IDLE);
        let registry = RunRegistry { state: self };
        let session = identity.session.clone();
        registry.adopt(child, owner, None, session, idle, Finder::Program);
    }
}
