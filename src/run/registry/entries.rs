use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use tokio::time::Instant;

use super::{
    RunRegistry,
    idle::idle_until,
    key::{Key, Map, Session},
};
use crate::run::{Run, RunId, TerminalReason};

/// One of the parts of what the registry knows, behind a lock; no run is ended in
/// here.
#[derive(Debug, Default)]
pub(super) struct Entries {
    by_key: Map<Key, Entry>,
    /// When an entry is to be looked at again, by serial number: a newer entry
    /// of the same key has a newer one.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    keys: Map<u64, Key>,
    /// When all that live are to be looked at.
    sweep: Option<Instant>,
    /// Ended runs whose id was opened anew before they could be told of, by the
    /// numbers of their nodes.
    replaced: Map<u64, Listed>,
    /// How many more are remembered than when this was last asked.
    remembered: isize,
    /// What left, to be dropped without the lock.
    left: Vec<Run>,
}

/// Where else a run is known.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) serial: u64,
    pub(super) session: Option<Session>,
    /// Somebody chose its id, and may come back with it.
    pub(super) named: bool,
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
    listed: Listed,
    /// The idle limit of a run that was given its id; others end by themselves.
    idle: Option<Duration>,
    /// When it is forgotten; none while it lives.
    expires: Option<Instant>,
    /// It was idle for too long, and somebody is about to complete it.
    retired: bool,
}

impl Entries {
    pub(super) fn insert(
        &mut self,
        key: Key,
        run: Run,
        listed: Listed,
        idle: Option<Duration>,
        now: Instant,
    ) {
        let serial = listed.serial;
        let at = idle.and_then(|idle| now.checked_add(idle));
        self.keys.insert(serial, key.clone());
        let entry = Entry {
            run,
            listed,
            idle,
            expires: None,
            retired: false,
        };
        if let Some(old) = self.by_key.insert(key, entry) {
            self.keys.remove(&old.listed.serial);
            if old.expires.is_none() {
                let number = old.run.node().number();
                self.replaced.insert(number, old.listed.clone());
            }
            self.leave(old);
        }
        if let Some(at) = at {
            self.look_at(serial, at);
        }
        self.sweep.get_or_insert(now + RunRegistry::SAFETY);
    }

    /// How often the key was opened before, as far as is remembered.
    pub(super) fn generation(&self, key: &Key) -> u64 {
        let entry = self.by_key.get(key);
        let known = entry.and_then(|entry| entry.run.node().payload.identity());
        known.map_or(0, |known| known.generation)
    }

    /// The run of this key, unless the next request with it opens a new one.
    pub(super) fn reusable(&mut self, key: &Key, now: Instant) -> Option<Run> {
        let run = self.get(key, now)?;
        let retired = self.by_key.get(key).is_some_and(|entry| entry.retired);
        match run.terminal_reason() {
            Some(TerminalReason::Completed) => None,
            None if retired => None,
            _ => Some(run),
        }
    }

    /// The run of this key was found by it: from now on it ends by being idle,
    /// if by nothing else. Of several limits the smallest stays.
    pub(super) fn share(&mut self, key: &Key, idle: Duration, now: Instant) {
        let Some(entry) = self.by_key.get_mut(key) else {
            return;
        };
        entry.run.node().take_many();
        entry.listed.named = true;
        if entry.idle.is_some_and(|limit| limit <= idle) {
            return;
        }
        entry.idle = Some(idle);
        if entry.expires.is_none() {
            let serial = entry.listed.serial;
            if let Some(at) = now.checked_add(idle) {
                self.look_at(serial, at);
            }
        }
    }

    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Option<Run> {
        let entry = self.by_key.get_mut(key)?;
        if entry.expires.is_some() {
            entry.expires = now.checked_add(RunRegistry::REMEMBERED);
        }
        Some(entry.run.clone())
    }

    /// Retires the run of this key, if it is that node and has been idle for too long:
    /// from now on nobody finds it to work on. Else answers when it will have been.
    pub(super) fn retire(&mut self, key: &Key, number: u64, now: Instant) -> Option<Retirement> {
        let entry = self.by_key.get_mut(key)?;
        let node = entry.run.node();
        let limit = entry.idle.filter(|_| node.number() == number)?;
        let at = idle_until(node, limit, now);
        if at > now {
            return Some(Retirement::At(at));
        }
        entry.retired = true;
        Some(Retirement::Now)
    }

    /// How long the run of this key may be idle, if it is that node.
    pub(super) fn idle(&self, key: &Key, number: u64) -> Option<Duration> {
        let entry = self.by_key.get(key)?;
        (entry.run.node().number() == number)
            .then_some(entry.idle)
            .flatten()
    }

    pub(super) fn find(&self, id: &RunId) -> impl Iterator<Item = Run> {
        let matching = self.by_key.iter().filter(move |(key, _)| key.id == *id);
        matching.map(|(_, entry)| entry.run.clone())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Run> {
        self.by_key.values().map(|entry| entry.run.clone())
    }

    pub(super) fn live(&self) -> impl Iterator<Item = Run> {
        let live = self.by_key.values().filter(|entry| entry.expires.is_none());
        live.map(|entry| entry.run.clone())
    }

    /// Turns the entry into a memory, and answers where else it is known, unless the
    /// node never stood under the key, or has ended before.
    pub(super) fn ended(&mut self, key: &Key, number: u64, now: Instant) -> Option<Listed> {
        if let Some(listed) = self.replaced.remove(&number) {
            return Some(listed);
        }
        let entry = self.by_key.get_mut(key)?;
        if entry.run.node().number() != number || entry.expires.is_some() {
            return None;
        }
        let expires = now.checked_add(RunRegistry::REMEMBERED)?;
        entry.expires = Some(expires);
        let listed = entry.listed.clone();
        self.remembered += 1;
        self.look_at(listed.serial, expires);
        Some(listed)
    }

    /// When [`due`](Self::due) has something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        due.into_iter().chain(self.sweep).min()
    }

    /// Forgets what has expired, and answers the runs that are to be looked at, by
    /// the caller and without the lock.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Run> {
        let (mut suspects, mut again) = (Vec::new(), Vec::new());
        while let Some(&Reverse((at, serial))) = self.due.peek() {
            if at > now {
                break;
            }
            self.due.pop();
            let Some(entry) = self.keys.get(&serial).and_then(|key| self.by_key.get(key)) else {
                continue;
            };
            let next = match (entry.expires, entry.idle) {
                (Some(expires), _) if expires <= now => {
                    self.forget(serial);
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
            again.extend(next.map(|at| Reverse((at, serial))));
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

    /// Forgets the entry of that number, if it is still there.
    pub(super) fn forget(&mut self, serial: u64) -> bool {
        let key = self.keys.remove(&serial);
        match key.and_then(|key| self.by_key.remove(&key)) {
            Some(entry) => {
                self.leave(entry);
                true
            }
            None => false,
        }
    }

    pub(super) fn knows(&self, serial: u64) -> bool {
        self.keys.contains_key(&serial)
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

    fn look_at(&mut self, serial: u64, at: Instant) {
        // What was forgotten before its time leaves its place in the queue. Each that
        // is known may have two there: twice as many, and this is rare.
        if self.due.len() > 4 * self.keys.len() + 64 {
            let keys = &self.keys;
            self.due
                .retain(|Reverse((_, serial))| keys.contains_key(serial));
        }
        self.due.push(Reverse((at, serial)));
    }
}
