//! The gate of one upstream, and the subscriptions of waiting calls to its probes.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{
    Request, header,
    uri::{Authority, Scheme},
};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::rounds::{ProbeStep, Rounds};
use crate::{body::MAX_BODY, llm::failure::Classifier, lock::Lock};

/// The default of both the interval between probes and the timeout of a probe.
const EVERY: Duration = Duration::from_secs(5);

/// The settings of a layer, and the probe state that all its calls share.
pub(super) struct Gate<P> {
    /// The probe service, behind a lock because it need not be `Sync`.
    probe: Arc<Lock<P>>,
    pub(super) rounds: Arc<Rounds>,
    pub(super) every: Duration,
    pub(super) timeout: Duration,
    pub(super) patience: Option<Duration>,
    pub(super) silence: Option<Duration>,
    pub(super) authority: Option<Authority>,
    pub(super) judgement: Classifier,
    pub(super) max_body: usize,
}

impl<P> Gate<P> {
    pub(super) fn new(probe: P) -> Self {
        Self {
            probe: Arc::new(Lock::new(probe)),
            rounds: Arc::default(),
            every: EVERY,
            timeout: EVERY,
            patience: None,
            silence: None,
            authority: None,
            judgement: Classifier::new(),
            max_body: MAX_BODY,
        }
    }

    /// A clone of the probe service, for one probe.
    pub(super) fn probe(&self) -> P
    where
        P: Clone,
    {
        self.probe.lock().clone()
    }

    /// Whether the request goes to the upstream that the gate watches; always, if none is set.
    pub(super) fn applies<B>(&self, request: &Request<B>) -> bool {
        let Some(expected) = &self.authority else {
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
/// A missing port is the default of the scheme. If the scheme is not known, a missing port matches
/// both 80 and 443.
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

/// `Clone` is not derived, because `P` need not be `Clone`: clones share the probe service.
impl<P> Clone for Gate<P> {
    fn clone(&self) -> Self {
        Self {
            probe: Arc::clone(&self.probe),
            rounds: Arc::clone(&self.rounds),
            authority: self.authority.clone(),
            judgement: self.judgement.clone(),
            ..*self
        }
    }
}

impl<P> fmt::Debug for Gate<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthGateLayer")
            .field("every", &self.every)
            .field("timeout", &self.timeout)
            .field("patience", &self.patience)
            .field("watch_silence", &self.silence)
            .field("upstream", &self.authority)
            .field("is_closed", &self.rounds.is_closed())
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// A subscription of one call to the probe results of a gate.
    ///
    /// The subscription runs the probe itself if the gate makes it the prober.
    pub(super) struct ProbeSubscription<P>
    where
        P: Service<()>,
    {
        gate: Arc<Gate<P>>,
        key: usize,
        // The number of probes of the gate that had finished at the last result, or at first.
        seen: u64,
        #[pin]
        timer: Sleep,
        #[pin]
        probe: Option<Probing<P, P::Future>>,
        // The start of the probe in progress, or of the last one.
        started: Instant,
    }

    impl<P> PinnedDrop for ProbeSubscription<P>
    where
        P: Service<()>,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // Drop the probe first: the next subscriber may start its own at once.
            this.probe.set(None);
            this.gate.rounds.unsubscribe(*this.key);
        }
    }
}

pin_project! {
    #[project = ProbingProj]
    enum Probing<P, F> {
        Readying { probe: P },
        Asking { #[pin] answer: F },
    }
}

impl<P: Service<(), Response = bool> + Clone> ProbeSubscription<P> {
    /// Subscribes a call that waits at the gate; its first probe is due after one interval.
    pub(super) fn for_wait(gate: Arc<Gate<P>>) -> Self {
        let due = Instant::now() + gate.every;
        Self::new(gate, true, due)
    }

    /// Subscribes a call whose upstream is silent; its first probe is due at once.
    pub(super) fn for_silence(gate: Arc<Gate<P>>) -> Self {
        Self::new(gate, false, Instant::now())
    }

    fn new(gate: Arc<Gate<P>>, waits: bool, due: Instant) -> Self {
        let (key, seen) = gate.rounds.subscribe(waits, due);
        Self {
            gate,
            key,
            seen,
            timer: tokio::time::sleep_until(due),
            probe: None,
            started: due,
        }
    }

    /// Polls for the result of the next finished probe: true if the upstream is healthy.
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut this = self.project();
        let Gate {
            every,
            timeout,
            rounds,
            ..
        } = &**this.gate;
        let key = *this.key;
        // How late the result of the prober may be before another subscriber becomes the prober.
        let max_delay = timeout.saturating_add(*every);
        loop {
            let now = Instant::now();
            let due = match rounds.next_step(key, this.seen, now, max_delay, cx.waker()) {
                ProbeStep::Result { healthy } => {
                    this.probe.set(None);
                    return Poll::Ready(healthy);
                }
                ProbeStep::Wait { until } => {
                    this.probe.set(None);
                    ready!(wait(this.timer.as_mut(), until, cx));
                    continue;
                }
                ProbeStep::Probe { due } => due,
            };
            if this.probe.is_none() {
                if now < due {
                    ready!(wait(this.timer.as_mut(), due, cx));
                    continue;
                }
                let probe = this.gate.probe();
                this.probe.set(Some(Probing::Readying { probe }));
                *this.started = now;
            }
            let healthy = match this.probe.as_mut().as_pin_mut().map(|it| it.poll(cx)) {
                Some(Poll::Ready(healthy)) => healthy,
                _ => {
                    let limit = *this.started + *timeout;
                    ready!(wait(this.timer.as_mut(), limit, cx));
                    false
                }
            };
            this.probe.set(None);
            rounds.record_result(key, healthy, *this.started + *every);
        }
    }
}

impl<P: Service<(), Response = bool>> Probing<P, P::Future> {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let answer = match self.as_mut().project() {
                ProbingProj::Readying { probe } => match ready!(probe.poll_ready(cx)) {
                    Ok(()) => probe.call(()),
                    Err(_) => return Poll::Ready(false),
                },
                ProbingProj::Asking { answer } => {
                    return answer.poll(cx).map(|answer| answer.unwrap_or(false));
                }
            };
            self.set(Self::Asking { answer });
        }
    }
}

/// Polls `timer` until the time `until`; resets the timer if it is set to another time.
pub(super) fn wait(mut timer: Pin<&mut Sleep>, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if timer.deadline() != until {
        timer.as_mut().reset(until);
    }
    // Outside of tokio's coop budget: a probe that is always ready must not use up the budget of
    // the timer that bounds it.
    Pin::new(&mut tokio::task::unconstrained(timer)).poll(cx)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applies(expected: &'static str, uri: &str, host: Option<&str>) -> bool {
        let mut gate = Gate::new(());
        gate.authority = Some(Authority::from_static(expected));
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
