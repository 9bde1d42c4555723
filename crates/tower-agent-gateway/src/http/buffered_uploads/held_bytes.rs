use std::{
    collections::{HashMap, hash_map::Entry},
    error::Error,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tower_agent::Owner;

use crate::{config::MAX_BODY, telemetry::count_refused_upload};

/// The least time between two lines of the log that say that uploads are refused.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The bytes of request bodies that are held, in all and for each owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldBytes(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    /// An owner is there while it holds bytes.
    by_owner: HashMap<Owner, usize>,
    /// The uploads that were refused since the log last said so, and when it did.
    unreported: u64,
    last_warned: Option<Instant>,
}

/// The most bytes of request bodies that are held at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldLimits {
    total: usize,
}

/// The bytes that one body has in the counts; a drop takes them out.
#[derive(Debug)]
pub(crate) struct Charge {
    held: HeldBytes,
    limits: HeldLimits,
    owner: Owner,
    bytes: usize,
}

/// The error of an upload that does not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferFull {
    limits: HeldLimits,
    /// Whether the owner holds its share; otherwise all owners together hold all.
    is_of_owner: bool,
}

impl HeldLimits {
    /// Takes the limit of all owners together, in bytes.
    pub(crate) const fn new(total: usize) -> Self {
        Self { total }
    }

    /// The most bytes of one owner: a quarter of all, and at least one body.
    fn of_owner(self) -> usize {
        (self.total / 4).max(MAX_BODY)
    }
}

impl HeldBytes {
    /// The bytes that are held now.
    pub(crate) fn total(&self) -> usize {
        self.counts().total
    }

    /// Begins to count a body of at least `announced` bytes.
    ///
    /// # Errors
    ///
    /// If there is no room for so many bytes.
    pub(crate) fn open(
        &self,
        owner: Owner,
        limits: HeldLimits,
        announced: usize,
    ) -> Result<Charge, BufferFull> {
        let charge = Charge {
            held: self.clone(),
            limits,
            owner,
            bytes: 0,
        };
        let mut counts = self.counts();
        match counts.room(owner, limits, announced) {
            Ok(_) => {
                drop(counts);
                Ok(charge)
            }
            Err(full) => {
                counts.report(owner, full);
                drop(counts);
                Err(full)
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// The counts of all and of the owner with `more` bytes.
    fn room(
        &self,
        owner: Owner,
        limits: HeldLimits,
        more: usize,
    ) -> Result<(usize, usize), BufferFull> {
        let own = self.by_owner.get(&owner).copied().unwrap_or_default();
        let full = |is_of_owner| BufferFull {
            limits,
            is_of_owner,
        };
        let within = |held: usize, most| held.checked_add(more).filter(|sum| *sum <= most);
        let own = within(own, limits.of_owner()).ok_or_else(|| full(true))?;
        let total = within(self.total, limits.total).ok_or_else(|| full(false))?;
        Ok((total, own))
    }

    /// Counts a refused upload, and logs the number of them at most once a minute.
    fn report(&mut self, owner: Owner, full: BufferFull) {
        count_refused_upload(full.is_of_owner);
        self.unreported += 1;
        if self.last_warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        self.last_warned = Some(Instant::now());
        tracing::warn!(
            %owner,
            refused = std::mem::take(&mut self.unreported),
            held = self.total,
            max_buffered = full.limits.total,
            of_owner = full.is_of_owner,
            "uploads are refused"
        );
    }
}

impl Charge {
    /// Adds bytes to the counts before they are held.
    ///
    /// # Errors
    ///
    /// If there is no room for them; then the counts stay.
    pub(super) fn grow(&mut self, more: usize) -> Result<(), BufferFull> {
        let mut counts = self.held.counts();
        match counts.room(self.owner, self.limits, more) {
            Ok((total, own)) => {
                counts.total = total;
                counts.by_owner.insert(self.owner, own);
                self.bytes += more;
                Ok(())
            }
            Err(full) => {
                counts.report(self.owner, full);
                Err(full)
            }
        }
    }

    /// Takes bytes out of the counts, once they are freed.
    pub(super) fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        if less == 0 {
            return;
        }
        self.bytes -= less;
        let mut counts = self.held.counts();
        counts.total -= less;
        if let Entry::Occupied(mut own) = counts.by_owner.entry(self.owner) {
            *own.get_mut() -= less;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    /// Grows or shrinks to `bytes`.
    ///
    /// # Errors
    ///
    /// If there is no room for more bytes; then the counts stay.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), BufferFull> {
        match bytes.checked_sub(self.bytes) {
            Some(0) => Ok(()),
            Some(more) => self.grow(more),
            None => {
                self.shrink(self.bytes - bytes);
                Ok(())
            }
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reports that the process itself has no memory left for more bytes.
    pub(super) fn out_of_memory(&self) -> BufferFull {
        let full = BufferFull {
            limits: self.limits,
            is_of_owner: false,
        };
        self.held.counts().report(self.owner, full);
        full
    }

    /// Moves the bytes into another charge, and leaves none.
    pub(super) fn take(&mut self) -> Self {
        Self {
            held: self.held.clone(),
            limits: self.limits,
            owner: self.owner,
            bytes: std::mem::take(&mut self.bytes),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

impl fmt::Display for BufferFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.limits.total >> 20;
        match self.is_of_owner {
            true => write!(
                f,
                "This caller's uploads fill its share, {} MiB, of the {total} MiB that [server] \
                 max_buffered allows for all. Send fewer or shorter requests at a time.",
                self.limits.of_owner() >> 20
            ),
            false => write!(
                f,
                "The uploads of all callers fill the {total} MiB that [server] max_buffered allows. \
                 Retry once others are through."
            ),
        }
    }
}

impl Error for BufferFull {}
