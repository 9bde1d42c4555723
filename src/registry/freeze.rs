//! Keeps new runs out: of all owners, or of one.

use std::{
    collections::HashSet,
    error::Error,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{RunRegistry, owner_caps::Owner};
use crate::lock::Lock;

/// Whose new runs a registry admits no more.
#[derive(Debug, Default)]
pub(super) struct Freezes {
    /// Whether anybody is frozen, so that a request takes no lock if nobody is.
    any: AtomicBool,
    state: Lock<Frozen>,
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

/// The error of a request that would have opened a run while its owner, or the whole registry, is
/// [frozen](RunRegistry::freeze).
///
/// [`TerminalResponseLayer`](crate::TerminalResponseLayer) makes it a 503 with the code `frozen` and
/// `retry-after`. It is no end: the run does not exist.
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
    /// opens are admitted, too. The freeze is in memory, and ends with the registry.
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
        self.state.freezes.state.lock().clone()
    }

    fn set_frozen(&self, whose: Option<Owner>, is_frozen: bool) -> bool {
        let freezes = &self.state.freezes;
        let mut frozen = freezes.state.lock();
        let is_news = match whose {
            None => std::mem::replace(&mut frozen.all, is_frozen) != is_frozen,
            Some(owner) if is_frozen => frozen.owners.insert(owner),
            Some(owner) => frozen.owners.remove(&owner),
        };
        let any = frozen.all || !frozen.owners.is_empty();
        freezes.any.store(any, Ordering::Release);
        is_news
    }

    /// Whether new runs of this owner are refused.
    #[inline]
    pub(crate) fn is_frozen(&self, owner: Owner) -> bool {
        self.state.freezes.any.load(Ordering::Acquire) && {
            let frozen = self.state.freezes.state.lock();
            frozen.all || frozen.owners.contains(&owner)
        }
    }
}
