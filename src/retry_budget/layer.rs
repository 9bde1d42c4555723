use std::time::Duration;

use tower_layer::Layer;

use super::{Retry, RetryBudget};

/// The largest request body that is kept by default, in bytes.
pub(crate) const MAX_BODY: usize = 32 * 1024 * 1024;

/// Repeats what failed, as far as a budget pays for it: see the
/// [module](super).
#[derive(Clone, Debug)]
pub struct RetryBudgetLayer {
    budget: RetryBudget,
    hold: Option<Duration>,
    max_body: usize,
}

impl RetryBudgetLayer {
    /// Repeats as `budget` allows. Layers with clones of one budget share what
    /// was spent.
    #[must_use]
    pub const fn new(budget: RetryBudget) -> Self {
        Self {
            budget,
            hold: None,
            max_body: MAX_BODY,
        }
    }

    /// How long an answer may be held, from the start of its attempt, before it
    /// counts as committed; as long as its attempt lives, by default. A stall
    /// after that can only be told to the caller.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = Some(hold);
        self
    }

    /// The largest request body that is kept, in bytes; a larger one is an
    /// error, a [`LengthLimitError`](http_body_util::LengthLimitError). 32 MiB
    /// by default.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for RetryBudgetLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry::new(inner, self.budget.clone(), self.hold, self.max_body)
    }
}
