use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use slab::Slab;
use tokio::time::Instant;

use super::{
    RunRegistry,
    idle::idle_until,
    key::{Key, Map},
};
use crate::run::{Run, RunId, TerminalReason, info::Identity};

/// One of the parts of what the registry knows, behind a lock; no run is ended in
/// here.
#[derive(Debug, Default)]
pub(super) struct Entries {
    all: Slab<Entry>,
    /// Where each is in there.
    by_key: Map<Key, usize>,
    /// When an entry is to be looked at again.
    due: BinaryHeap<Reverse<(Instant, Place)>>,
    /// The same for those that have ended: each is remembered for as long, so they come
    /// in order.
    ended: VecDeque<(Instant, Place)>,
    /// When all that live are to be looked at.
    sweep: Option<Instant>,
    /// Ended runs whose id was opened anew before they could be told of, by their
    /// serial numbers, and whether somebody chose their id.
    replaced: Map<u64, bool>,
    /// How many more are remembered than when this was last asked.
    remembered: isize,
    /// What left, to be dropped without the lock.
    left: Vec<Run>,
}

/// Where a run is known: what its end looks up nowhere.
#[derive(Debug)]
pub(crate) struct Listed {
    /// That of its key.
    pub(super) hash: u64,
    pub(super) place: Place,
    pub(super) session: Option<Membership>,
}

/// Where an entry is, and its serial number: another one may be there later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) serial: u64,
    pub(super) index: usize,
}

/// Where a run is among those of its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Membership {
    /// That of the session's name.
    pub(super) hash: u64,
    pub(super) slot: usize,
}

/// When a run completes for being idle.
#[derive(Clone, Copy, Debug)]
pub(super) enum Retirement {
    Now,
    At(Instant),
}

#[derive(Debug)]
struct Entry {
    run: Run,
    serial: u64,
    /// Somebody chose its id, and may come back with it.
    named: bool,
    /// The idle limit of a run that was given its id; others end by themselves.
    idle: Option<Duration>,
    /// When it is forgotten; none while it lives.
    expires: Option<Instant>,
    /// It was idle for too long, and somebody is about to complete it.
    retired: bool,
}

impl Entries {
    /// Answers where it is from now on.
    pub(super) fn insert(
        &mut self,
        key: Key,
        run: Run,
        serial: u64,
        named: bool,
        idle: Option<Duration>,
        now: Instant,
    ) -> Place {
        let at = idle.and_then(|idle| now.checked_add(idle));
        let index = self.all.insert(Entry {
            run,
            serial,
            named,
            idle,
            expires: None,
            retired: false,
        });
        if let Some(old) = self.by_key.insert(key, index) {
            let old = self.all.remove(old);
            if old.expires.is_none() {
                self.replaced.insert(old.serial, old.named);
            }
            self.leave(old);
        }
        let place = Place { serial, index };
        if let Some(at) = at {
            self.look_at(place, at);
        }
        self.sweep.get_or_insert(now + RunRegistry::SAFETY);
        place
    }

    /// How often the key was opened before, as far as is remembered.
    pub(super) fn generation(&self, key: &Key) -> u64 {
        let entry = self.entry(key);
        let known = entry.and_then(|entry| entry.run.node().payload.identity());
        known.map_or(0, |known| known.generation)
    }

    /// The run of this key, unless the next request with it opens a new one.
    pub(super) fn reusable(&mut self, key: &Key, now: Instant) -> Option<Run> {
        let run = self.get(key, now)?;
        let retired = self.entry(key).is_some_and(|entry| entry.retired);
        match run.terminal_reason() {
            Some(TerminalReason::Completed) => None,
            None if retired => None,
            _ => Some(run),
        }
    }

    /// The run of this key was found by it: from now on it ends by being idle,
    /// if by nothing else. Of several limits the smallest stays.
    pub(super) fn share(&mut self, key: &Key, idle: Duration, now: Instant) {
        let Some(&index) = self.by_key.get(key) else {
            return;
        };
        let entry = &mut self.all[index];
        entry.run.node().take_many();
        entry.named = true;
        if entry.idle.is_some_and(|limit| limit <= idle) {
            return;
        }
        entry.idle = Some(idle);
        if entry.expires.is_none() {
            let serial = entry.serial;
            if let Some(at) = now.checked_add(idle) {
                self.look_at(Place { serial, index }, at);
            }
        }
    }

    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Option<Run> {
        let entry = &mut self.all[*self.by_key.get(key)?];
        if entry.expires.is_some() {
            entry.expires = now.checked_add(RunRegistry::REMEMBERED);
        }
        Some(entry.run.clone())
    }

    /// Retires the run of this place, if it has been idle for too long: from now on
    /// nobody finds it to work on. Else answers when it will have been.
    pub(super) fn retire(&mut self, place: Place, now: Instant) -> Option<Retirement> {
        let entry = self.at(place)?;
        let at = idle_until(entry.run.node(), entry.idle?, now);
        if at > now {
            return Some(Retirement::At(at));
        }
        entry.retired = true;
        Some(Retirement::Now)
    }

    /// How long the run of this place may be idle.
    pub(super) fn idle(&mut self, place: Place) -> Option<Duration> {
        self.at(place)?.idle
    }

    pub(super) fn find(&self, id: &RunId) -> impl Iterator<Item = Run> {
        let matching = self.by_key.iter().filter(move |(key, _)| key.id == *id);
        matching.map(|(_, index)| self.all[*index].run.clone())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Run> {
        self.all.iter().map(|(_, entry)| entry.run.clone())
    }

    pub(super) fn live(&self) -> impl Iterator<Item = Run> {
        let live = self.all.iter().filter(|(_, entry)| entry.expires.is_none());
        live.map(|(_, entry)| entry.run.clone())
    }

    /// Turns the entry into a memory, and answers whether somebody chose its id, unless
    /// it was told of before.
    pub(super) fn ended(&mut self, place: Place, now: Instant) -> Option<bool> {
        let Some(entry) = self.at(place) else {
            return self.replaced.remove(&place.serial);
        };
        if entry.expires.is_some() {
            return None;
        }
        let expires = now.checked_add(RunRegistry::REMEMBERED)?;
        entry.expires = Some(expires);
        let named = entry.named;
        self.remembered += 1;
        if self.ended.len() > 2 * self.all.len() + 64 {
            let all = &self.all;
            self.ended.retain(|(_, place)| knows(all, *place));
        }
        self.ended.push_back((expires, place));
        Some(named)
    }

    /// When [`due`](Self::due) has something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        let ended = self.ended.front().map(|(at, _)| *at);
        due.into_iter().chain(ended).chain(self.sweep).min()
    }

    /// Forgets what has expired, and answers the runs that are to be looked at, by
    /// the caller and without the lock.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Run> {
        let (mut suspects, mut again) = (Vec::new(), Vec::new());
        while let Some(place) = self.pop_due(now) {
            let Some(entry) = self.at(place) else {
                continue;
            };
            let next = match (entry.expires, entry.idle) {
                (Some(expires), _) if expires <= now => {
                    self.forget(place);
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
            again.extend(next.map(|at| Reverse((at, place))));
        }
        // Not before: a limit of nothing would be due again at once, for ever.
        self.due.extend(again);
        if self.sweep.is_some_and(|at| at <= now) {
            suspects.clear();
            suspects.extend(self.live());
            self.sweep = (!suspects.is_empty()).then(|| now + RunRegistry::SAFETY);
        }
        suspects
    }

    fn pop_due(&mut self, now: Instant) -> Option<Place> {
        if self.ended.front().is_some_and(|(at, _)| *at <= now) {
            return self.ended.pop_front().map(|(_, place)| place);
        }
        let Reverse((at, place)) = *self.due.peek()?;
        (at <= now).then(|| {
            self.due.pop();
            place
        })
    }

    /// Forgets the entry of that place, if it is still there.
    pub(super) fn forget(&mut self, place: Place) {
        if !self.knows(place) {
            return;
        }
        let entry = self.all.remove(place.index);
        if let Some(key) = entry.run.node().payload.identity().and_then(Identity::key) {
            self.by_key.remove(&key);
        }
        self.leave(entry);
    }

    pub(super) fn knows(&self, place: Place) -> bool {
        knows(&self.all, place)
    }

    /// By how much more is remembered, and what is to be dropped.
    pub(super) fn settle(&mut self) -> (isize, Vec<Run>) {
        (
            std::mem::take(&mut self.remembered),
            std::mem::take(&mut self.left),
        )
    }

    fn leave(&mut self, entry: Entry) {
        if entry.expires.is_some() {
            self.remembered -= 1;
        }
        self.left.push(entry.run);
    }

    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.by_key.get(key).map(|index| &self.all[*index])
    }

    fn at(&mut self, place: Place) -> Option<&mut Entry> {
        let entry = self.all.get_mut(place.index)?;
        (entry.serial == place.serial).then_some(entry)
    }

    fn look_at(&mut self, place: Place, at: Instant) {
        // What was forgotten before its time leaves its place in the queue. Each that
        // is known may have two there: twice as many, and this is rare.
        if self.due.len() > 4 * self.all.len() + 64 {
            let all = &self.all;
            self.due.retain(|Reverse((_, place))| knows(all, *place));
        }
        self.due.push(Reverse((at, place)));
    }
}

fn knows(all: &Slab<Entry>, place: Place) -> bool {
    let entry = all.get(place.index);
    entry.is_some_and(|entry| entry.serial == place.serial)
}
