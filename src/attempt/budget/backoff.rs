use std::time::Duration;

use crate::run::{Nanos, nanos};

/// How the waits before repeats are spread at random.
///
/// Spread waits keep clients that failed together from repeating together.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Jitter {
    /// A wait lies between zero and the base, which doubles with each repeat.
    #[default]
    Full,
    /// A wait lies between the base and three times the previous wait.
    Decorrelated,
}

/// The settings of a [`Backoff`]: the base and the longest wait, and the jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    pub(crate) base: Duration,
    pub(crate) max: Duration,
    pub(crate) jitter: Jitter,
}

/// The factor by which waits for an overloaded upstream are longer.
const SLOWLY: Nanos = 4;

/// Generates the waits of one call, one before each repeat.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    base: Nanos,
    max: Nanos,
    jitter: Jitter,
    rng: fastrand::Rng,
    repeats: u32,
    /// The previous wait of the call; at first the base.
    last: Nanos,
}

impl Backoff {
    /// Makes the waits of one call; the same seed gives the same waits.
    pub(crate) fn new(delays: Delays, seed: u64) -> Self {
        let base = nanos(delays.base);
        Self {
            base,
            max: nanos(delays.max),
            jitter: delays.jitter,
            rng: fastrand::Rng::with_seed(seed),
            repeats: 0,
            last: base,
        }
    }

    /// The wait before the next repeat; longer if `slowly`, for an overloaded upstream.
    pub(crate) fn next(&mut self, slowly: bool) -> Duration {
        let base = self.base.saturating_mul(if slowly { SLOWLY } else { 1 });
        let wait = match self.jitter {
            Jitter::Full => {
                let doubled = 1_u64.checked_shl(self.repeats).unwrap_or(Nanos::MAX);
                self.rng.u64(0..=base.saturating_mul(doubled).min(self.max))
            }
            Jitter::Decorrelated => {
                let most = self.last.saturating_mul(3).max(base);
                self.rng.u64(base..=most).min(self.max)
            }
        };
        self.repeats = self.repeats.saturating_add(1);
        self.last = wait;
        Duration::from_nanos(wait)
    }
}
