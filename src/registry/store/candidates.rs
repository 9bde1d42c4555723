//! What replicas tell each other about candidates: cooldowns, and the one that served a session.

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{Heard, RunStore};
use crate::{llm::failure::FailureClass, lock::Lock, registry::RunRegistry};

/// How long the store may take to list the cooldowns, and the wait before another try.
const READ: Duration = Duration::from_secs(1);

/// A window in which calls keep away from a candidate, as replicas tell it.
///
/// Digests depend on the [`SharedSecret`](crate::registry::SharedSecret) of the replicas.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCooldown {
    /// The digest of what cools down: a model, a model on one account, an account, or a host.
    pub key: u64,
    /// The number of the window, which no other one has.
    pub window: u64,
    /// The class of the failure that began it.
    pub class: FailureClass,
    /// When it began. A store keeps both times by a clock of its own.
    pub began: Instant,
    /// When it ends.
    pub until: Instant,
    /// The number of windows before it in its row.
    pub row: u32,
    /// Whether `key` depends on a caller's credentials. Such a window makes room for others.
    pub is_callers: bool,
    /// The label of the candidate that failed.
    pub candidate: Arc<str>,
    /// The digest of its model.
    pub model: u64,
    /// The digest of its account.
    pub account: u64,
    /// The digest of its host.
    pub host: u64,
}

impl SharedCooldown {
    /// Makes a window of `key` for the candidate with this label; all else is zero.
    #[must_use]
    pub fn new(
        key: u64,
        window: u64,
        candidate: Arc<str>,
        class: FailureClass,
        [began, until]: [Instant; 2],
    ) -> Self {
        Self {
            key,
            window,
            class,
            began,
            until,
            row: 0,
            is_callers: false,
            candidate,
            model: 0,
            account: 0,
            host: 0,
        }
    }

    /// Whether this window takes the place of `other`, which runs for the same key.
    ///
    /// The longer one stays. But a rate limit of an account must not hide a refused key or an
    /// exhausted quota.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        self.outranks(other.class) || self.until > other.until
    }

    /// Whether the class of this window takes the place of that of another one.
    pub(crate) fn outranks(&self, other: FailureClass) -> bool {
        let limit = FailureClass::RateLimit;
        self.key == self.account && other == limit && self.class != limit
    }
}

/// The cooldowns that a store has: see [`RunStore::cooldowns`].
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct StoredCooldowns {
    /// The windows that run.
    pub running: Vec<SharedCooldown>,
    /// The keys and numbers of windows that ended before their time.
    pub ended: Vec<(u64, u64)>,
}

/// The candidate that served a sticky session last.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StickyCandidate {
    /// The digest of the session, its owner and the model that it asks for.
    pub session: u64,
    /// The digest of the candidate.
    pub candidate: u64,
}

impl StickyCandidate {
    /// The candidate of this digest for the session of that one.
    #[must_use]
    pub const fn new(session: u64, candidate: u64) -> Self {
        Self { session, candidate }
    }
}

/// What a layer with candidates makes of the news of other replicas.
pub(crate) trait HearsOfCandidates: fmt::Debug + Send + Sync {
    fn cooldown_began(&self, _cooldown: &SharedCooldown) {}

    fn cooldown_ended(&self, _key: u64, _window: u64) {}

    /// The store's cooldowns, after news may have been missed.
    fn cooldowns_read(&self, _stored: &StoredCooldowns) {}

    fn session_served(&self, _served: StickyCandidate) {}
}

/// Those of this registry that hear of candidates.
#[derive(Debug, Default)]
pub(crate) struct CandidateListeners {
    listeners: Lock<Vec<Weak<dyn HearsOfCandidates>>>,
    added: Notify,
    /// Whether the store did not answer when it was last read.
    owes: AtomicBool,
}

impl CandidateListeners {
    /// Adds one, unless it is known, and has the store's cooldowns read: they may be of candidates that
    /// it did not have before.
    fn add(&self, listener: &Arc<dyn HearsOfCandidates>) {
        let listener = Arc::downgrade(listener);
        let mut listeners = self.listeners.lock();
        listeners.retain(|it| it.strong_count() > 0);
        let is_same = |it: &Weak<_>| std::ptr::addr_eq(it.as_ptr(), listener.as_ptr());
        if !listeners.iter().any(is_same) {
            listeners.push(listener);
        }
        self.added.notify_one();
    }

    fn each(&self, f: impl Fn(&dyn HearsOfCandidates)) {
        let listeners = self.listeners.lock().clone();
        listeners
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|it| f(&*it));
    }

    /// Waits for what another replica tells. Meanwhile reads the store's cooldowns for those that
    /// are added.
    pub(super) async fn next(&self, store: &Arc<dyn RunStore>) -> Heard {
        loop {
            let mut next = Arc::clone(store).next();
            let mut added = pin!(self.added.notified());
            let heard = poll_fn(|cx| match added.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => next.as_mut().poll(cx).map(Some),
            });
            let heard = match self.owes.load(Ordering::Relaxed) {
                true => timeout(READ, heard).await.unwrap_or(None),
                false => heard.await,
            };
            match heard {
                Some(heard) => return heard,
                None => self.read(store).await,
            }
        }
    }

    /// Hands on the store's cooldowns.
    pub(super) async fn read(&self, store: &Arc<dyn RunStore>) {
        if self.listeners.lock().is_empty() {
            return;
        }
        let stored = timeout(READ, Arc::clone(store).cooldowns()).await;
        let stored = stored.ok().and_then(Result::ok);
        self.owes.store(stored.is_none(), Ordering::Relaxed);
        if let Some(stored) = stored {
            self.each(|it| it.cooldowns_read(&stored));
        }
    }

    pub(super) fn hear_began(&self, cooldown: &SharedCooldown) {
        self.each(|it| it.cooldown_began(cooldown));
    }

    pub(super) fn hear_ended(&self, key: u64, window: u64) {
        self.each(|it| it.cooldown_ended(key, window));
    }

    pub(super) fn hear_served(&self, served: StickyCandidate) {
        self.each(|it| it.session_served(served));
    }
}

impl RunRegistry {
    /// Lets `listener` hear what other replicas tell about candidates, for as long as it lives.
    pub(crate) fn add_listener(&self, listener: &Arc<dyn HearsOfCandidates>) {
        self.state.parts.candidates.add(listener);
    }
}
