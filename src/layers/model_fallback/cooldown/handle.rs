use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::windows::{CooldownBackoff, CooldownProbe, CooldownState, CooldownWindows, Keys};
use crate::{
    attempt::Serving,
    llm::failure::{Failure, FailureClass},
    run::TerminalReason,
};

/// Candidates that have just failed, and for how long they are left alone.
///
/// How long depends on [what failed](FailureClass::cool) and on how often in a
/// row: 30 s, 60 s, then 5 min for what mostly passes by itself; 10 min,
/// doubling to a day, for what a person has to mend; 5 h, doubling to a day, for
/// an exhausted quota; never less than the upstream asked for, within a day. A
/// window that is running is not extended. A call that was served to its end
/// resets the row.
///
/// A rate limit and a model that is gone are known for the model on one account,
/// a refused key and an exhausted quota for the account, an untrusted
/// certificate and a refused region for the host, everything else for the
/// model, whoever asks. In the last two minutes of a window one call in 30 s is
/// let through to see.
///
/// Cheap to clone; clones share what is known. At most 256 windows are
/// remembered. The clock is tokio's.
///
/// ```
/// use std::time::Duration;
/// use tower_agent::{Candidate, Cooldowns, ModelFallbackLayer};
///
/// let cooldowns = Cooldowns::new().short([5, 15, 60].map(Duration::from_secs));
/// let layer = ModelFallbackLayer::new([Candidate::new("large"), Candidate::new("small")])
///     .cooldowns(cooldowns.clone());
/// ```
#[derive(Clone, Debug)]
pub struct Cooldowns {
    shared: Arc<SharedCooldowns>,
    ladder: CooldownBackoff,
    probing: CooldownProbe,
}

#[derive(Debug)]
struct SharedCooldowns {
    opened: Instant,
    hasher: RandomState,
    book: Mutex<CooldownWindows>,
    /// How many windows the book knows: mostly none, and then nobody need look.
    known: AtomicUsize,
}

impl Cooldowns {
    /// Nothing is left alone yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(SharedCooldowns {
                opened: Instant::now(),
                hasher: RandomState::new(),
                book: Mutex::default(),
                known: AtomicUsize::new(0),
            }),
            ladder: CooldownBackoff::new(),
            probing: CooldownProbe {
                every: Duration::from_secs(30),
                margin: Duration::from_secs(120),
            },
        }
    }

    /// The windows after a failure that mostly passes by itself: the first in a
    /// row, the second, every later one.
    #[must_use]
    pub const fn short(mut self, windows: [Duration; 3]) -> Self {
        self.ladder.short = windows;
        self
    }

    /// The first window after a failure that a person has to mend.
    #[must_use]
    pub const fn long(mut self, first: Duration) -> Self {
        self.ladder.long = first;
        self
    }

    /// The first window after a quota was exhausted.
    #[must_use]
    pub const fn quota(mut self, first: Duration) -> Self {
        self.ladder.quota = first;
        self
    }

    /// The longest window, whatever doubles and whatever an upstream asks for.
    #[must_use]
    pub const fn most(mut self, window: Duration) -> Self {
        self.ladder.most = window;
        self
    }

    /// When a candidate that is left alone is tried all the same: once `every`
    /// so often, while no more than `margin` of its window is left. A margin of
    /// zero: never.
    #[must_use]
    pub const fn probe(mut self, every: Duration, margin: Duration) -> Self {
        self.probing = CooldownProbe { every, margin };
        self
    }

    /// How many windows are remembered, also such as have run out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.known.load(Ordering::Acquire)
    }

    /// Whether no candidate has failed since it last served.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A digest that nobody outside can foresee.
    pub(crate) fn digest(&self, of: impl Hash) -> u64 {
        self.shared.hasher.hash_one(of)
    }

    pub(super) fn now(&self) -> Duration {
        self.shared.opened.elapsed()
    }

    /// Whether a candidate may be asked.
    pub(crate) fn state(&self, keys: &Keys) -> CooldownState {
        let now = self.now();
        self.book().state(keys, self.probing, now)
    }

    /// The same, for one that is about to be asked: of those that come at the same
    /// time one alone probes.
    pub(crate) fn claim(&self, keys: &Keys) -> bool {
        let now = self.now();
        let mut book = self.book();
        let state = book.state(keys, self.probing, now);
        if state == CooldownState::Probe {
            book.probe(keys, now);
        }
        !matches!(state, CooldownState::Cooling { .. })
    }

    pub(crate) fn fail(&self, keys: &Keys, failure: &Failure) {
        // A firewall's page says no word of a region: it may be about what was
        // asked, and must not take the host from everybody.
        if failure.class == FailureClass::Region && failure.message.is_empty() {
            return;
        }
        self.note(keys, failure.class, failure.retry_after);
    }

    /// A try that began at `began` serves.
    pub(super) fn lift(&self, keys: &Keys, began: Duration) {
        if !self.is_empty() {
            let now = self.now();
            self.book().lift(keys, began, now);
        }
    }

    pub(super) fn succeed(&self, keys: &Keys, began: Duration) {
        if !self.is_empty() {
            let mut book = self.book();
            book.succeed(keys, began);
            self.shared.known.store(book.len(), Ordering::Release);
        }
    }

    pub(super) fn note(&self, keys: &Keys, class: FailureClass, asked: Option<Duration>) {
        let now = self.now();
        let mut book = self.book();
        book.fail(keys, class, asked, &self.ladder, now);
        self.shared.known.store(book.len(), Ordering::Release);
    }

    fn book(&self) -> MutexGuard<'_, CooldownWindows> {
        let book = self.shared.book.lock();
        book.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Cooldowns {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits for what a try comes to that serves a call.
#[derive(Debug)]
pub(crate) struct CooldownWatch {
    cooldowns: Cooldowns,
    keys: Keys,
    began: Duration,
}

impl CooldownWatch {
    /// The try that serves began so long ago.
    pub(crate) fn new(cooldowns: Cooldowns, keys: Keys, ago: Duration) -> Self {
        let began = cooldowns.now().saturating_sub(ago);
        cooldowns.lift(&keys, began);
        Self {
            cooldowns,
            keys,
            began,
        }
    }
}

impl Serving for CooldownWatch {
    fn over(self: Box<Self>, reason: &TerminalReason) {
        let class = match reason {
            TerminalReason::Completed => return self.cooldowns.succeed(&self.keys, self.began),
            TerminalReason::Failed(class) => *class,
            TerminalReason::StepTimeout => FailureClass::Silence,
            // Cut by somebody else, or at a limit: it says nothing about the next.
            _ => return,
        };
        self.cooldowns.note(&self.keys, class, None);
    }
}
