//! The builder and the service of the health gate, and the probe over HTTP.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Request, Response,
    uri::{Authority, Uri},
};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::ProbedBody,
    gate::{Gate, GateSettings},
    held_call::HeldCall,
    probe_schedule::SharedProbes,
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    llm::failure::Classifier,
    supervise::{Claim, LayerSettings, SupervisedBody, SupervisedFuture},
};

/// The shortest interval, timeout and silence: the resolution of tokio's timer.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest setting, 30 days, so that sums of instants do not overflow.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Makes calls wait while the upstream restarts: see the [module](super).
///
/// All services made by one layer, or by a clone of it, share the state of the upstream.
#[derive(Clone)]
pub struct HealthGateLayer<P> {
    probe: P,
    settings: GateSettings,
    shared: Arc<SharedProbes>,
}

impl<P> HealthGateLayer<P> {
    /// Makes a layer that probes the upstream with `probe`.
    ///
    /// The probe is a `Service<(), Response = bool>`, such as a
    /// [`service_fn`](https://docs.rs/tower/latest/tower/fn.service_fn.html); `true`
    /// means healthy, and an error counts as `false`. The service is cloned for each probe. The
    /// service and its futures must be `Send`, because a waiting or silent call runs them.
    #[must_use]
    pub fn new(probe: P) -> Self {
        Self {
            probe,
            settings: GateSettings::new(),
            shared: Arc::default(),
        }
    }

    /// Sets the interval between the starts of two probes; 5 s by default.
    ///
    /// If no probe is scheduled when a call begins to wait, one starts an interval later. A probe
    /// that takes longer than the interval delays the next one.
    ///
    /// # Panics
    ///
    /// Panics if `interval` is zero.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        assert!(
            !interval.is_zero(),
            "a probe interval must be longer than zero"
        );
        self.settings.every = interval.clamp(SHORTEST, LONGEST);
        self
    }

    /// Sets how long a probe may take before it counts as failed; 5 s by default.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a probe timeout must be longer than zero");
        self.settings.timeout = limit.clamp(SHORTEST, LONGEST);
        self
    }

    /// Sets how long one call may wait in total; unlimited by default.
    ///
    /// Ceilings and the caller's deadlines bound the wait in any case. After `limit` the call
    /// returns the failure that made it wait, unchanged. A call that waited before it was ever sent
    /// is then sent once, and returns that outcome.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.settings.patience = Some(limit.min(LONGEST));
        self
    }

    /// Also probes the upstream while a call or its body is silent; off by default.
    ///
    /// The probes start once the upstream has sent nothing for `silent`, and repeat at the
    /// interval of [`every`](Self::every). Two failed probes in a row end the node.
    ///
    /// # Panics
    ///
    /// Panics if `silent` is zero.
    #[must_use]
    pub fn watch_silence(mut self, silent: Duration) -> Self {
        assert!(!silent.is_zero(), "a silence must be longer than zero");
        self.settings.watch_silence = Some(silent.clamp(SHORTEST, LONGEST));
        self
    }

    /// Limits the gate to calls to this host and port; other calls never wait at it.
    ///
    /// The layer compares host and port with the request's URI, or with its `host` header if the
    /// URI has no authority. By default the gate applies to all calls. A missing port is the
    /// scheme's default; without a scheme it matches both 80 and 443. The letter case of the host
    /// and a user name before it are ignored.
    #[must_use]
    pub fn upstream(mut self, authority: Authority) -> Self {
        self.settings.upstream = Some(authority);
        self
    }

    /// Sets the rules by which the layer classifies failed answers.
    ///
    /// A call may wait if `classifier` classifies its answer as
    /// [`NotReady`](crate::llm::failure::FailureClass::NotReady). The rules run for an answer of
    /// 4xx or 5xx that no inner layer has classified.
    #[must_use]
    pub fn classifier(mut self, classifier: Classifier) -> Self {
        self.settings.classifier = classifier;
        self
    }

    /// The largest request body that the layer buffers, in bytes; 32 MiB by default.
    ///
    /// A call with a larger body fails with a
    /// [`LengthLimitError`](http_body_util::LengthLimitError). A body that is a
    /// [`ReplayBody`](crate::ReplayBody) already has no limit.
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }
}

impl<C> HealthGateLayer<HttpProbe<C>> {
    /// Makes a layer that probes by sending `GET uri` with `client`; 2xx is healthy.
    #[must_use]
    pub fn get(client: C, uri: Uri) -> Self {
        Self::new(HttpProbe { client, uri })
    }
}

impl<S, P> Layer<S> for HealthGateLayer<P>
where
    P: Service<(), Response = bool> + Clone + Send + 'static,
    P::Future: Send,
{
    type Service = HealthGate<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let (settings, shared) = (self.settings.clone(), Arc::clone(&self.shared));
        HealthGate {
            inner,
            gate: Arc::new(Gate::new(settings, shared, self.probe.clone())),
        }
    }
}

impl<P> fmt::Debug for HealthGateLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthGateLayer")
            .field("settings", &self.settings)
            .field("is_closed", &self.shared.is_closed())
            .finish_non_exhaustive()
    }
}

/// The service of a [`HealthGateLayer`](crate::layers::health_gate::HealthGateLayer).
#[derive(Clone, Debug)]
pub struct HealthGate<S> {
    inner: S,
    gate: Arc<Gate>,
}

/// The response future of [`HealthGate`].
pub type HealthGateFuture<S, Q, B> = SupervisedFuture<HeldCall<S, Q, B>>;

/// The response body of [`HealthGate`].
pub type HealthGateBody<B> = SupervisedBody<ProbedBody<B>>;

impl<S, Q, B> Service<Request<Q>> for HealthGate<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    Q: Body<Data = Bytes, Error: Into<BoxError>> + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Response = Response<HealthGateBody<B>>;
    type Error = BoxError;
    type Future = HealthGateFuture<S, Q, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let claim = Claim::of(&mut request);
        let run = claim.run.clone();
        // The service that was polled ready takes the call; a clone of it stays for later calls.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let gate = Arc::clone(&self.gate);
        SupervisedFuture::new(claim, LayerSettings::passive(), request, |request| {
            HeldCall::new(service, gate, run, request)
        })
    }
}

/// A probe that sends `GET` to a URI; 2xx means healthy.
///
/// [`HealthGateLayer::get`](crate::layers::health_gate::HealthGateLayer::get) makes a layer with
/// this probe.
#[derive(Clone, Debug)]
pub struct HttpProbe<C> {
    client: C,
    uri: Uri,
}

impl<C, B> Service<()> for HttpProbe<C>
where
    C: Service<Request<ReplayBody>, Response = Response<B>>,
    C::Future: Send + 'static,
{
    type Response = bool;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<bool, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.client.poll_ready(cx)
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let mut request = Request::new(ReplayBody::default());
        *request.uri_mut() = self.uri.clone();
        let answer = self.client.call(request);
        Box::pin(async move { Ok(answer.await?.status().is_success()) })
    }
}
