//! Whether a cap pauses a run instead of its end, and for how long.

use std::time::Duration;

/// How a run waits at a cap for an operator, instead of its end: a setting of
/// [`TurnCapLayer`](crate::TurnCapLayer::pause) and [`TokenCapLayer`](crate::TokenCapLayer::pause).
///
/// ```
/// use std::time::Duration;
/// use tower_agent::{TurnCapLayer, run::PauseAtCap};
///
/// let layer = TurnCapLayer::new(30).pause(PauseAtCap::new().wait(Duration::from_secs(240)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseAtCap {
    pub(crate) wait: Duration,
    pub(crate) limit: Duration,
}

impl PauseAtCap {
    /// Makes the default: a turn is held for 60 s, and a run for 24 h.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            wait: Duration::from_secs(60),
            limit: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// Sets how long a turn is held, before it is refused for a while as
    /// [`RunPaused`](crate::run::RunPaused); zero refuses it at once.
    ///
    /// Clients give up on a request without an answer after 300 s and more.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long the run stays paused, before it ends for the reason of its cap.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a pause must last for some time");
        self.limit = limit;
        self
    }
}

impl Default for PauseAtCap {
    fn default() -> Self {
        Self::new()
    }
}
