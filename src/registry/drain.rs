use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use crate::run::{Run, Settled, TaskId, TerminalReason};

/// Resolves when all live runs have ended and their work is gone.
///
/// [`RunRegistry::drain`](crate::registry::RunRegistry::drain) returns this future. The future
/// resolves a second after the drain's limit at the latest, because a caller may hold a body that
/// it does not read. The output is the number of runs that were cut at the limit.
///
/// # Cancel safety
///
/// Dropping the future does not stop the drain: the runs end all the same.
///
/// # Panics
///
/// If the future is polled outside of a Tokio runtime with time while runs are left.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct RunDrain {
    /// The runs that the drain still waits for; the next one stands last. The future waits for one
    /// at a time, so each end wakes it at most once.
    left: Vec<Run>,
    settled: Option<Settled>,
    /// The timer for `until`; `None` until it is needed, and after it fired.
    timer: Option<Pin<Box<Sleep>>>,
    /// The instant at which the drain cuts runs; `None` (never) if no instant can hold it.
    limit: Option<Instant>,
    /// The instant for which the timer is set: the limit, then the end of the grace.
    until: Option<Instant>,
    fired: bool,
    cut: usize,
}

/// How long after the limit the drain waits for the work of cut runs to be dropped.
const GRACE: Duration = Duration::from_secs(1);

impl RunDrain {
    pub(super) const fn new(left: Vec<Run>, limit: Option<Instant>) -> Self {
        Self {
            left,
            settled: None,
            timer: None,
            limit,
            until: limit,
            fired: false,
            cut: 0,
        }
    }

    /// Ends the runs that still live, because the limit has passed.
    fn latch(&mut self, now: Instant) {
        self.fired = true;
        self.timer = None;
        self.until = self.until.and_then(|until| until.checked_add(GRACE));
        for run in &self.left {
            drop(run.node().check(run.at(now), TaskId::NONE));
        }
    }

    /// Whether the run ended as `Shutdown` because the limit of the drain passed.
    fn was_cut(&self, run: &Run) -> bool {
        let end = run.node().own_end();
        let end = end.filter(|end| end.reason == TerminalReason::Shutdown);
        let at = end.and_then(|end| run.instant(end.at));
        at.zip(self.limit).is_some_and(|(at, limit)| at >= limit)
    }
}

impl Future for RunDrain {
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<usize> {
        let this = &mut *self;
        loop {
            if let Some(settled) = &mut this.settled {
                if Pin::new(settled).poll(cx).is_pending() {
                    break;
                }
                this.settled = None;
                if let Some(run) = this.left.pop() {
                    this.cut += usize::from(this.was_cut(&run));
                }
            }
            match this.left.last() {
                Some(run) => this.settled = Some(run.settled()),
                None => {
                    this.timer = None;
                    return Poll::Ready(this.cut);
                }
            }
        }
        let Some(until) = this.until else {
            return Poll::Pending;
        };
        let timer = this
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        // The timer is polled outside tokio's coop budget, as in `RunWait`.
        let mut timer = tokio::task::unconstrained(timer);
        if Pin::new(&mut timer).poll(cx).is_ready() {
            if this.fired {
                this.settled = None;
                let left = std::mem::take(&mut this.left);
                this.cut += left.iter().filter(|run| this.was_cut(run)).count();
                return Poll::Ready(this.cut);
            }
            this.latch(Instant::now());
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
