use std::time::Duration;

use tower_layer::Layer;

use super::{
    policy::{Limit, Windows},
    service::StepTimeout,
};
use crate::run::{HEARTBEAT, ResetOn, Scope};

/// Ends a node in which nothing was progress for a window: see the
/// [module](super).
#[derive(Clone, Copy, Debug)]
pub struct StepTimeoutLayer {
    windows: Option<Windows>,
    scope: Scope,
}

impl StepTimeoutLayer {
    /// At most `window` of silence.
    ///
    /// # Panics
    ///
    /// If `window` is zero; use [`optional`](Self::optional) to leave it out.
    #[must_use]
    pub const fn new(window: Duration) -> Self {
        Self::optional(Some(window))
    }

    /// The same, or a layer that does nothing for `None`.
    ///
    /// # Panics
    ///
    /// If `window` is zero.
    #[must_use]
    pub const fn optional(window: Option<Duration>) -> Self {
        let windows = match window {
            Some(window) => {
                assert!(!window.is_zero(), "a step window must be longer than zero");
                Some(Windows::new(window))
            }
            None => None,
        };
        Self {
            windows,
            scope: Scope::Found,
        }
    }

    /// The profile of slow local models: no window at all for what is progress, a
    /// stream's own heartbeats tell whether the model lives. See the
    /// [module](super#local-models).
    #[must_use]
    pub const fn local() -> Self {
        Self {
            windows: Some(Windows::heartbeat(HEARTBEAT)),
            scope: Scope::Found,
        }
    }

    /// How often a stream shows a sign of life, if it shows any; by default every
    /// 10 s. Without one for twice as long, its model is dead. Only the
    /// [local](Self::local) profile asks for it.
    ///
    /// # Panics
    ///
    /// If `interval` is zero.
    #[must_use]
    pub const fn heartbeat(mut self, interval: Duration) -> Self {
        assert!(
            !interval.is_zero(),
            "a heartbeat must take longer than zero"
        );
        if let Some(windows) = &mut self.windows {
            if let Limit::Heartbeat(every) = &mut windows.limit {
                *every = interval;
            }
        }
        self
    }

    /// A different window until the first content: for an answer that does not
    /// stream it is the whole wait. An inert layer stays inert, and one of the
    /// [local](Self::local) profile has no window.
    ///
    /// # Panics
    ///
    /// If `window` is zero.
    #[must_use]
    pub const fn first(mut self, window: Duration) -> Self {
        assert!(!window.is_zero(), "a first window must be longer than zero");
        if let Some(windows) = &mut self.windows {
            if let Limit::Step { first, .. } = &mut windows.limit {
                *first = window;
            }
        }
        self
    }

    /// What resets the window; by default [`ResetOn::Content`].
    #[must_use]
    pub const fn resets_on(mut self, resets_on: ResetOn) -> Self {
        if let Some(windows) = &mut self.windows {
            windows.resets_on = resets_on;
        }
        self
    }

    /// Shadow mode: measures and ends nothing. When the window passes, observers are
    /// told what [would have ended](crate::RunNotice::WouldHaveEnded), and if it completes
    /// all the same, that this was a [false positive](crate::RunNotice::FalsePositive).
    /// Another layer, of a limit that is known to be safe, may stand beside it.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        if let Some(windows) = &mut self.windows {
            windows.observes = true;
        }
        self
    }

    /// Which node is measured, and ended. By default the one found.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

impl<S> Layer<S> for StepTimeoutLayer {
    type Service = StepTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        StepTimeout::new(inner, self.windows, self.scope)
    }
}
