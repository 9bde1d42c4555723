use std::time::Duration;

use tower_layer::Layer;

use super::service::Pump;

/// Runs each call in a task of its own: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct PumpLayer {
    frames: usize,
    drain: Option<Duration>,
}

impl PumpLayer {
    /// Holds at most `frames` frames that the reader has not taken yet.
    ///
    /// # Panics
    ///
    /// If `frames` is zero.
    #[must_use]
    pub const fn new(frames: usize) -> Self {
        assert!(frames > 0, "a pump must hold at least one frame");
        Self {
            frames,
            drain: None,
        }
    }

    /// Reads on for at most `limit` after the caller has left, to learn what the
    /// attempt that is under way costs; `None`, the default, drops it at once.
    ///
    /// # Panics
    ///
    /// If `limit` is `Some` and zero.
    #[must_use]
    pub const fn drain(mut self, limit: Option<Duration>) -> Self {
        if let Some(limit) = limit {
            assert!(!limit.is_zero(), "a drain must be longer than zero");
        }
        self.drain = limit;
        self
    }
}

impl<S> Layer<S> for PumpLayer {
    type Service = Pump<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Pump::new(inner, self.frames, self.drain)
    }
}
