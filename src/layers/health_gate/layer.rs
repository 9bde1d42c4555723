use std::{fmt, time::Duration};

use http::uri::{Authority, Uri};
use tower_layer::Layer;

use super::{gate::Gate, probe::HttpProbe, service::HealthGate};
use crate::llm::failure::Classifier;

/// The shortest time that a setting may have: the resolution of tokio's timer.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest time that a setting may have, so that sums of instants do not overflow.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Holds calls back while the upstream restarts: see the [module](super).
///
/// All services that one layer, or a clone of it, made share the state of the upstream.
pub struct HealthGateLayer<P> {
    gate: Gate<P>,
}

impl<P> HealthGateLayer<P> {
    /// Makes a layer that probes the upstream with `probe`.
    ///
    /// The probe is a `Service<(), Response = bool>`, such as a
    /// [`service_fn`](https://docs.rs/tower/latest/tower/fn.service_fn.html); `true`
    /// means healthy, and an error counts as `false`. The service is cloned for each
    /// probe.
    #[must_use]
    pub fn new(probe: P) -> Self {
        Self {
            gate: Gate::new(probe),
        }
    }

    /// The interval between the starts of two probes; 5 s by default.
    ///
    /// The first probe also starts one interval after a call has failed.
    ///
    /// # Panics
    ///
    /// If `interval` is zero.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        assert!(
            !interval.is_zero(),
            "a probe interval must be longer than zero"
        );
        self.gate.every = interval.clamp(SHORTEST, LONGEST);
        self
    }

    /// How long a probe may take before it counts as failed; 5 s by default.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a probe timeout must be longer than zero");
        self.gate.timeout = limit.clamp(SHORTEST, LONGEST);
        self
    }

    /// How long one call may wait in total; by default until its ceilings.
    ///
    /// After that time the call returns its failure unchanged. A call that waited but was
    /// never sent is sent once, and its outcome is returned.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.gate.patience = Some(limit.min(LONGEST));
        self
    }

    /// Also probes the upstream while a call or its body is silent; off by default.
    ///
    /// The probes start once nothing came for `silent`, and repeat at the interval of
    /// [`every`](Self::every). Two failed probes in a row end the node.
    ///
    /// # Panics
    ///
    /// If `silent` is zero.
    #[must_use]
    pub fn watch_silence(mut self, silent: Duration) -> Self {
        assert!(!silent.is_zero(), "a silence must be longer than zero");
        self.gate.silence = Some(silent.clamp(SHORTEST, LONGEST));
        self
    }

    /// Limits the gate to calls to this host and port; other calls pass.
    ///
    /// The host and port are compared with the request's URI, or with its `host` header
    /// if the URI has no authority. By default all calls are meant. A missing port is the
    /// scheme's default. The case of the host and a user before it do not count.
    #[must_use]
    pub fn upstream(mut self, authority: Authority) -> Self {
        self.gate.authority = Some(authority);
        self
    }

    /// Classifies failed answers with `judgement`.
    ///
    /// A call waits if its answer is
    /// [`NotReady`](crate::llm::failure::FailureClass::NotReady).
    #[must_use]
    pub fn judgement(mut self, judgement: Classifier) -> Self {
        self.gate.judgement = judgement;
        self
    }

    /// The largest request body that the layer buffers, in bytes; 32 MiB by default.
    ///
    /// A larger body is an error, a
    /// [`LengthLimitError`](http_body_util::LengthLimitError).
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.gate.max_body = bytes;
        self
    }
}

impl<C> HealthGateLayer<HttpProbe<C>> {
    /// Makes a layer that probes by sending `GET uri` with `client`; 2xx is healthy.
    #[must_use]
    pub fn get(client: C, uri: Uri) -> Self {
        Self::new(HttpProbe::new(client, uri))
    }
}

impl<S, P> Layer<S> for HealthGateLayer<P> {
    type Service = HealthGate<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        HealthGate::new(inner, self.gate.clone())
    }
}

impl<P> Clone for HealthGateLayer<P> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
        }
    }
}

impl<P> fmt::Debug for HealthGateLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gate.fmt(f)
    }
}
