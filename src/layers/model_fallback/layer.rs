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
    policy::FallbackPolicy,
    settings::FallbackSettings,
    sticky_sessions::StickySessions,
};
use crate::{
    attempt::{AttemptBody, AttemptSettings, Attempts, Candidate, Operation, RetryBudget},
    body::ReplayBody,
    error::BoxError,
    llm::failure::{Classifier, FailureClass},
    registry::RunRegistry,
};

/// Moves a call to another model when an attempt fails: see the [module](super).
#[derive(Clone, Debug)]
pub struct ModelFallbackLayer {
    settings: FallbackSettings,
}

impl ModelFallbackLayer {
    /// Makes a layer that tries the candidate that the request names, then the others.
    ///
    /// The request names a candidate as its `model`. The others follow in the order of the list,
    /// each at most once per call. Candidates that are equal in all settings count as one. If
    /// different candidates share the name that the request has, the first that accepts the
    /// request's dialect goes first. Without candidates the layer adds
    /// `x-attempt` to the request, and makes one attempt.
    #[must_use]
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Self {
        let mut known: Vec<Arc<Candidate>> = Vec::new();
        for candidate in candidates {
            if known.iter().all(|it| **it != candidate) {
                known.push(Arc::new(candidate));
            }
        }
        let value = |name: &str| HeaderValue::from_str(name).ok();
        let served = known.iter();
        let served = served.map(|it| [it.model(), it.label()].map(value));
        let budget = RetryBudget::new().per_error_key(None).per_run(None);
        Self {
            settings: FallbackSettings {
                attempts: AttemptSettings::new(budget.unshared()),
                served: served.collect(),
                candidates: known,
                allowed: Vec::new(),
                operation: None,
                json_only: false,
                default_model: false,
                shares: true,
                cooldowns: None,
                sessions: None,
            },
        }
    }

    /// Whether the layer has no candidates, so that it only hands calls on.
    pub(crate) fn is_idle(&self) -> bool {
        self.settings.candidates.is_empty()
    }

    /// Sets the budget that must allow each step to another candidate.
    ///
    /// The layer applies the budget's minimum time for an attempt, its hooks, its idle breaker, and
    /// its limits on the failures of a run. Share the budget with the
    /// [`RetryBudgetLayer`](crate::RetryBudgetLayer) inside. The default budget only requires that
    /// 100 ms are left.
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.settings.attempts.budget = budget;
        self
    }

    /// Sends no request but probes to a candidate that is in a cooldown.
    ///
    /// By default every call tries a failed candidate again. While all candidates that could
    /// serve are in a cooldown, and no probe is due, the layer sends no request. Its error is then
    /// a [`AllCandidatesCoolingDown`](crate::llm::failure::AllCandidatesCoolingDown).
    #[must_use]
    pub fn cooldowns(mut self, cooldowns: Cooldowns) -> Self {
        let candidates = &self.settings.candidates;
        self.settings.cooldowns = Some(CandidateCooldowns::new(cooldowns, candidates));
        self
    }

    /// Sets whether the requests of a session go first to the candidate that served it last.
    ///
    /// The candidate that served the session last goes first while the session asks for the same
    /// model, the candidate accepts the dialect and is in no cooldown, and a
    /// [`CandidateOrder`](crate::CandidateOrder) keeps it. By default each request starts at the
    /// candidate that it names. The [`RunLayer`](crate::RunLayer) defines the session; the setting
    /// affects neither a run without one nor a form without a readable model. Clones of the layer share the
    /// sessions, and remember at least the last 4,096. Replicas may
    /// [share](crate::registry::store#candidates) them.
    #[must_use]
    pub fn sticky(mut self, sticky: bool) -> Self {
        self.settings.sessions = sticky.then(Arc::default);
        self
    }

    /// Shares the cooldowns and the sticky sessions with the other replicas of the registry.
    pub(crate) fn share_with(&self, registry: &RunRegistry) {
        if let Some(cooldowns) = &self.settings.cooldowns {
            cooldowns.share(registry);
        }
        if let Some(sessions) = &self.settings.sessions {
            sessions.share(registry, &self.settings.candidates);
        }
    }

    pub(crate) const fn sessions(&self) -> Option<&Arc<StickySessions>> {
        self.settings.sessions.as_ref()
    }

    /// Sets whether the candidates share the time that is left until a deadline; by default they do.
    ///
    /// With `false` each candidate may take all of that time, so a silent one may leave the others
    /// none: only the limits of the attempt then end it early.
    #[must_use]
    pub const fn share(mut self, share: bool) -> Self {
        self.settings.shares = share;
        self
    }

    /// Sets the operation of requests at a path that ends in no known operation, such as `/chat`.
    ///
    /// `operation` is the end of the path at a provider, such as `chat/completions`. A candidate
    /// with a base URL gets these requests at that path below it; without the setting the candidate
    /// cannot serve them.
    ///
    /// # Panics
    ///
    /// Panics if the operation is unknown: see [`Candidate::base_url`].
    #[must_use]
    pub fn operation(mut self, operation: &str) -> Self {
        let known = Operation::from_path(operation);
        assert!(known.is_some(), "{operation:?} is not a known operation");
        self.settings.operation = known;
        self
    }

    /// Refuses a request with a body into which the layer cannot write the candidate's model: one
    /// that is empty, or a form.
    ///
    /// Edits and variations of images may be forms (`multipart/form-data`) that name their `model` in
    /// a field; the layer replaces its value. By default the layer does so with any form, leaves an
    /// empty body and a form without a readable model unchanged, and sends such a form to the first
    /// candidate only.
    #[must_use]
    pub const fn json_only(mut self) -> Self {
        self.settings.json_only = true;
        self
    }

    /// Sets whether a body that names no `model` gets the first candidate's, and after a move that of
    /// the candidate that is asked.
    ///
    /// The name becomes the first member of a JSON body, or the first field of a form; nothing else
    /// of it changes. By default the
    /// upstream gets the body as it is, and mostly refuses it.
    #[must_use]
    pub const fn default_model(mut self, default_model: bool) -> Self {
        self.settings.default_model = default_model;
        self
    }

    /// Also tries another candidate after a failure of this class.
    ///
    /// Only three classes leave the next step to the program: [`TooLarge`](FailureClass::TooLarge),
    /// [`ContentFilter`](FailureClass::ContentFilter) and [`Caller`](FailureClass::Caller). For
    /// other classes the setting has no effect.
    #[must_use]
    pub fn also_after(mut self, class: FailureClass) -> Self {
        self.settings.allowed.push(class);
        self
    }

    /// Classifies answers by the program's own rules, then by the known errors of providers.
    ///
    /// Give the same classifier to every layer that makes further attempts.
    #[must_use]
    pub fn classifier(mut self, classifier: Classifier) -> Self {
        self.settings.attempts.classifier = classifier;
        self
    }

    /// Sets how long the layer may hold back an answer before it commits, from the attempt's start.
    ///
    /// By default only the end of the attempt and the
    /// [size](crate::attempt#what-is-held-and-until-when) of the held part limit the time. A
    /// [`RetryBudgetLayer`](crate::RetryBudgetLayer) inside holds the answer itself, by its own
    /// setting.
    ///
    /// If the attempt has a [floor on its speed](crate::layers::step_timeout#a-floor-on-speed), this
    /// setting also holds content back, until the stream has shown its speed.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.settings.attempts.hold = Some(hold);
        self
    }

    /// The largest request body that is buffered, in bytes; 32 MiB by default.
    ///
    /// A call with a larger body fails with a
    /// [`LengthLimitError`](http_body_util::LengthLimitError). A body that is a
    /// [`ReplayBody`](crate::ReplayBody) already has no limit.
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
    S: Service<Request<ReplayBody>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    Q: Body<Data = Bytes, Error: Into<BoxError>> + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
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
