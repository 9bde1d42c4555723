//! Token buckets that pay for repeats: one for each candidate, up to a maximum of candidates.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

use crate::run::{Nanos, nanos};

/// The value of one repeat in the unit of deposits, a thousandth of a repeat.
pub(super) const TOKEN: u64 = 1_000;

const SECOND: u64 = 1_000_000_000;

/// The rates at which a bucket fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    /// The deposit of one first attempt, in thousandths of a repeat.
    pub(super) deposit: u64,
    /// The repeats per second that are granted without a deposit.
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

/// The atomic integer behind each of a bucket's two numbers. Tests also use the integer of loom.
pub(crate) trait Cell {
    fn new(value: u64) -> Self;
    #[cfg(test)]
    fn load(&self) -> u64;
    /// Replaces the value by `next(value)` in one atomic step. Leaves the value and returns `false`
    /// if `next` returns `None`.
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
        // The order is relaxed, because no other memory depends on the integer.
        self.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

/// The half of a bucket that granted a repeat: its deposits or its floor.
///
/// The type is not `Clone`: a repeat is spent once, or refunded once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PermitSource {
    Deposits,
    Floor,
}

/// A token bucket that pays for the repeats to one candidate.
///
/// Grants that were not refunded never exceed the deposits, plus the floor times the age of
/// the bucket, plus one second of the floor. Each grant is one successful exchange of one
/// integer, so this holds under any interleaving, and after any idle time.
// The bucket is aligned away from the reference counts of the `Arc` around it; processors
// fetch cache lines of 64 bytes in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Bucket<C = AtomicU64> {
    /// The deposits in the bucket, in thousandths of a repeat; at most `cap`.
    deposits: C,
    /// The time up to which repeats have spent the floor, in nanoseconds on the clock of
    /// `withdraw`.
    ///
    /// Each repeat from the floor advances `spent_until` by `interval`, from the current time if
    /// `spent_until` has passed. A repeat that would advance it more than `burst` beyond the
    /// current time is refused.
    spent_until: C,
    deposit: u64,
    cap: u64,
    /// The nanoseconds in which the floor grants one repeat; 0 if there is no floor.
    interval: u64,
    burst: u64,
}

impl<C: Cell> Bucket<C> {
    pub(super) fn new(rates: Rates) -> Self {
        let floor = u64::from(rates.floor);
        // The interval is rounded up, so that beside its burst the floor never grants more than
        // its rate.
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

    /// Deposits the part of a repeat that one first attempt pays for.
    #[inline]
    pub(crate) fn deposit(&self) {
        self.add(self.deposit);
    }

    /// Grants one repeat, from the deposits or else from the floor; `None` if neither has one
    /// left.
    ///
    /// `now` returns nanoseconds since the buckets were made, and is called only if the deposits do
    /// not suffice.
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
        // The highest value that `spent_until` may take, one burst ahead of the clock: so a new
        // bucket grants a full burst at once.
        let due = now().saturating_add(self.burst);
        let drawn = self.spent_until.update(|until| {
            let next = until.max(due - self.burst).checked_add(self.interval)?;
            (next <= due).then_some(next)
        });
        drawn.then_some(PermitSource::Floor)
    }

    /// Takes back a repeat that [`withdraw`](Self::withdraw) granted.
    pub(crate) fn refund(&self, source: PermitSource) {
        match source {
            PermitSource::Deposits => self.add(TOKEN),
            PermitSource::Floor => {
                let back = |until: u64| Some(until.saturating_sub(self.interval));
                self.spent_until.update(back);
            }
        }
    }

    /// The deposits in the bucket, in thousandths of a repeat.
    #[cfg(test)]
    pub(crate) fn deposited(&self) -> u64 {
        self.deposits.load()
    }

    #[inline]
    fn add(&self, amount: u64) {
        // A full bucket is not written: while a service is healthy, its buckets are mostly full.
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

/// The number of candidates that may have a bucket of their own.
pub(super) const NAMES: usize = 256;

/// The longest candidate name with a bucket of its own, in bytes; callers may choose names.
pub(super) const NAME: usize = 256;

/// One bucket for each of the first [`NAMES`] candidates. So the repeats to one candidate use up no
/// repeats to another. All further candidates, and those with too long a name, share a bucket.
pub(super) struct Buckets {
    rates: Rates,
    opened: Instant,
    /// The bucket for requests without a candidate, which needs no look-up.
    unnamed: Arc<Bucket>,
    /// The buckets by candidate name: a hash table in which each slot is set once and never freed.
    ///
    /// The lookup of a known name writes nothing; the counter of a read lock would cost more than
    /// the bucket. No name is removed, because a name that came again would get a new bucket with a
    /// full burst.
    named: Box<[OnceLock<NamedBucket>]>,
    hasher: RandomState,
    /// The bucket for all names without a bucket of their own: later or longer ones.
    overflow: Arc<Bucket>,
}

#[derive(Debug)]
struct NamedBucket {
    name: Box<str>,
    bucket: Arc<Bucket>,
}

impl fmt::Debug for Buckets {
    /// Prints the rates, and not the state of each bucket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut buckets = f.debug_struct("Buckets");
        buckets.field("rates", &self.rates).finish_non_exhaustive()
    }
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

    /// The time since the buckets were made, in nanoseconds.
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
        // Linear probing finds the first slot that is free or has this name. If two threads find
        // one slot free, the later thread gets the earlier thread's name and compares it.
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
