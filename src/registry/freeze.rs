//! Keeps new runs out: of all owners, or of one.

use std::{
    collections::HashSet,
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    RunRegistry,
    owner_caps::Owner,
    store::{RunNews, RunStore, StoredFreezes},
};
use crate::lock::Lock;

/// Whose new runs a registry admits no more.
#[derive(Debug, Default)]
pub(super) struct Freezes {
    /// Whether anybody is frozen, so that a request takes no lock if nobody is.
    any: AtomicBool,
    state: Lock<StoredFreezes>,
}

/// Whose new runs a registry admits no more: see [`RunRegistry::freeze`].
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    /// Whether those of all owners are refused.
    pub all: bool,
    /// The owners of whom each was frozen by itself.
    pub owners: HashSet<Owner>,
}

impl Frozen {
    /// Whether nobody's are.
    #[must_use]
    pub fn is_nobody(&self) -> bool {
        !self.all && self.owners.is_empty()
    }

    /// Refuses the new runs of this owner, or of all with `None`, or admits them. Returns whether that
    /// is news.
    pub fn set(&mut self, whose: Option<Owner>, is_frozen: bool) -> bool {
        match whose {
            None => std::mem::replace(&mut self.all, is_frozen) != is_frozen,
            Some(owner) if is_frozen => self.owners.insert(owner),
            Some(owner) => self.owners.remove(&owner),
        }
    }
}

/// The error of a request that would have opened a run while its owner, or the whole registry, is
/// [frozen](RunRegistry::freeze).
///
/// [`TerminalResponseLayer`](crate::TerminalResponseLayer) makes it a 503 with the code `frozen` and
/// `retry-after`. It is not an end: the run does not exist.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunsFrozen;

impl RunsFrozen {
    /// When to try again, as `retry-after` says.
    pub const RETRY_AFTER: Duration = Duration::from_secs(30);
}

impl fmt::Display for RunsFrozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operator admits no new runs for now")
    }
}

impl Error for RunsFrozen {}

impl RunRegistry {
    /// Admits no new runs of this owner, or of all with `None`, until [`thaw`](Self::thaw). Returns
    /// whether that is news.
    ///
    /// A request that would open a run fails as [`RunsFrozen`], before anything of it is counted. Open
    /// runs go on: their requests are served, and their sub-agents are opened. Runs that the program
    /// opens are admitted, too.
    ///
    /// With a [store](crate::registry::store) it holds at all replicas, within a second, and outlives a
    /// restart; without one it is in memory, and ends with the registry.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry};
    ///
    /// let (registry, noisy) = (RunRegistry::new(), Owner::of(b"sk-noisy"));
    /// assert!(registry.freeze(noisy));
    /// assert!(registry.frozen().owners.contains(&noisy));
    /// assert!(registry.freeze(None));
    /// assert!(registry.thaw(None), "the owner stays frozen");
    /// assert!(registry.thaw(noisy));
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know whether it is news"
    )]
    pub fn freeze(&self, whose: impl Into<Option<Owner>>) -> bool {
        self.set_frozen(whose.into(), true)
    }

    /// Takes a [`freeze`](Self::freeze) of this owner, or of all with `None`, back. Returns whether
    /// there was one.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know whether it is news"
    )]
    pub fn thaw(&self, whose: impl Into<Option<Owner>>) -> bool {
        self.set_frozen(whose.into(), false)
    }

    /// Whose new runs are refused now.
    #[must_use]
    pub fn frozen(&self) -> Frozen {
        self.state.freezes.state.lock().frozen.clone()
    }

    fn set_frozen(&self, whose: Option<Owner>, is_frozen: bool) -> bool {
        let is_news = self
            .state
            .freezes
            .change(|state| state.frozen.set(whose, is_frozen));
        if let Some(store) = self.store().filter(|_| is_news) {
            store.tell(RunNews::Frozen { whose, is_frozen });
        }
        is_news
    }

    /// Does what an operator told at a replica, which may be this one.
    pub(super) fn hear_frozen(&self, whose: Option<Owner>, is_frozen: bool, epoch: u64) {
        self.state.freezes.change(|state| {
            state.epoch.get_or_insert(epoch);
            state.frozen.set(whose, is_frozen);
        });
    }

    /// Takes over what the store has, or tells it again if the store has lost it.
    pub(super) async fn read_frozen(&self, store: &Arc<dyn RunStore>) {
        let Ok(stored) = Arc::clone(store).frozen().await else {
            return;
        };
        let lost = self.state.freezes.change(|state| {
            if state.epoch.is_none() || state.epoch == stored.epoch {
                *state = stored;
                return None;
            }
            // The store is another one than before, and may have heard of others since.
            let known = state.frozen.clone();
            state.epoch = stored.epoch;
            state.frozen.all |= stored.frozen.all;
            state.frozen.owners.extend(stored.frozen.owners);
            Some(known)
        });
        let Some(frozen) = lost else { return };
        let all = frozen.all.then_some(None);
        let owners = frozen.owners.into_iter().map(Some);
        for whose in all.into_iter().chain(owners) {
            let is_frozen = true;
            store.tell(RunNews::Frozen { whose, is_frozen });
        }
    }

    /// Whether new runs of this owner are refused.
    #[inline]
    pub(crate) fn is_frozen(&self, owner: Owner) -> bool {
        self.state.freezes.any.load(Ordering::Acquire) && {
            let state = self.state.freezes.state.lock();
            state.frozen.all || state.frozen.owners.contains(&owner)
        }
    }
}

impl Freezes {
    fn change<T>(&self, act: impl FnOnce(&mut StoredFreezes) -> T) -> T {
        let mut state = self.state.lock();
        let result = act(&mut state);
        self.any.store(!state.frozen.is_nobody(), Ordering::Release);
        result
    }
}
