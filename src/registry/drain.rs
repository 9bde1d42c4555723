use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use crate::run::{Run, Settled, TaskId, TerminalReason};

/// Resolves when all runs that lived have ended and their work is gone:
/// [`RunRegistry::drain`](crate::registry::RunRegistry::drain); a second after the limit at the
/// latest, though somebody may hold on to a body that he does not read. Answers how
/// many had to be cut at the limit.
///
/// # Cancel safety
///
/// Dropping it takes nothing back: the runs end all the same.
///
/// # Panics
///
/// When it is polled outside of a Tokio runtime with time, and something is left.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct RunDrain {
    /// Those that are left, the next one last. One is waited for at a time: each
    /// of many that end wakes this once.
    left: Vec<Run>,
    settled: Option<Settled>,
    /// None before it is needed, and after it fired.
    timer: Option<Pin<Box<Sleep>>>,
    /// None if it is beyond what an instant can hold: then nothing ever comes.
    limit: Option<Instant>,
    /// The limit, and then the end of the grace.
    until: Option<Instant>,
    fired: bool,
    cut: usize,
}

/// What those who are cut have to let go of what they hold.
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

    /// The limit has passed: what still lives ends now.
    fn latch(&mut self, now: Instant) {
        self.fired = true;
        self.timer = None;
        self.until = self.until.and_then(|until| until.checked_add(GRACE));
        for run in &self.left {
            drop(run.node().check(run.at(now), TaskId::NONE));
        }
    }

    /// Whether it was the limit that ended the run.
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
        // Without the budget's leave: see the wait for one run.
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
