use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::{gate::Gate, rounds::Look};

pin_project! {
    /// One who wants to know how the upstream is, and asks if it is its turn.
    pub(super) struct Seat<P>
    where
        P: Service<()>,
    {
        gate: Arc<Gate<P>>,
        key: usize,
        // How many probes were over at the last look.
        seen: u64,
        #[pin]
        timer: Sleep,
        #[pin]
        probe: Option<Probing<P, P::Future>>,
        // When the probe was begun.
        begun: Instant,
    }

    impl<P> PinnedDrop for Seat<P>
    where
        P: Service<()>,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // Before another may ask.
            this.probe.set(None);
            this.gate.rounds.leave(*this.key);
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

impl<P: Service<(), Response = bool> + Clone> Seat<P> {
    /// One whose call is to wait until the upstream is healthy.
    pub(super) fn waiting(gate: Arc<Gate<P>>) -> Self {
        let due = Instant::now() + gate.every;
        Self::new(gate, true, due)
    }

    /// One whose call was silent, and goes on.
    pub(super) fn listening(gate: Arc<Gate<P>>) -> Self {
        Self::new(gate, false, Instant::now())
    }

    fn new(gate: Arc<Gate<P>>, waits: bool, due: Instant) -> Self {
        let (key, seen) = gate.rounds.enter(waits, due);
        Self {
            gate,
            key,
            seen,
            timer: tokio::time::sleep_until(due),
            probe: None,
            begun: due,
        }
    }

    /// What the next probe to end says.
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut this = self.project();
        let Gate {
            every,
            timeout,
            rounds,
            ..
        } = &**this.gate;
        let key = *this.key;
        // How late the one who asks may be, before its turn is another's.
        let lateness = timeout.saturating_add(*every);
        loop {
            let now = Instant::now();
            let due = match rounds.look(key, this.seen, now, lateness, cx.waker()) {
                Look::News { healthy } => {
                    this.probe.set(None);
                    return Poll::Ready(healthy);
                }
                Look::Wait { until } => {
                    this.probe.set(None);
                    ready!(wait(this.timer.as_mut(), until, cx));
                    continue;
                }
                Look::Ask { due } => due,
            };
            if this.probe.is_none() {
                if now < due {
                    ready!(wait(this.timer.as_mut(), due, cx));
                    continue;
                }
                let probe = this.gate.probe();
                this.probe.set(Some(Probing::Readying { probe }));
                *this.begun = now;
            }
            let healthy = match this.probe.as_mut().as_pin_mut().map(|it| it.poll(cx)) {
                Some(Poll::Ready(healthy)) => healthy,
                _ => {
                    let limit = *this.begun + *timeout;
                    ready!(wait(this.timer.as_mut(), limit, cx));
                    false
                }
            };
            this.probe.set(None);
            rounds.tell(key, healthy, *this.begun + *every);
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

/// Waits until then, whatever the timer was set to.
pub(super) fn wait(mut timer: Pin<&mut Sleep>, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if timer.deadline() != until {
        timer.as_mut().reset(until);
    }
    // Without the budget's leave: a probe that is always ready must not use up
    // the turn of the timer that bounds it.
    Pin::new(&mut tokio::task::unconstrained(timer)).poll(cx)
}
