//! The entries of one shard of a registry: its runs by key, and when each is due.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashTable;
use tokio::time::Instant;

use super::{RunRegistry, eviction::idle_until, key::EntryKey};
use crate::run::{Identity, Node, NodeState, Place, Run, RunId, TerminalReason};

/// How often at most a use of the registry looks at a run that is done but still has work. The end
/// of that work completes the run; a pause that ends does not.
const DONE_RUN_CHECKS: Duration = Duration::from_secs(1);

/// One shard of the registry's runs, behind a lock. No run is ended under the lock.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// The entries by the hashes of their keys.
    runs: HashTable<RunEntry>,
    /// The times at which the entries of live runs (first queue) and of ended runs (second queue)
    /// are due for a check, earliest first. Some of the entries may be forgotten already.
    // Two queues: in each, a time is mostly later than the one pushed before, which costs a heap
    // little.
    due: [BinaryHeap<Reverse<(Instant, Place)>>; 2],
    /// The time at which all live runs are next due for a check; `None` if no such check is
    /// planned.
    sweep: Option<Instant>,
    /// The replaced runs with an end that is not published yet, by serial number. The value is
    /// `named` of the run's former entry.
    replaced: HashMap<u64, bool>,
    /// The number of entries of ended runs.
    remembered: usize,
    /// The runs that were removed from the shard, to be dropped after the lock is released.
    removed: Vec<Run>,
}

#[derive(Debug)]
struct RunEntry {
    run: Run,
    place: Place,
    /// Whether the program or a request has named the run by its id, and may use the id again.
    named: bool,
    /// The idle limit of the run; `None` if the run ends with its one call.
    idle: Option<Duration>,
    /// When the run was opened in this registry.
    opened: Instant,
    /// When the registry forgets the ended run; `None` while the run lives.
    expires: Option<Instant>,
    /// Whether the run was idle for too long or unused, so that a thread completes it.
    retired: bool,
}

impl Entries {
    /// Inserts an entry for a run at its place, instead of the key's former entry.
    ///
    /// The run of that entry no longer counts as open for its owner: the run has ended or is
    /// retired, though the thread that ends it may not have finished.
    pub(crate) fn insert(
        &mut self,
        key: &EntryKey,
        place: Place,
        run: Run,
        named: bool,
        idle: Option<Duration>,
        now: Instant,
    ) {
        let before = self.of_key(key).map(|entry| entry.place);
        if let Some(entry) = before.and_then(|place| self.remove(place)) {
            entry.run.node().uncount();
            if entry.expires.is_none() {
                self.replaced.insert(entry.place.serial, entry.named);
            }
            self.removed.push(entry.run);
        }
        let entry = RunEntry {
            run,
            place,
            named,
            idle,
            opened: now,
            expires: None,
            retired: false,
        };
        self.runs.insert_unique(key.hash, entry, RunEntry::hash);
        if let Some(at) = idle.and_then(|idle| now.checked_add(idle)) {
            self.check_at(place, at, false);
        }
        self.sweep.get_or_insert(now + RunRegistry::SAFETY);
    }

    /// The generation of the run of this key; 0 if the key is unknown.
    pub(crate) fn generation(&self, key: &EntryKey) -> u64 {
        let known = self.of_key(key).and_then(RunEntry::identity);
        known.map_or(0, |known| known.generation)
    }

    /// The run of this key, live or ended. `None` if the key is unknown, or its run completed or is
    /// retired: then a request may open a new run.
    pub(crate) fn reusable(&mut self, key: &EntryKey, now: Instant) -> Option<Run> {
        let entry = self.hit(key, now)?;
        match entry.run.terminal_reason() {
            Some(TerminalReason::Completed) => None,
            None if entry.retired => None,
            _ => Some(entry.run.clone()),
        }
    }

    /// Marks the run of this key as shared, because a lookup found it by its id, and sets its idle
    /// limit to `idle`. A smaller limit stays.
    pub(crate) fn share(&mut self, key: &EntryKey, idle: Duration, now: Instant) {
        let Some(entry) = self.hit(key, now) else {
            return;
        };
        entry.run.node().make_shared();
        entry.named = true;
        if entry.idle.is_some_and(|limit| limit <= idle) {
            return;
        }
        entry.idle = Some(idle);
        if let (None, Some(at)) = (entry.expires, now.checked_add(idle)) {
            let place = entry.place;
            self.check_at(place, at, false);
        }
    }

    pub(crate) fn get(&mut self, key: &EntryKey, now: Instant) -> Option<Run> {
        self.hit(key, now).map(|entry| entry.run.clone())
    }

    /// The entry of this key. If its run has ended, the time until the registry forgets the run
    /// restarts.
    fn hit(&mut self, key: &EntryKey, now: Instant) -> Option<&mut RunEntry> {
        let entry = self.runs.find_mut(key.hash, |entry| entry.is_of(key))?;
        if entry.expires.is_some() {
            entry.expires = now.checked_add(RunRegistry::REMEMBERED);
        }
        Some(entry)
    }

    /// Retires the run of this entry if it was idle for too long: no request joins it any more.
    /// Otherwise the error says when the run will have been idle for too long; `None` if idleness
    /// does not end it, or the entry is gone.
    pub(crate) fn retire(&mut self, place: Place, now: Instant) -> Option<Result<(), Instant>> {
        let entry = self.entry_mut(place)?;
        let at = idle_until(entry.run.node(), entry.idle?, now);
        if at > now {
            return Some(Err(at));
        }
        entry.retired = true;
        Some(Ok(()))
    }

    /// Retires the run of this entry if it is unused and has no work, and returns whether it
    /// did. Requests enter a run under the same lock, so a later request opens another run.
    pub(crate) fn retire_unused(&mut self, place: Place) -> bool {
        let Some(entry) = self.entry_mut(place) else {
            return false;
        };
        let node = entry.run.node();
        let is_first = !entry.retired && entry.expires.is_none();
        if !is_first || !node.is_idle() || !node.run_state().is_unused() {
            return false;
        }
        entry.retired = true;
        true
    }

    /// Removes a run without a trace, and returns whether it did. A run stays if it has ended, a
    /// cap has admitted it, observers know it, or several calls of it are live.
    pub(crate) fn withdraw(&mut self, place: Place) -> bool {
        let entry = self.entry(place);
        let Some(entry) = entry.filter(|entry| entry.expires.is_none()) else {
            return false;
        };
        let works = |call: &Arc<Node<NodeState>>| call.nearest_end().is_none();
        let calls = entry.run.node().children();
        let is_shared = calls.iter().filter(|call| works(call)).count() > 1;
        let identity = entry.identity();
        if is_shared || !identity.is_some_and(|known| known.admission.withdraw()) {
            return false;
        }
        let run = self.forget(place);
        self.removed.extend(run);
        true
    }

    /// Lets the run of this entry complete as soon as it has no work.
    pub(crate) fn complete_when_idle(&mut self, place: Place, now: Instant) {
        let Some(entry) = self.entry_mut(place) else {
            return;
        };
        if entry.expires.is_none() {
            entry.idle = Some(Duration::ZERO);
            self.check_at(place, now, false);
        }
    }

    /// The idle limit of the run of this entry; `None` if idleness does not end it.
    pub(crate) fn idle(&self, place: Place) -> Option<Duration> {
        self.entry(place)?.idle
    }

    pub(crate) fn find(&self, id: &RunId) -> impl Iterator<Item = Run> {
        let ours = |entry: &&RunEntry| entry.identity().is_some_and(|known| known.id == *id);
        let ours = self.runs.iter().filter(ours);
        ours.map(|entry| entry.run.clone())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Run> {
        self.runs.iter().map(|entry| entry.run.clone())
    }

    /// The number of live runs, including replaced runs that have yet to end.
    pub(crate) fn count_live(&self) -> usize {
        self.runs.len() - self.remembered + self.replaced.len()
    }

    /// The number of ended runs that the shard remembers.
    pub(crate) const fn remembered(&self) -> usize {
        self.remembered
    }

    /// The newest `most` runs with a serial number below `before`, each with its number and when it
    /// was opened, in no order.
    pub(crate) fn newest(
        &self,
        before: u64,
        most: usize,
    ) -> impl Iterator<Item = (u64, Instant, Run)> {
        let older = |entry: &&RunEntry| entry.place.serial < before;
        let mut older: Vec<_> = self.runs.iter().filter(older).collect();
        if older.len() > most {
            older.select_nth_unstable_by_key(most, |entry| Reverse(entry.place.serial));
            older.truncate(most);
        }
        let newest = older.into_iter();
        newest.map(|entry| (entry.place.serial, entry.opened, entry.run.clone()))
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = Run> {
        let live = self.runs.iter().filter(|entry| entry.expires.is_none());
        live.map(|entry| entry.run.clone())
    }

    /// Marks the entry of a run that ended as remembered. A replaced run, which has no entry, only
    /// stops counting as live. Returns whether the run's id was given; `None` if the end was
    /// published before, or if the run is forgotten.
    pub(crate) fn mark_ended(&mut self, place: Place, now: Instant) -> Option<bool> {
        let Some(entry) = self.entry_mut(place) else {
            return self.replaced.remove(&place.serial);
        };
        if entry.expires.is_some() {
            return None;
        }
        let (named, expires) = (entry.named, now.checked_add(RunRegistry::REMEMBERED)?);
        entry.expires = Some(expires);
        self.remembered += 1;
        self.check_at(place, expires, true);
        Some(named)
    }

    /// The earliest time at which [`due`](Self::due) may have work to do.
    pub(crate) fn next(&self) -> Option<Instant> {
        let due = self.due.iter().filter_map(BinaryHeap::peek);
        due.map(|Reverse((at, _))| *at).chain(self.sweep).min()
    }

    /// Forgets expired entries, and returns the live runs that are due for a check. The caller
    /// checks their clocks and idle limits without the lock.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Run> {
        let (mut suspects, mut again) = (Vec::new(), Vec::new());
        while let Some(place) = self.due.iter_mut().find_map(|due| pop(due, now)) {
            let Some(entry) = self.entry(place) else {
                continue;
            };
            let is_over = entry.expires.is_some();
            let next = match (entry.expires, entry.idle) {
                (Some(expires), _) if expires <= now => {
                    let run = self.forget(place);
                    self.removed.extend(run);
                    None
                }
                (Some(expires), _) => Some(expires),
                (None, Some(limit)) => match idle_until(entry.run.node(), limit, now) {
                    at if at <= now => {
                        suspects.push(entry.run.clone());
                        // The entry gets another time, because new work of the run may begin before
                        // the caller checks the run.
                        now.checked_add(limit.max(DONE_RUN_CHECKS))
                    }
                    at if limit.is_zero() => Some(at + DONE_RUN_CHECKS),
                    at => Some(at),
                },
                (None, None) => None,
            };
            again.extend(next.map(|at| (place, at, is_over)));
        }
        // The times are pushed after the loop: an idle limit of zero would be due at once, and the
        // loop would not end.
        for (place, at, is_over) in again {
            self.check_at(place, at, is_over);
        }
        if self.sweep.is_some_and(|at| at <= now) {
            suspects.clear();
            suspects.extend(self.live());
            self.sweep = (!suspects.is_empty()).then(|| now + RunRegistry::SAFETY);
        }
        suspects
    }

    /// Forgets this entry, if it still exists. The caller drops the returned run without the lock.
    pub(crate) fn forget(&mut self, place: Place) -> Option<Run> {
        self.remove(place).map(|entry| entry.run)
    }

    pub(crate) fn knows(&self, place: Place) -> bool {
        self.entry(place).is_some()
    }

    /// Takes the runs to drop without the lock.
    pub(crate) fn take_removed(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.removed)
    }

    /// The number of items that the shard holds, in all its maps and queues.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        let maps = self.runs.len() + self.replaced.len();
        let due: usize = self.due.iter().map(BinaryHeap::len).sum();
        maps + self.removed.len() + due
    }

    fn of_key(&self, key: &EntryKey) -> Option<&RunEntry> {
        self.runs.find(key.hash, |entry| entry.is_of(key))
    }

    fn entry(&self, place: Place) -> Option<&RunEntry> {
        self.runs.find(place.hash, |entry| entry.place == place)
    }

    fn entry_mut(&mut self, place: Place) -> Option<&mut RunEntry> {
        self.runs.find_mut(place.hash, |entry| entry.place == place)
    }

    fn remove(&mut self, place: Place) -> Option<RunEntry> {
        let entry = self
            .runs
            .find_entry(place.hash, |entry| entry.place == place);
        let (entry, _) = entry.ok()?.remove();
        self.remembered -= usize::from(entry.expires.is_some());
        // Room for many runs is freed once few are left.
        let len = self.runs.len();
        if self.runs.capacity() > 3 * len + 64 {
            self.runs.shrink_to(len + len / 2, RunEntry::hash);
        }
        Some(entry)
    }

    fn check_at(&mut self, place: Place, at: Instant, is_over: bool) {
        let due = &mut self.due[usize::from(is_over)];
        // A forgotten entry leaves its times in the queue. A live run mostly has at most two times
        // there, an ended run one. A queue is cleaned once it has twice as many, and 64 more.
        let most = if is_over { 2 } else { 4 } * self.runs.len() + 64;
        if due.len() > most {
            let is_of = |place: Place| move |entry: &RunEntry| entry.place == place;
            due.retain(|Reverse((_, place))| self.runs.find(place.hash, is_of(*place)).is_some());
            due.shrink_to(most);
        }
        due.push(Reverse((at, place)));
    }
}

/// Takes the place that is due first, if its time has come.
fn pop(due: &mut BinaryHeap<Reverse<(Instant, Place)>>, now: Instant) -> Option<Place> {
    due.peek().filter(|Reverse((at, _))| *at <= now)?;
    due.pop().map(|Reverse((_, place))| place)
}

impl RunEntry {
    const fn hash(&self) -> u64 {
        self.place.hash
    }

    fn is_of(&self, key: &EntryKey) -> bool {
        let is_same = |known: &Identity| known.owner == key.owner.0 && known.id == key.id;
        self.place.hash == key.hash && self.identity().is_some_and(is_same)
    }

    fn identity(&self) -> Option<&Identity> {
        self.run.node().identity()
    }
}
