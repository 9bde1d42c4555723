use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
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
    /// Names are never removed, or a flood of them would refill buckets.
    named: RwLock<HashMap<Box<str>, Arc<Bucket>>>,
    /// For all names that have no bucket of their own.
    overflow: Arc<Bucket>,
}

impl Buckets {
    pub(super) fn new(rates: Rates) -> Self {
        Self {
            rates,
            opened: Instant::now(),
            unnamed: Arc::new(Bucket::new(rates)),
            named: RwLock::default(),
            overflow: Arc::new(Bucket::new(rates)),
        }
    }

    /// Since the buckets were made.
    pub(super) fn now(&self) -> Nanos {
        nanos(self.opened.elapsed())
    }

    /// Hands the bucket of `candidate` to `f`, uncloned: cloning it would cost
    /// as much as what most do with it.
    #[inline]
    pub(super) fn with<R>(&self, candidate: Option<&str>, f: impl FnOnce(&Arc<Bucket>) -> R) -> R {
        match candidate {
            None => f(&self.unnamed),
            Some(name) => self.with_named(name, f),
        }
    }

    fn with_named<R>(&self, name: &str, f: impl FnOnce(&Arc<Bucket>) -> R) -> R {
        {
            let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(bucket) = named.get(name) {
                return f(bucket);
            }
            if named.len() >= NAMES || name.len() > NAME {
                return f(&self.overflow);
            }
        }
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        // Others may have come in between the locks.
        if named.len() >= NAMES && !named.contains_key(name) {
            return f(&self.overflow);
        }
        let new = || Arc::new(Bucket::new(self.rates));
        f(named.entry(name.into()).or_insert_with(new))
    }
}
