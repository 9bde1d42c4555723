//! Futures that wait for the end of a node.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use super::Run;
use crate::run::{
    kinds::NodeKind, reason::TerminalReason, report::RunSnapshot, state::NodeState, tree::Node,
};

/// Resolves with what is known of a run when it has ended, or with `None` when
/// the limit has passed: [`Run::wait`].
///
/// # Panics
///
/// When it is polled outside of a Tokio runtime with time, and the run lives.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct RunWait {
    run: Run,
    /// None if it is beyond what an instant can hold: then nothing ever comes.
    until: Option<Instant>,
    key: Option<usize>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Run {
    /// Waits until this node has ended, `limit` from now at the longest; a limit
    /// that passes ends nothing. If both come at once the end is answered.
    ///
    /// While it waits it is the one who compares the clocks of the node with the
    /// time, so that a run with a deadline that nobody else polls ends on time;
    /// likewise one that a [`RunRegistry`](crate::registry::RunRegistry) completes when it
    /// is idle.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future forgets the waiting and nothing else.
    pub fn wait(&self, limit: Duration) -> RunWait {
        RunWait {
            run: self.clone(),
            until: Instant::now().checked_add(limit),
            key: None,
            timer: None,
        }
    }

    /// The one call that is the last word on this run, if there is such a one.
    fn sole_call(&self) -> Option<std::sync::Arc<Node<NodeState>>> {
        if self.kind() != NodeKind::Run || !self.node().payload.is_single() {
            return None;
        }
        let mut children = self.node().children().into_iter();
        children.find(|child| child.payload.is_sole())
    }

    /// Ends what is due of this node, by its clocks or for being idle, and answers
    /// when to look again.
    fn look(&self, now: Instant) -> Option<Instant> {
        let call = self.sole_call();
        let last = call.as_ref().unwrap_or_else(|| self.node());
        let _over = last.check(self.at(now), crate::run::tree::TaskId::NONE);
        let clock = last.next_deadline().map(Duration::from_nanos);
        let clock = clock.and_then(|at| self.instant(at));
        let node = &**self.node();
        let above = std::iter::once(node).chain(node.ancestors());
        let idle = above.filter_map(|node| node.payload.registration()?.idle(node, now));
        idle.chain(clock).min()
    }
}

impl Future for RunWait {
    type Output = Option<RunSnapshot>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Register first: an end, or an earlier deadline, after the look would find
        // no waker.
        if this.key.is_none() {
            this.run.node().watch();
        }
        this.run.node().wait(&mut this.key, cx.waker(), false);
        loop {
            let now = Instant::now();
            let next = match this.run.terminal_reason() {
                None => this.run.look(now),
                Some(_) => None,
            };
            if this.run.terminal_reason().is_some() {
                let snapshot = this.run.snapshot();
                this.release();
                return Poll::Ready(Some(snapshot));
            }
            if this.until.is_some_and(|until| until <= now) {
                this.release();
                return Poll::Ready(None);
            }
            let Some(at) = next.into_iter().chain(this.until).min() else {
                this.timer = None;
                return Poll::Pending;
            };
            let timer = match &mut this.timer {
                Some(timer) => {
                    if timer.deadline() != at || timer.is_elapsed() {
                        timer.as_mut().reset(at);
                    }
                    timer
                }
                empty => empty.insert(Box::pin(tokio::time::sleep_until(at))),
            };
            // Without the budget's leave: a timer that was not registered because
            // the task had used up its turn would never fire.
            let mut timer = tokio::task::unconstrained(timer);
            if Pin::new(&mut timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl RunWait {
    fn release(&mut self) {
        self.timer = None;
        if let Some(key) = self.key.take() {
            self.run.node().unwait(key);
            self.run.node().unwatch();
        }
    }
}

impl Drop for RunWait {
    fn drop(&mut self) {
        self.release();
    }
}

/// Resolves when a node has ended: [`Run::ended`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Ended(EndWaiter);

/// Resolves when a node has ended and its work is gone: [`Run::settled`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Settled(EndWaiter);

#[derive(Debug)]
struct EndWaiter {
    run: Run,
    key: Option<usize>,
}

impl Ended {
    pub(super) const fn new(run: Run) -> Self {
        Self(EndWaiter { run, key: None })
    }
}

impl Settled {
    pub(super) const fn new(run: Run) -> Self {
        Self(EndWaiter { run, key: None })
    }
}

impl Future for Ended {
    type Output = TerminalReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TerminalReason> {
        self.0.poll(cx, |_| true)
    }
}

impl Future for Settled {
    type Output = TerminalReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TerminalReason> {
        self.0.poll(cx, |run| run.node().is_idle())
    }
}

impl EndWaiter {
    fn poll(&mut self, cx: &mut Context<'_>, done: impl Fn(&Run) -> bool) -> Poll<TerminalReason> {
        // Register first: an end after the look would find no waker.
        self.run.node().wait(&mut self.key, cx.waker(), false);
        match self.run.terminal_reason() {
            Some(reason) if done(&self.run) => Poll::Ready(reason),
            _ => Poll::Pending,
        }
    }
}

impl Drop for EndWaiter {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.run.node().unwait(key);
        }
    }
}
