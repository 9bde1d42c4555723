use std::{cmp::Reverse, time::Duration};

use tokio::time::Instant;

use super::{
    RunRegistry,
    idle::idle_until,
    key::{EntryKey, Map},
    slab_map::{RunEntry, SlabMap},
    timer_queue::TimerQueue,
};
use crate::run::{Place, Run, RunId, TerminalReason};

/// Of the two agendas.
const LIVES: usize = 0;
const REMEMBERED: usize = 1;

/// One of the parts of what the registry knows, behind a lock; no run is ended in
/// here.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    table: SlabMap,
    /// When an entry is to be looked at again, if it lives and if it is remembered.
    due: [TimerQueue; 2],
    /// When all that live are to be looked at.
    sweep: Option<Instant>,
    /// Ended runs whose id was opened anew before they could be told of, by their
    /// serial numbers, and whether somebody chose their id.
    replaced: Map<u64, bool>,
    /// How many live, those included that were replaced and have yet to end.
    live: usize,
    /// How many more are remembered than when this was last asked.
    remembered: isize,
    /// What left, to be dropped without the lock.
    left: Vec<Run>,
}

/// When a run completes for being idle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Retirement {
    Now,
    At(Instant),
}

impl Entries {
    /// Answers where it is from now on.
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
            self.look_at(place, at, LIVES);
        }
        self.sweep.get_or_insert(now + RunRegistry::SAFETY);
        place
    }

    /// How often the key was opened before, as far as is remembered.
    pub(crate) fn generation(&self, key: &EntryKey) -> u64 {
        let entry = self.table.entry(key);
        let known = entry.and_then(|entry| entry.run.node().payload.identity());
        known.map_or(0, |known| known.generation)
    }

    /// The run of this key, unless the next request with it opens a new one.
    pub(crate) fn reusable(&mut self, key: &EntryKey, now: Instant) -> Option<Run> {
        let run = self.get(key, now)?;
        let retired = self.table.entry(key).is_some_and(|entry| entry.retired);
        match run.terminal_reason() {
            Some(TerminalReason::Completed) => None,
            None if retired => None,
            _ => Some(run),
        }
    }

    /// The run of this key was found by it: from now on it ends by being idle,
    /// if by nothing else. Of several limits the smallest stays.
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
                self.look_at(Place { serial, index }, at, LIVES);
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

    /// Retires the run of this place, if it has been idle for too long: from now on
    /// nobody finds it to work on. Else answers when it will have been.
    pub(crate) fn retire(&mut self, place: Place, now: Instant) -> Option<Retirement> {
        let entry = self.table.at(place)?;
        let at = idle_until(entry.run.node(), entry.idle?, now);
        if at > now {
            return Some(Retirement::At(at));
        }
        entry.retired = true;
        Some(Retirement::Now)
    }

    /// Retires the run of this place if it is unused and nothing is in flight. Requests
    /// enter a run under the same lock: one that comes later opens another.
    pub(crate) fn retire_unused(&mut self, place: Place) -> bool {
        let Some(entry) = self.table.at(place) else {
            return false;
        };
        let node = entry.run.node();
        let is_first = !entry.retired && entry.expires.is_none();
        if !is_first || !node.is_idle() || !node.payload.is_unused() {
            return false;
        }
        entry.retired = true;
        true
    }

    /// How long the run of this place may be idle.
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

    /// The newest `most` runs that were opened before the run of that serial number,
    /// with their own, in no order.
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

    /// Turns the entry into a memory, and answers whether somebody chose its id, unless
    /// it was told of before.
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

    /// When [`due`](Self::due) has something to do.
    pub(crate) fn next(&self) -> Option<Instant> {
        let due = self.due.iter().filter_map(TimerQueue::next);
        due.chain(self.sweep).min()
    }

    /// Forgets what has expired, and answers the runs that are to be looked at, by
    /// the caller and without the lock.
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
                        // Something may begin before it is looked at.
                        now.checked_add(limit)
                    }
                    at => Some(at),
                },
                (None, None) => None,
            };
            again.extend(next.map(|at| (at, place, which)));
        }
        // Not before: a limit of nothing would be due again at once, for ever.
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

    /// Forgets the entry of that place, if it is still there; its run is to be dropped
    /// without the lock.
    pub(crate) fn forget(&mut self, place: Place) -> Option<Run> {
        self.knows(place).then(|| self.take(place.index).run)
    }

    pub(crate) fn knows(&self, place: Place) -> bool {
        self.table.knows(place)
    }

    /// By how much more is remembered, and what is to be dropped.
    pub(crate) fn settle(&mut self) -> (isize, Vec<Run>) {
        (
            std::mem::take(&mut self.remembered),
            std::mem::take(&mut self.left),
        )
    }

    /// How much there is, wherever that is.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        let due: usize = self.due.iter().map(TimerQueue::len).sum();
        self.table.size() + self.replaced.len() + self.left.len() + due
    }

    /// Removes the entry that is there.
    fn take(&mut self, index: usize) -> RunEntry {
        let entry = self.table.remove(index);
        if entry.expires.is_some() {
            self.remembered -= 1;
        }
        entry
    }

    fn look_at(&mut self, place: Place, at: Instant, which: usize) {
        let due = &mut self.due[which];
        // What was forgotten before its time leaves its place in there. Each that is
        // known may have two: twice as many, and this is rare.
        if due.len() > 4 * self.table.len() + 64 {
            due.retain(|place| self.table.knows(place));
        }
        due.push(at, place);
    }
}
