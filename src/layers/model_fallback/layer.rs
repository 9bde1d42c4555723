//! The builder and the service.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    cooldown::{Cooldowns, Cooled},
    policy::{FallbackPolicy, FallbackSettings},
};
use crate::{
    attempt::{AttemptBody, Attempts, Candidate, RetryBudget},
    body::{MAX_BODY, ReplayBody},
    error::BoxError,
    llm::failure::{Classifier, FailureClass},
};

/// Moves a call to another model when one fails: see the [module](super).
#[derive(Clone, Debug)]
pub struct ModelFallbackLayer {
    choices: FallbackSettings,
    max_body: usize,
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
            choices: FallbackSettings {
                served: served.collect(),
                candidates: known,
                budget: RetryBudget::new()
                    .per_error_key(None)
                    .per_run(None)
                    .unshared(),
                judgement: Classifier::new(),
                hold: None,
                allowed: Vec::new(),
                cooled: None,
                sessions: None,
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

    /// Leaves a candidate alone for a while after it has failed: by default every
    /// call asks it again. When all that could serve are left alone, the answer
    /// is a [`CoolingDown`](crate::llm::failure::CoolingDown), and nobody is asked.
    #[must_use]
    pub fn cooldowns(mut self, cooldowns: Cooldowns) -> Self {
        let candidates = &self.choices.candidates;
        self.choices.cooled = Some(Cooled::new(cooldowns, candidates));
        self
    }

    /// Whether a session stays with the candidate that served it last, as long
    /// as it asks for the same model and that candidate is not left alone. By
    /// default the candidate that the request names goes first, each time. What
    /// a session is says the [`RunLayer`](crate::RunLayer); a run without one is
    /// not affected. Clones of the layer share what they remember: the last 4,096
    /// sessions at least.
    #[must_use]
    pub fn sticky(mut self, sticky: bool) -> Self {
        self.choices.sessions = sticky.then(Arc::default);
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

    /// How answers are judged: rules of the program's own go before what is
    /// known of the providers. Give the same to every layer that tries again.
    #[must_use]
    pub fn judgement(mut self, judgement: Classifier) -> Self {
        self.choices.judgement = judgement;
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

/// The service of a [`ModelFallbackLayer`](crate::layers::model_fallback::ModelFallbackLayer).
#[derive(Clone, Debug)]
pub struct ModelFallback<S> {
    inner: S,
    choices: Arc<FallbackSettings>,
    max_body: usize,
}

impl<S> ModelFallback<S> {
    pub(super) const fn new(inner: S, choices: Arc<FallbackSettings>, max_body: usize) -> Self {
        Self {
            inner,
            choices,
            max_body,
        }
    }
}

/// The response future of [`ModelFallback`].
pub type ModelFallbackFuture<S, Q, B> = Attempts<S, Q, B, FallbackPolicy>;

/// The response body of [`ModelFallback`].
pub type ModelFallbackBody<B> = AttemptBody<B>;

impl<S, Q, B> Service<Request<Q>> for ModelFallback<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Response = Response<ModelFallbackBody<B>>;
    type Error = BoxError;
    type Future = ModelFallbackFuture<S, Q, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let chain = FallbackPolicy::new(Arc::clone(&self.choices));
        Attempts::new(&mut self.inner, request, self.max_body, chain)
    }
}
