//! Token buckets that pay for repeats: one for each candidate.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

use crate::run::{Nanos, nanos};

/// A repeat, in the thousandths in which deposits are kept.
pub(super) const TOKEN: u64 = 1_000;

const SECOND: u64 = 1_000_000_000;

/// How a bucket fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    /// What one first attempt deposits, in thousandths of a repeat.
    pub(super) deposit: u64,
    /// Repeats per second that are granted whatever was deposited.
    pub(super) floor: u32,
}

impl Rates {
    /// # Panics
    ///
    /// If `ratio` is not within `0.0..=10.0`.
    pub(super) fn new(ratio: f64, floor: u32) -> Self {
        assert!(
            (0.0..=10.0).contains(&ratio),
            "the ratio of repeats to first attempts must be from 0 to 10, not {ratio}"
        );
        Self {
            deposit: (ratio * TOKEN as f64).round() as u64,
            floor,
        }
    }
}

/// The one integer that each half of a bucket is. A parameter so that loom can
/// put its own in the place of the standard library's.
pub(crate) trait Cell {
    fn new(value: u64) -> Self;
    #[cfg(test)]
    fn load(&self) -> u64;
    /// Replaces the value by `next` of it in one step, if that is `Some`.
    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> bool;
}

impl Cell for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[cfg(test)]
    fn load(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> bool {
        // Relaxed: the integer is all there is, nothing is published by it.
        self.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

/// Which half of a bucket granted a repeat. Not `Clone`: it is spent, or given
/// back by value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PermitSource {
    Deposits,
    Floor,
}

/// Pays for the repeats to one candidate.
///
/// Grants that were not given back never exceed what was deposited, plus the
/// floor times the time since the bucket was made, plus one second of the
/// floor. Each is one successful exchange of one integer, so this holds under
/// any interleaving, and nothing depends on how long the bucket was idle.
// Away from the reference counts of the `Arc` around it; processors fetch
// lines of 64 bytes in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Bucket<C = AtomicU64> {
    /// In thousandths, at most `cap`.
    deposits: C,
    /// Up to when the floor is spent, in nanoseconds: each repeat moves it on
    /// by `interval`, time that passed unused moves it to `burst` ago.
    spent_until: C,
    deposit: u64,
    cap: u64,
    /// Nanoseconds; 0 if there is no floor.
    interval: u64,
    burst: u64,
}

impl<C: Cell> Bucket<C> {
    pub(super) fn new(rates: Rates) -> Self {
        let floor = u64::from(rates.floor);
        // Rounded up, so that a second never has more than the floor.
        let interval = SECOND
            .checked_div(floor)
            .map_or(0, |_| SECOND.div_ceil(floor));
        Self {
            deposits: C::new(0),
            spent_until: C::new(0),
            deposit: rates.deposit,
            cap: (10 * floor).max(10) * TOKEN,
            interval,
            burst: floor * interval,
        }
    }

    /// A first attempt was made: it pays for a part of a repeat.
    #[inline]
    pub(crate) fn deposit(&self) {
        self.add(self.deposit);
    }

    /// One repeat, if there is one; from the deposits first. `now` is in
    /// nanoseconds since the bucket was made, and only read for the floor.
    #[inline]
    pub(crate) fn withdraw(&self, now: impl FnOnce() -> u64) -> Option<PermitSource> {
        if self.deposits.update(|have| have.checked_sub(TOKEN)) {
            return Some(PermitSource::Deposits);
        }
        self.draw_floor(now)
    }

    fn draw_floor(&self, now: impl FnOnce() -> u64) -> Option<PermitSource> {
        if self.interval == 0 {
            return None;
        }
        // A burst ahead of the clock, so that a new bucket has a full one.
        let due = now().saturating_add(self.burst);
        let drawn = self.spent_until.update(|until| {
            let next = until.max(due - self.burst).checked_add(self.interval)?;
            (next <= due).then_some(next)
        });
        drawn.then_some(PermitSource::Floor)
    }

    /// Gives back what [`withdraw`](Self::withdraw) granted.
    pub(crate) fn refund(&self, source: PermitSource) {
        match source {
            PermitSource::Deposits => self.add(TOKEN),
            PermitSource::Floor => {
                let back = |until: u64| Some(until.saturating_sub(self.interval));
                self.spent_until.update(back);
            }
        }
    }

    /// What lies in the deposits, in thousandths.
    #[cfg(test)]
    pub(crate) fn deposited(&self) -> u64 {
        self.deposits.load()
    }

    #[inline]
    fn add(&self, amount: u64) {
        // A full bucket is the healthy case, and is only read.
        self.deposits
            .update(|have| (have < self.cap).then(|| (have + amount).min(self.cap)));
    }
}

#[cfg(test)]
impl Cell for loom::sync::atomic::AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[cfg(test)]
    fn load(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> bool {
        self.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

/// How many candidates have a bucket of their own.
pub(super) const NAMES: usize = 256;

/// How long the name of one may be, in bytes: it may be what a caller sent.
pub(super) const NAME: usize = 256;

/// A bucket per candidate, so that an outage of one does not starve another.
#[derive(Debug)]
pub(super) struct Buckets {
    rates: Rates,
    opened: Instant,
    /// For requests that name no candidate; found without a look-up.
    unnamed: Arc<Bucket>,
    /// A hash table whose places are taken once and for all: a reader writes
    /// nothing, where a lock's counter would cost more than the bucket. And if
    /// names could be removed, a flood of them would refill buckets.
    named: Box<[OnceLock<NamedBucket>]>,
    hasher: RandomState,
    /// For all names that have no bucket of their own.
    overflow: Arc<Bucket>,
}

#[derive(Debug)]
struct NamedBucket {
    name: Box<str>,
    bucket: Arc<Bucket>,
}

impl Buckets {
    pub(super) fn new(rates: Rates) -> Self {
        Self {
            rates,
            opened: Instant::now(),
            unnamed: Arc::new(Bucket::new(rates)),
            named: (0..NAMES).map(|_| OnceLock::new()).collect(),
            hasher: RandomState::new(),
            overflow: Arc::new(Bucket::new(rates)),
        }
    }

    /// Since the buckets were made.
    pub(super) fn now(&self) -> Nanos {
        nanos(self.opened.elapsed())
    }

    #[inline]
    pub(super) fn of(&self, candidate: Option<&str>) -> &Arc<Bucket> {
        match candidate {
            None => &self.unnamed,
            Some(name) => self.of_name(name),
        }
    }

    fn of_name(&self, name: &str) -> &Arc<Bucket> {
        if name.len() > NAME {
            return &self.overflow;
        }
        let start = self.hasher.hash_one(name) as usize % NAMES;
        let (before, from) = self.named.split_at(start);
        // The first place that is free or ours. Of two threads that come to a
        // free one the later finds what the earlier put there.
        let place = from.iter().chain(before).find_map(|place| {
            let named = place.get_or_init(|| NamedBucket {
                name: name.into(),
                bucket: Arc::new(Bucket::new(self.rates)),
            });
            (*named.name == *name).then_some(&named.bucket)
        });
        place.unwrap_or(&self.overflow)
    }
}
