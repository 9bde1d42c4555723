use std::time::Duration;

use crate::run::{Nanos, nanos};

/// How the wait before a repeat is spread, so that clients which failed
/// together do not come back together.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Jitter {
    /// From nothing to the base doubled with each repeat.
    #[default]
    Full,
    /// From the base to three times the wait before.
    Decorrelated,
}

/// The settings of a [`Backoff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    pub(crate) base: Duration,
    pub(crate) max: Duration,
    pub(crate) jitter: Jitter,
}

/// How much longer an upstream that is overloaded is left alone.
const SLOWLY: Nanos = 4;

/// The waits of one call, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    base: Nanos,
    max: Nanos,
    jitter: Jitter,
    rng: fastrand::Rng,
    repeats: u32,
    /// The wait before; at first the base.
    last: Nanos,
}

impl Backoff {
    /// The same seed always waits the same.
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

    /// The wait before the next repeat; `slowly` if the upstream is overloaded.
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
