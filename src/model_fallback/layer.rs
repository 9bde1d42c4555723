use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use tower_layer::Layer;

use super::{Candidate, ModelFallback};
use crate::{
    retry_budget::{MAX_BODY, RetryBudget},
    upstream::FailureClass,
};

/// Moves a call to another model when one fails: see the [module](super).
#[derive(Clone, Debug)]
pub struct ModelFallbackLayer {
    choices: Choices,
    max_body: usize,
}

/// What every call of a layer chooses from.
#[derive(Clone, Debug)]
pub(super) struct Choices {
    pub(super) candidates: Vec<Arc<Candidate>>,
    /// What callers are told of each, where a header can hold it.
    pub(super) served: Vec<Option<HeaderValue>>,
    pub(super) budget: RetryBudget,
    pub(super) hold: Option<Duration>,
    pub(super) allowed: Vec<FailureClass>,
}

impl ModelFallbackLayer {
    /// Tries the candidate that the request names as its `model`, then the
    /// others as they are listed, each at most once per call. One that is listed
    /// twice, with the same name, model, base URL, dialect, headers and account,
    /// is tried once; of others that share a name, the first goes first. Without
    /// any, requests pass as they are.
    #[must_use]
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Self {
        let mut known: Vec<Arc<Candidate>> = Vec::new();
        for candidate in candidates {
            if known.iter().all(|it| !it.is_same(&candidate)) {
                known.push(Arc::new(candidate));
            }
        }
        let served = known
            .iter()
            .map(|it| HeaderValue::from_str(it.model()).ok());
        Self {
            choices: Choices {
                served: served.collect(),
                candidates: known,
                budget: RetryBudget::new()
                    .per_error_key(None)
                    .per_run(None)
                    .unshared(),
                hold: None,
                allowed: Vec::new(),
            },
            max_body: MAX_BODY,
        }
    }

    /// Asks this budget before another candidate is tried: for the least time
    /// of an attempt, its hook, and the limits of the run. Share the one of the
    /// [`RetryBudgetLayer`](crate::RetryBudgetLayer) inside. By default 100 ms
    /// must be left, and nothing else is asked.
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.choices.budget = budget;
        self
    }

    /// Also tries another candidate after a failure of this class, where that
    /// is a matter of taste: [`TooLarge`](FailureClass::TooLarge),
    /// [`ContentFilter`](FailureClass::ContentFilter) and
    /// [`Caller`](FailureClass::Caller). Others are not affected.
    #[must_use]
    pub fn also_after(mut self, class: FailureClass) -> Self {
        self.choices.allowed.push(class);
        self
    }

    /// How long an answer may be held, from the start of its attempt, before it
    /// counts as committed; as long as its attempt lives, by default. With a
    /// [`RetryBudgetLayer`](crate::RetryBudgetLayer) inside, that one holds it.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.choices.hold = Some(hold);
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

impl<S> Layer<S> for ModelFallbackLayer {
    type Service = ModelFallback<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ModelFallback::new(inner, Arc::new(self.choices.clone()), self.max_body)
    }
}
