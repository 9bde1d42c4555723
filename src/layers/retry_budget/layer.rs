use std::time::Duration;

use tower_layer::Layer;

use super::service::Retry;
use crate::{attempt::RetryBudget, body::MAX_BODY, llm::failure::Classifier};

/// Repeats what failed, as far as a budget pays for it: see the
/// [module](super).
#[derive(Clone, Debug)]
pub struct RetryBudgetLayer {
    pub(super) budget: RetryBudget,
    pub(super) judgement: Classifier,
    pub(super) hold: Option<Duration>,
    pub(super) max_body: usize,
}

impl RetryBudgetLayer {
    /// Repeats as `budget` allows. Layers with clones of one budget share what
    /// was spent.
    #[must_use]
    pub const fn new(budget: RetryBudget) -> Self {
        Self {
            budget,
            judgement: Classifier::new(),
            hold: None,
            max_body: MAX_BODY,
        }
    }

    /// How answers are judged: rules of the program's own go before what is
    /// known of the providers. Give the same to every layer that tries again.
    #[must_use]
    pub fn judgement(mut self, judgement: Classifier) -> Self {
        self.judgement = judgement;
        self
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
        Retry::new(inner, self.clone())
    }
}
