use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, OnceLock},
};

use tokio::time::Instant;

use super::bucket::{Bucket, Rates};
use crate::run::{Nanos, nanos};

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
