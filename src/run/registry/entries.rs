use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{Owner, RunRegistry};
use crate::run::{ResetOn, Run, RunId, TerminalReason};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) owner: u128,
    pub(super) id: RunId,
}

impl Key {
    pub(super) const fn new(owner: Owner, id: RunId) -> Self {
        Self { owner: owner.0, id }
    }
}

/// What the registry knows, behind its lock; no run is ended in here.
#[derive(Debug, Default)]
pub(super) struct Entries {
    by_key: HashMap<Key, Entry>,
    /// When an entry is to be looked at again, by serial number: a newer entry
    /// of the same key has a newer one.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    keys: HashMap<u64, Key>,
    /// Ended entries, oldest first, by serial number.
    ended: VecDeque<u64>,
    serial: u64,
}

#[derive(Debug)]
struct Entry {
    run: Run,
    serial: u64,
    /// The idle limit of a run that was given its id; others end by themselves.
    idle: Option<Duration>,
    expires: Option<Instant>,
}

impl Entries {
    pub(super) fn insert(&mut self, key: Key, run: Run, idle: Option<Duration>, now: Instant) {
        self.serial += 1;
        let serial = self.serial;
        if let Some(at) = idle.and_then(|idle| now.checked_add(idle)) {
            self.due.push(Reverse((at, serial)));
        }
        self.keys.insert(serial, key.clone());
        let entry = Entry {
            run,
            serial,
            idle,
            expires: None,
        };
        if let Some(old) = self.by_key.insert(key, entry) {
            self.keys.remove(&old.serial);
        }
    }

    /// The run of this key, unless the next request with it opens a new one.
    pub(super) fn reusable(&mut self, key: &Key, now: Instant) -> Option<Run> {
        let run = self.get(key, now)?;
        (run.terminal_reason() != Some(TerminalReason::Completed)).then_some(run)
    }

    /// The run of this key was found by it: from now on it ends by being idle,
    /// if by nothing else.
    pub(super) fn share(&mut self, key: &Key, idle: Duration, now: Instant) {
        let Some(entry) = self.by_key.get_mut(key) else {
            return;
        };
        entry.run.node().payload.set_single(false);
        if entry.idle.replace(idle).is_none() && entry.expires.is_none() {
            if let Some(at) = now.checked_add(idle) {
                self.due.push(Reverse((at, entry.serial)));
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

    pub(super) fn find(&self, id: &RunId) -> Vec<Run> {
        let matching = self.by_key.iter().filter(|(key, _)| key.id == *id);
        matching.map(|(_, entry)| entry.run.clone()).collect()
    }

    pub(super) fn all(&self) -> Vec<Run> {
        self.by_key
            .values()
            .map(|entry| entry.run.clone())
            .collect()
    }

    /// Turns the entry into a memory, unless the node is not the one that stands
    /// under the key.
    pub(super) fn ended(&mut self, key: &Key, number: u64, now: Instant) -> bool {
        let Some(entry) = self.by_key.get_mut(key) else {
            return false;
        };
        if entry.run.node().number() != number || entry.expires.is_some() {
            return false;
        }
        let Some(expires) = now.checked_add(RunRegistry::REMEMBERED) else {
            return false;
        };
        entry.expires = Some(expires);
        self.due.push(Reverse((expires, entry.serial)));
        self.ended.push_back(entry.serial);
        while self.ended.len() > RunRegistry::ENDED {
            if let Some(oldest) = self.ended.pop_front() {
                self.forget(oldest);
            }
        }
        true
    }

    /// Forgets what has expired, and answers the runs that have been idle for
    /// too long, for the caller to end.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Run> {
        let mut idle = Vec::new();
        while let Some(&Reverse((at, serial))) = self.due.peek() {
            if at > now {
                break;
            }
            self.due.pop();
            let Some(entry) = self.keys.get(&serial).and_then(|key| self.by_key.get(key)) else {
                continue;
            };
            let again = match (entry.expires, entry.idle) {
                (Some(expires), _) if expires <= now => {
                    self.forget(serial);
                    None
                }
                (Some(expires), _) => Some(expires),
                (None, Some(limit)) => match entry.idle_since(limit) {
                    Some(at) if at <= now => {
                        idle.push(entry.run.clone());
                        None
                    }
                    Some(at) => Some(at),
                    // Busy: it cannot be idle before a whole limit from now.
                    None => now.checked_add(limit),
                },
                (None, None) => None,
            };
            if let Some(at) = again {
                self.due.push(Reverse((at, serial)));
            }
        }
        // What was forgotten before its time leaves its place in the queue.
        if self.due.len() > 2 * self.keys.len() + 64 {
            let keys = &self.keys;
            self.due
                .retain(|Reverse((_, serial))| keys.contains_key(serial));
        }
        while let Some(serial) = self.ended.front() {
            if self.keys.contains_key(serial) {
                break;
            }
            self.ended.pop_front();
        }
        idle
    }

    fn forget(&mut self, serial: u64) {
        if let Some(key) = self.keys.remove(&serial) {
            self.by_key.remove(&key);
        }
    }
}

impl Entry {
    /// When it will have been idle for `limit`; `None` while it is busy.
    fn idle_since(&self, limit: Duration) -> Option<Instant> {
        if !self.run.node().is_idle() {
            return None;
        }
        let node = self.run.node();
        let last = Duration::from_nanos(node.last(ResetOn::AnyByte)).max(node.opened());
        self.run.instant(last)?.checked_add(limit)
    }
}
