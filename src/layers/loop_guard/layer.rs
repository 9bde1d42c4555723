use tower_layer::Layer;

use super::service::LoopGuard;
use crate::{body::MAX_BODY, run::LoopLimits};

/// Ends a run whose tool calls go in circles: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct LoopGuardLayer {
    limits: LoopLimits,
    ends: bool,
    max_body: usize,
}

impl Default for LoopGuardLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl LoopGuardLayer {
    /// Warns at 10 and every 10 more, and stops at 20 of the same call with the same
    /// result or of two in turn, at 10 of tools that there are not, and at 30 of the
    /// same call in a row whatever came of it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limits: LoopLimits::DEFAULT,
            ends: true,
            max_body: MAX_BODY,
        }
    }

    /// Tells observers when the same call, or two in turn, came back this often
    /// without a change, or the same call in a row with one, and after each further
    /// such number; 10 by default, 0 is
    /// never. Like every limit here it is 1000 at most.
    #[must_use]
    pub const fn warn(mut self, times: u32) -> Self {
        self.limits.warn = LoopLimits::limit(times);
        self
    }

    /// Ends the run when the same call, or two in turn, came back this often
    /// without a change; 20 by default, 0 is never.
    #[must_use]
    pub const fn stop(mut self, times: u32) -> Self {
        self.limits.stop = LoopLimits::limit(times);
        self
    }

    /// Ends the run when this many of its last 30 calls were of tools that the
    /// request does not declare; 10 by default, 0 is never.
    #[must_use]
    pub const fn unknown_tool(mut self, calls: u32) -> Self {
        self.limits.unknown_tool = LoopLimits::limit(calls);
        self
    }

    /// Ends the run when one tool was called this often in a row with the same
    /// arguments, whatever came of it; 30 by default, 0 is never.
    #[must_use]
    pub const fn any_tool(mut self, calls: u32) -> Self {
        self.limits.any_tool = LoopLimits::limit(calls);
        self
    }

    /// Ends nothing: observers are told when it would have.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.ends = false;
        self
    }

    /// The largest request body that is kept, in bytes; a larger one is an error,
    /// a [`LengthLimitError`](http_body_util::LengthLimitError). 32 MiB by default.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for LoopGuardLayer {
    type Service = LoopGuard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        LoopGuard::new(inner, self.limits, self.ends, self.max_body)
    }
}
