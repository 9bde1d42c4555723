//! The builder and the service of the model fallback.

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
    cooldown::{CandidateCooldowns, Cooldowns},
    policy::{FallbackPolicy, FallbackSettings},
};
use crate::{
    attempt::{AttemptBody, AttemptSettings, Attempts, Candidate, RetryBudget},
    body::ReplayBody,
    error::BoxError,
    llm::failure::{Classifier, FailureClass},
};

/// Moves a call to another model when an attempt fails: see the [module](super).
#[derive(Clone, Debug)]
pub struct ModelFallbackLayer {
    settings: FallbackSettings,
}

impl ModelFallbackLayer {
    /// Makes a layer that tries the candidate that the request names as its `model`, then the
    /// others.
    ///
    /// The others follow in the order of the list, each at most once per call. A candidate
    /// that is listed twice, with the same name, model, base URL, dialect, headers and
    /// account, is tried once; of different ones that share a name, the first goes first.
    /// Without candidates requests pass unchanged.
    #[must_use]
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Self {
        let mut known: Vec<Arc<Candidate>> = Vec::new();
        for candidate in candidates {
            if known.iter().all(|it| !it.is_same(&candidate)) {
                known.push(Arc::new(candidate));
            }
        }
        let served_models = known
            .iter()
            .map(|it| HeaderValue::from_str(it.model()).ok());
        let budget = RetryBudget::new().per_error_key(None).per_run(None);
        Self {
            settings: FallbackSettings {
                attempts: AttemptSettings::new(budget.unshared()),
                served_models: served_models.collect(),
                candidates: known,
                allowed: Vec::new(),
                cooldowns: None,
                sessions: None,
            },
        }
    }

    /// The budget that is asked before another candidate is tried.
    ///
    /// The budget decides by the least time of an attempt, its hook, and the limits of
    /// the run. Share the budget of the [`RetryBudgetLayer`](crate::RetryBudgetLayer)
    /// inside. By default 100 ms must be left, and no other limit holds.
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.settings.attempts.budget = budget;
        self
    }

    /// Sends a candidate no request for a while after it has failed.
    ///
    /// By default every call tries a failed candidate again. While all candidates that
    /// could serve are in a cooldown, the error is a
    /// [`CoolingDown`](crate::llm::failure::CoolingDown), and no upstream sees the request.
    #[must_use]
    pub fn cooldowns(mut self, cooldowns: Cooldowns) -> Self {
        let candidates = &self.settings.candidates;
        self.settings.cooldowns = Some(CandidateCooldowns::new(cooldowns, candidates));
        self
    }

    /// Whether a session stays with the candidate that served it last.
    ///
    /// A session stays while it asks for the same model and the candidate is not in a
    /// cooldown. By default each request starts at the candidate that it names. The
    /// [`RunLayer`](crate::RunLayer) defines the session; a run without one is not
    /// affected. Clones of the layer share the sessions, and remember at least the last
    /// 4,096.
    #[must_use]
    pub fn sticky(mut self, sticky: bool) -> Self {
        self.settings.sessions = sticky.then(Arc::default);
        self
    }

    /// Also tries another candidate after a failure of this class.
    ///
    /// The setting is for the classes where that is the program's choice:
    /// [`TooLarge`](FailureClass::TooLarge),
    /// [`ContentFilter`](FailureClass::ContentFilter) and
    /// [`Caller`](FailureClass::Caller). Other classes are not affected.
    #[must_use]
    pub fn also_after(mut self, class: FailureClass) -> Self {
        self.settings.allowed.push(class);
        self
    }

    /// Classifies answers by the program's own rules, then by the known errors of providers.
    ///
    /// Give the same classifier to every layer that makes further attempts.
    #[must_use]
    pub fn judgement(mut self, judgement: Classifier) -> Self {
        self.settings.attempts.classifier = judgement;
        self
    }

    /// How long an answer may be held, from the start of its attempt, before it commits.
    ///
    /// By default an answer is held as long as its attempt lives. With a
    /// [`RetryBudgetLayer`](crate::RetryBudgetLayer) inside, that layer holds the answer.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.settings.attempts.hold = Some(hold);
        self
    }

    /// The largest request body that is buffered, in bytes; 32 MiB by default.
    ///
    /// A larger body is an error, a [`LengthLimitError`](http_body_util::LengthLimitError).
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.settings.attempts.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for ModelFallbackLayer {
    type Service = ModelFallback<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ModelFallback {
            inner,
            settings: Arc::new(self.settings.clone()),
        }
    }
}

/// The service of a [`ModelFallbackLayer`](crate::layers::model_fallback::ModelFallbackLayer).
#[derive(Clone, Debug)]
pub struct ModelFallback<S> {
    inner: S,
    settings: Arc<FallbackSettings>,
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
        let policy = FallbackPolicy::new(Arc::clone(&self.settings));
        Attempts::new(&mut self.inner, request, policy)
    }
}
