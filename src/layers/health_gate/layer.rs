use std::{fmt, time::Duration};

use http::uri::{Authority, Uri};
use tower_layer::Layer;

use super::{gate::Gate, probe::HttpProbe, service::HealthGate};
use crate::llm::failure::Classifier;

/// What a timer can measure.
const SHORTEST: Duration = Duration::from_millis(1);

/// No call lasts longer.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Lets calls wait while the upstream restarts: see the [module](super).
///
/// All services that one layer, or a clone of it, made share what is known of
/// the upstream.
pub struct HealthGateLayer<P> {
    gate: Gate<P>,
}

impl<P> HealthGateLayer<P> {
    /// Asks `probe` whether the upstream is healthy.
    ///
    /// It is a `Service<(), Response = bool>`, for one a
    /// [`service_fn`](https://docs.rs/tower/latest/tower/fn.service_fn.html);
    /// an error counts as `false`. It is cloned for each probe.
    #[must_use]
    pub fn new(probe: P) -> Self {
        Self {
            gate: Gate::new(probe),
        }
    }

    /// How often the upstream is asked, from the start of one probe to that of
    /// the next; 5 s by default. The first comes so long after a call has
    /// failed.
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

    /// How long a probe may take, before it counts as failed; 5 s by default.
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

    /// How long one call waits here in all; as long as its ceilings let it, by
    /// default. Then its failure is handed on as it was. A call that waited
    /// without having been made is made, and whatever it comes to handed on.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.gate.patience = Some(limit.min(LONGEST));
        self
    }

    /// Also asks after the upstream while a call or its body is silent, once
    /// nothing came for `silent`, in the rhythm of [`every`](Self::every). Two
    /// failed probes in a row end the node. Off by default.
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

    /// Only calls to this host and port are meant, as the request's URI names
    /// them, or its `host` where that has none. Others pass. By default all are
    /// meant. A port that is not named is the scheme's; the case of the host, and
    /// a user before it, do not matter.
    #[must_use]
    pub fn upstream(mut self, authority: Authority) -> Self {
        self.gate.authority = Some(authority);
        self
    }

    /// How failed answers are judged: one that is
    /// [`NotReady`](crate::llm::failure::FailureClass::NotReady) is waited for.
    #[must_use]
    pub fn judgement(mut self, judgement: Classifier) -> Self {
        self.gate.judgement = judgement;
        self
    }

    /// The largest request body that is kept, in bytes; a larger one is an
    /// error, a [`LengthLimitError`](http_body_util::LengthLimitError). 32 MiB
    /// by default.
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.gate.max_body = bytes;
        self
    }
}

impl<C> HealthGateLayer<HttpProbe<C>> {
    /// Sends `GET uri` with `client`; 2xx is healthy.
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
