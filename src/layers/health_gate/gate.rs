//! The gate of one upstream, and the subscriptions of waiting and silent calls to its probes.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use http::{
    Request, header,
    uri::{Authority, Scheme},
};
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;

use super::probe_schedule::{ProbeStep, SharedProbes};
use crate::{body::MAX_BODY, llm::failure::Classifier, lock::Lock};

/// The default of both the interval between probes and the timeout of a probe.
const EVERY: Duration = Duration::from_secs(5);

/// The number of failed probes in a row after which the upstream counts as dead.
const DEAD: u32 = 2;

/// The settings of a layer.
#[derive(Clone, Debug)]
pub(super) struct GateSettings {
    pub(super) every: Duration,
    pub(super) timeout: Duration,
    pub(super) patience: Option<Duration>,
    pub(super) watch_silence: Option<Duration>,
    pub(super) upstream: Option<Authority>,
    pub(super) classifier: Classifier,
    pub(super) max_body: usize,
}

impl GateSettings {
    pub(super) const fn new() -> Self {
        Self {
            every: EVERY,
            timeout: EVERY,
            patience: None,
            watch_silence: None,
            upstream: None,
            classifier: Classifier::new(),
            max_body: MAX_BODY,
        }
    }

    /// Whether the request goes to the gate's upstream; true if no upstream is set.
    pub(super) fn applies<B>(&self, request: &Request<B>) -> bool {
        let Some(expected) = &self.upstream else {
            return true;
        };
        match request.uri().authority() {
            Some(given) => is_same(expected, given, request.uri().scheme()),
            None => {
                let host = request.headers().get(header::HOST);
                let given = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
                given.is_some_and(|given| is_same(expected, &given, None))
            }
        }
    }
}

/// Whether both authorities name the same host and port; user names are ignored.
///
/// A missing port is the default of the scheme; `http` and `https` alone have one. Without a scheme
/// a missing port matches both 80 and 443.
fn is_same(expected: &Authority, given: &Authority, scheme: Option<&Scheme>) -> bool {
    let defaults: &[u16] = match scheme.map(Scheme::as_str) {
        Some("http") => &[80],
        Some("https") => &[443],
        Some(_) => &[],
        None => &[80, 443],
    };
    let is_port = match (expected.port_u16(), given.port_u16()) {
        (Some(port), None) | (None, Some(port)) => defaults.contains(&port),
        (expected, given) => expected == given,
    };
    is_port && expected.host().eq_ignore_ascii_case(given.host())
}

/// A future of probes; it is boxed, so that the probe's type is not a part of the call's.
pub(super) type Probing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The gate of a service: the settings, the probe and the shared state.
pub(super) struct Gate {
    pub(super) settings: GateSettings,
    pub(super) shared: Arc<SharedProbes>,
    /// Starts a probe.
    probe: Box<dyn Fn() -> Probing<bool> + Send + Sync>,
}

impl Gate {
    pub(super) fn new<P>(settings: GateSettings, shared: Arc<SharedProbes>, probe: P) -> Self
    where
        P: Service<(), Response = bool> + Clone + Send + 'static,
        P::Future: Send,
    {
        // Behind a lock, because the probe need not be `Sync`.
        let probe = Lock::new(probe);
        let probe = move || -> Probing<bool> {
            let mut probe = probe.lock().clone();
            Box::pin(async move {
                if poll_fn(|cx| probe.poll_ready(cx)).await.is_err() {
                    return false;
                }
                probe.call(()).await.unwrap_or(false)
            })
        };
        Self {
            settings,
            shared,
            probe: Box::new(probe),
        }
    }

    /// Closes the gate, and waits for a healthy probe, for up to `patience`; true if one came.
    ///
    /// The first probe is due after one interval, unless another subscriber has scheduled it for
    /// an earlier time.
    pub(super) fn wait(self: &Arc<Self>, patience: Duration) -> Probing<bool> {
        let due = Instant::now() + self.settings.every;
        let mut probes = ProbeSubscription::new(Arc::clone(self), true, due);
        Box::pin(async move {
            let healthy = async { while !probes.next().await {} };
            timeout(patience, healthy).await.is_ok()
        })
    }

    /// Waits until [`DEAD`] probes in a row have failed.
    ///
    /// The first probe is due at once, but not within one interval after the start of the last
    /// finished one.
    pub(super) fn find_dead(self: &Arc<Self>) -> Probing<()> {
        let mut probes = ProbeSubscription::new(Arc::clone(self), false, Instant::now());
        Box::pin(async move {
            let mut failed = 0;
            while failed < DEAD {
                failed = if probes.next().await { 0 } else { failed + 1 };
            }
        })
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("settings", &self.settings)
            .field("is_closed", &self.shared.is_closed())
            .finish_non_exhaustive()
    }
}

/// A subscription of one call to the probe results of a gate.
///
/// The subscription runs the probe itself if the gate makes it the prober.
struct ProbeSubscription {
    gate: Arc<Gate>,
    key: u64,
    waits: bool,
    /// The number of recorded results at this subscription's last result, or at its creation.
    seen: u64,
}

impl ProbeSubscription {
    fn new(gate: Arc<Gate>, waits: bool, due: Instant) -> Self {
        let (key, seen) = gate
            .shared
            .change(|schedule| schedule.subscribe(waits, due));
        Self {
            gate,
            key,
            waits,
            seen,
        }
    }

    /// Waits for the result of the next finished probe: true if the upstream is healthy.
    async fn next(&mut self) -> bool {
        let GateSettings { every, timeout, .. } = self.gate.settings;
        let shared = &self.gate.shared;
        // How late the result of the prober may be before another subscriber becomes the prober.
        let max_delay = timeout.saturating_add(every);
        loop {
            // Created before the state is read, so that no change in between is missed.
            let mut changed = pin!(shared.changed.notified());
            let (key, seen, now) = (self.key, &mut self.seen, Instant::now());
            let step = shared.change(|schedule| schedule.next_step(key, seen, now, max_delay));
            let (until, mut probe) = match step {
                ProbeStep::Result { healthy } => return healthy,
                ProbeStep::Wait { until } => (until, None),
                ProbeStep::Probe => (now + timeout, Some((self.gate.probe)())),
            };
            let result = poll_fn(|cx| match (changed.as_mut().poll(cx), &mut probe) {
                (Poll::Pending, Some(probe)) => probe.as_mut().poll(cx).map(Some),
                // A change drops the probe; the loop then asks for the next step again.
                (changed, _) => changed.map(|()| None),
            });
            let result = timeout_at(until, result).await.unwrap_or(Some(false));
            // The probe is dropped before the other subscribers learn its result.
            if let (Some(healthy), true) = (result, probe.take().is_some()) {
                shared.change(|schedule| schedule.record_result(key, healthy, now + every));
            }
        }
    }
}

impl Drop for ProbeSubscription {
    fn drop(&mut self) {
        let (key, waits) = (self.key, self.waits);
        let shared = &self.gate.shared;
        shared.change(|schedule| schedule.unsubscribe(key, waits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applies(expected: &'static str, uri: &str, host: Option<&str>) -> bool {
        let mut gate = GateSettings::new();
        gate.upstream = Some(Authority::from_static(expected));
        let mut request = Request::get(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        gate.applies(&request.body(()).unwrap())
    }

    #[test]
    fn a_port_that_is_not_named_is_that_of_the_scheme() {
        assert!(applies("model.local:80", "http://model.local/v1", None));
        assert!(applies("model.local", "http://model.local:80/v1", None));
        assert!(applies("model.local:443", "https://model.local/v1", None));
        assert!(!applies("model.local:80", "https://model.local/v1", None));
        assert!(!applies("model.local", "http://model.local:8080/v1", None));
        assert!(!applies("model.local:80", "other://model.local/v1", None));
        assert!(applies("model.local:80", "/v1", Some("model.local")));
        assert!(applies("model.local:443", "/v1", Some("model.local")));
        assert!(!applies("model.local:8080", "/v1", Some("model.local")));
    }

    #[test]
    fn a_host_is_the_same_in_any_case() {
        assert!(applies("Model.local:80", "http://mODEL.local:80/", None));
        assert!(applies("model.local:80", "/", Some("MODEL.local:80")));
        assert!(!applies("model.local:80", "http://other.local:80/", None));
        assert!(!applies("model.local:80", "/", Some("other.local:80")));
        assert!(!applies("model.local:80", "/", Some("not a host")));
        assert!(!applies("model.local:80", "/", None));
    }

    #[test]
    fn the_user_of_a_uri_is_not_compared() {
        assert!(applies("model:80", "http://me:secret@model:80/", None));
        assert!(applies("me@model:80", "http://model:80/", None));
    }
}
