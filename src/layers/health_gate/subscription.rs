use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::{gate::Gate, rounds::ProbeStep};

pin_project! {
    /// A subscription to the probe results of a gate.
    ///
    /// The subscription runs the probe itself when its turn comes.
    pub(super) struct ProbeSubscription<P>
    where
        P: Service<()>,
    {
        gate: Arc<Gate<P>>,
        key: usize,
        // The number of finished probes at the last poll.
        seen: u64,
        #[pin]
        timer: Sleep,
        #[pin]
        probe: Option<Probing<P, P::Future>>,
        // The start of the current probe.
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
    /// Subscribes a waiting call to the probe results; the first probe is due after one
    /// interval.
    pub(super) fn for_wait(gate: Arc<Gate<P>>) -> Self {
        let due = Instant::now() + gate.every;
        Self::new(gate, true, due)
    }

    /// Subscribes a silent call in progress to the probe results; the first probe is due at
    /// once.
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

    /// Polls for the result of the next probe: whether the upstream is healthy.
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut this = self.project();
        let Gate {
            every,
            timeout,
            rounds,
            ..
        } = &**this.gate;
        let key = *this.key;
        // How late the prober may be before another subscriber takes over.
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

/// Waits until the time `until`, and resets the timer for it if necessary.
pub(super) fn wait(mut timer: Pin<&mut Sleep>, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if timer.deadline() != until {
        timer.as_mut().reset(until);
    }
    // The timer is outside of tokio's coop budget: a probe that is always ready must not
    // use up the budget of the timer that bounds it.
    Pin::new(&mut tokio::task::unconstrained(timer)).poll(cx)
}
