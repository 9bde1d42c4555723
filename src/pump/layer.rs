use tower_layer::Layer;

use super::Pump;

/// Runs each call in a task of its own: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct PumpLayer {
    frames: usize,
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
        Self { frames }
    }
}

impl<S> Layer<S> for PumpLayer {
    type Service = Pump<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Pump::new(inner, self.frames)
    }
}
