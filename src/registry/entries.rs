use std::{cmp::Reverse, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    RunRegistry,
    eviction::{TimerQueue, idle_until},
    key::{EntryKey, Map},
    slab_map::{RunEntry, SlabMap},
};
use crate::run::{Node, NodeState, Place, Run, RunId, TerminalReason};

/// The index of the queue for live entries in `Entries::due`; `REMEMBERED` is the other.
const LIVE: usize = 0;
const REMEMBERED: usize = 1;

/// One shard of the registry's runs, behind a lock. No run is ended under the lock.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    table: SlabMap,
    /// The times at which entries are due for a check: one queue for live, one for remembered
    /// entries.
    due: [TimerQueue; 2],
    /// The time at which all live runs are next due for a check; `None` if no such check is
    /// planned.
    sweep: Option<Instant>,
    /// The replaced runs with an end that is not published yet, by serial number. The value says
    /// whether the program or a request chose the run's id.
    replaced: Map<u64, bool>,
    /// The number of live runs, including replaced runs that have yet to end.
    live: usize,
    /// The change in the number of remembered runs since the last [`settle`](Self::settle).
    remembered: isize,
    /// The runs that were removed from the shard, to be dropped after the lock is released.
    left: Vec<Run>,
}

/// The time at which a run without work completes as idle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Retirement {
    Now,
    At(Instant),
}

impl Entries {
    /// Inserts an entry for a run, in place of the key's former entry, and answers the new entry's
    /// location.
    pub(crate) fn insert(
        &mut self,
        key: &EntryKey,
        run: Run,
        serial: u64,
        named: bool,
        idle: Option<Duration>,
        now: Instant,
    ) -> Place {
        if let Some(old) = self.table.find(key).map(|index| self.take(index)) {
            if old.expires.is_none() {
                self.replaced.insert(old.serial, old.named);
            }
            self.left.push(old.run);
        }
        self.live += 1;
        let place = self.table.insert(RunEntry {
            run,
            serial,
            hash: key.hash(),
            same: None,
            named,
            idle,
            expires: None,
            retired: false,
        });
        if let Some(at) = idle.and_then(|idle| now.checked_add(idle)) {
            self.look_at(place, at, LIVE);
        }
        self.sweep.get_or_insert(now + RunRegistry::SAFETY);
        place
    }

    /// The generation of the run of this key; 0 if the key is unknown.
    pub(crate) fn generation(&self, key: &EntryKey) -> u64 {
        let entry = self.table.entry(key);
        let known = entry.and_then(|entry| entry.run.node().payload.identity());
        known.map_or(0, |known| known.generation)
    }

    /// The run of this key, live or ended. `None` if the key is unknown, or its run completed or is
    /// retired: then a request may open a new run.
    pub(crate) fn reusable(&mut self, key: &EntryKey, now: Instant) -> Option<Run> {
        let run = self.get(key, now)?;
        let retired = self.table.entry(key).is_some_and(|entry| entry.retired);
        match run.terminal_reason() {
            Some(TerminalReason::Completed) => None,
            None if retired => None,
            _ => Some(run),
        }
    }

    /// Marks the run of this key as shared, because a lookup found it by its id, and lowers its
    /// idle limit to `idle`. A smaller limit stays.
    pub(crate) fn share(&mut self, key: &EntryKey, idle: Duration, now: Instant) {
        let Some(index) = self.table.find(key) else {
            return;
        };
        let entry = &mut self.table[index];
        entry.run.node().make_shared();
        entry.named = true;
        if entry.idle.is_some_and(|limit| limit <= idle) {
            return;
        }
        entry.idle = Some(idle);
        if entry.expires.is_none() {
            let serial = entry.serial;
            if let Some(at) = now.checked_add(idle) {
                self.look_at(Place { serial, index }, at, LIVE);
            }
        }
    }

    pub(crate) fn get(&mut self, key: &EntryKey, now: Instant) -> Option<Run> {
        let index = self.table.find(key)?;
        let entry = &mut self.table[index];
        if entry.expires.is_some() {
            entry.expires = now.checked_add(RunRegistry::REMEMBERED);
        }
        Some(entry.run.clone())
    }

    /// Retires the run of this location if it was idle for too long: no request finds it any more.
    /// Otherwise answers when the run will have been idle for too long; `None` if idleness does not
    /// end it.
    pub(crate) fn retire(&mut self, place: Place, now: Instant) -> Option<Retirement> {
        let entry = self.table.at(place)?;
        let at = idle_until(entry.run.node(), entry.idle?, now);
        if at > now {
            return Some(Retirement::At(at));
        }
        entry.retired = true;
        Some(Retirement::Now)
    }

    /// Retires the run of this location if it is unused and has no work, and answers whether it
    /// did. Requests enter a run under the same lock, so a later request opens another run.
    pub(crate) fn retire_unused(&mut self, place: Place) -> bool {
        let Some(entry) = self.table.at(place) else {
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

    /// Removes a run without a trace, and answers whether it did. A run stays if a cap has admitted
    /// it, observers know it, or several requests work on it.
    pub(crate) fn withdraw(&mut self, place: Place) -> bool {
        let Some(entry) = self.table.at(place).filter(|entry| entry.expires.is_none()) else {
            return false;
        };
        let node = entry.run.node();
        let works = |call: &Arc<Node<NodeState>>| call.nearest_end().is_none();
        let is_shared = node.children().iter().filter(|call| works(call)).count() > 1;
        let identity = node.payload.identity();
        if is_shared || !identity.is_some_and(|known| known.admission.withdraw()) {
            return false;
        }
        let entry = self.take(place.index);
        self.live -= 1;
        self.left.push(entry.run);
        true
    }

    /// The idle limit of the run at this location; `None` if idleness does not end it.
    pub(crate) fn idle(&mut self, place: Place) -> Option<Duration> {
        self.table.at(place)?.idle
    }

    pub(crate) fn find(&self, id: &RunId) -> impl Iterator<Item = Run> {
        let ours = |entry: &&RunEntry| entry.identity().is_some_and(|known| known.id == *id);
        let ours = self.table.iter().filter(ours);
        ours.map(|entry| entry.run.clone())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Run> {
        self.table.iter().map(|entry| entry.run.clone())
    }

    pub(crate) const fn count_live(&self) -> usize {
        self.live
    }

    /// The newest `most` runs with a serial number below `before`, each with its number, in no
    /// order.
    pub(crate) fn newest(&self, before: u64, most: usize) -> impl Iterator<Item = (u64, Run)> {
        let older = |entry: &&RunEntry| entry.serial < before;
        let mut older: Vec<_> = self.table.iter().filter(older).collect();
        if older.len() > most {
            older.select_nth_unstable_by_key(most, |entry| Reverse(entry.serial));
            older.truncate(most);
        }
        older
            .into_iter()
            .map(|entry| (entry.serial, entry.run.clone()))
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = Run> {
        let live = self.table.iter().filter(|entry| entry.expires.is_none());
        live.map(|entry| entry.run.clone())
    }

    /// Marks the entry of a run that ended as remembered; a replaced run is only counted as ended.
    /// Answers whether the run's id was given; `None` if the end was published before.
    pub(crate) fn ended(&mut self, place: Place, now: Instant) -> Option<bool> {
        let Some(entry) = self.table.at(place) else {
            let named = self.replaced.remove(&place.serial)?;
            self.live -= 1;
            return Some(named);
        };
        if entry.expires.is_some() {
            return None;
        }
        let expires = now.checked_add(RunRegistry::REMEMBERED)?;
        entry.expires = Some(expires);
        let named = entry.named;
        self.live -= 1;
        self.remembered += 1;
        self.look_at(place, expires, REMEMBERED);
        Some(named)
    }

    /// The earliest time at which [`due`](Self::due) has work to do.
    pub(crate) fn next(&self) -> Option<Instant> {
        let due = self.due.iter().filter_map(TimerQueue::next);
        due.chain(self.sweep).min()
    }

    /// Forgets expired entries, and answers the live runs with clocks that are due for a check. The
    /// caller checks the runs without the lock.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Run> {
        let (mut suspects, mut again) = (Vec::new(), Vec::new());
        while let Some(place) = self.due.iter_mut().find_map(|due| due.pop(now)) {
            let Some(entry) = self.table.at(place) else {
                continue;
            };
            let which = usize::from(entry.expires.is_some());
            let next = match (entry.expires, entry.idle) {
                (Some(expires), _) if expires <= now => {
                    let run = self.forget(place);
                    self.left.extend(run);
                    None
                }
                (Some(expires), _) => Some(expires),
                (None, Some(limit)) => match idle_until(entry.run.node(), limit, now) {
                    at if at <= now => {
                        suspects.push(entry.run.clone());
                        // The entry gets another time, because new work of the run may begin before
                        // the caller checks the run.
                        now.checked_add(limit)
                    }
                    at => Some(at),
                },
                (None, None) => None,
            };
            again.extend(next.map(|at| (at, place, which)));
        }
        // The times are pushed after the loop: an idle limit of zero would be due at once, and the
        // loop would not end.
        for (at, place, which) in again {
            self.due[which].push(at, place);
        }
        if self.sweep.is_some_and(|at| at <= now) {
            suspects.clear();
            suspects.extend(self.live());
            self.sweep = (!suspects.is_empty()).then(|| now + RunRegistry::SAFETY);
        }
        suspects
    }

    /// Forgets the entry of that location, if the entry still exists. The caller drops the answered
    /// run without the lock.
    pub(crate) fn forget(&mut self, place: Place) -> Option<Run> {
        self.knows(place).then(|| self.take(place.index).run)
    }

    pub(crate) fn knows(&self, place: Place) -> bool {
        self.table.knows(place)
    }

    /// Takes the change in the number of remembered runs, and the runs to drop without the lock.
    pub(crate) fn settle(&mut self) -> (isize, Vec<Run>) {
        (
            std::mem::take(&mut self.remembered),
            std::mem::take(&mut self.left),
        )
    }

    /// The number of items that the shard holds, in all its maps and queues.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        let due: usize = self.due.iter().map(TimerQueue::len).sum();
        self.table.size() + self.replaced.len() + self.left.len() + due
    }

    /// Removes and answers the entry at this index.
    fn take(&mut self, index: usize) -> RunEntry {
        let entry = self.table.remove(index);
        if entry.expires.is_some() {
            self.remembered -= 1;
        }
        entry
    }

    fn look_at(&mut self, place: Place, at: Instant, which: usize) {
        let due = &mut self.due[which];
        // A forgotten entry leaves its times in the queue. A known entry may have two times there,
        // so the queue is cleaned only beyond four times per entry, which is rare.
        if due.len() > 4 * self.table.len() + 64 {
            due.retain(|place| self.table.knows(place));
        }
        due.push(at, place);
    }
}
