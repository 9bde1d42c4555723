//! Waits for the end of a node of a run, and completes a run whose work is done.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

use super::Run;
use crate::{
    lazy_sleep::LazySleep,
    run::{
        reason::TerminalReason,
        report::RunSnapshot,
        state::{NodeState, Settlement},
        tree::Node,
    },
};

/// Waits for the end of a run, and checks its deadlines meanwhile: see [`Run::wait`].
struct RunWaiter {
    run: Run,
    /// The instant at which the limit passes; `None` (never) if no instant can hold it.
    until: Option<Instant>,
    key: Option<usize>,
    timer: LazySleep,
}

impl Run {
    /// Waits for the end of this node, and resolves with its reason.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only removes its waker. The future watches no clock: the layers and
    /// [`check`](Self::check) notice a deadline.
    pub fn ended(&self) -> impl Future<Output = TerminalReason> + Send + Sync + Unpin + use<> {
        EndWaiter::new(self.clone(), |_| true)
    }

    /// Waits until this node has ended and its work is gone, and resolves with the reason.
    ///
    /// When the future resolves, no call, attempt or tool at or below the node is still being
    /// dropped, and no task of a pump drops or drains a call. Each hook of
    /// [`on_end`](crate::RunLayer::on_end) of those calls has returned, their lines of the log are
    /// written, and the spans of that work have closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only removes its waker.
    pub fn settled(&self) -> impl Future<Output = TerminalReason> + Send + Sync + Unpin + use<> {
        EndWaiter::new(self.clone(), |run| run.node().is_idle())
    }

    /// Waits for the end of this node, for `limit` at the longest. The future resolves with a
    /// snapshot, or with `None` once the limit has passed.
    ///
    /// The limit does not end the node when it passes. If the end and the limit come at once, the
    /// future resolves with the end.
    ///
    /// While the future waits, it checks the absolute deadlines of the node. So a run with a
    /// deadline ends on time even if no other task polls it, and a run that a
    /// [`RunRegistry`](crate::RunRegistry) completes when it is idle completes on time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only removes its waker.
    ///
    /// # Panics
    ///
    /// The future panics if it has to wait for a time, and is polled outside of a Tokio runtime
    /// with time.
    pub fn wait(
        &self,
        limit: Duration,
    ) -> impl Future<Output = Option<RunSnapshot>> + Send + Sync + Unpin + use<> {
        RunWaiter {
            run: self.clone(),
            until: Instant::now().checked_add(limit),
            key: None,
            timer: LazySleep::new(),
        }
    }

    /// Completes the nearest run, because its work is done.
    ///
    /// Without work in flight the run ends at once as
    /// [`Completed`](TerminalReason::Completed), also if its ceiling has passed while it was idle.
    /// With work in flight it completes when that work is done, unless a limit ends it before.
    /// Until then a run in a [`RunRegistry`](crate::RunRegistry) admits further requests with its
    /// id; another run refuses new work.
    ///
    /// A pause that holds the turns of the run ends once none is held, so that the run completes.
    ///
    /// A later call has no further effect. A registry opens a new run for the next request with the
    /// id of a completed run.
    ///
    /// ```
    /// use tower_agent::{Run, TerminalReason, run::RunCompletion};
    ///
    /// let run = Run::open();
    ///
    /// assert_eq!(run.complete(), RunCompletion::Completed);
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    /// assert_eq!(run.complete(), RunCompletion::Completed, "idempotent");
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know whether work is left"
    )]
    pub fn complete(&self) -> RunCompletion {
        let run = self.run();
        let (node, now) = (run.node(), Instant::now());
        let at = run.at(now);
        if node.check_from_outside(at).is_ok() {
            match node.payload.registration() {
                Some(registry) if node.is_of_many() => {
                    if node.is_idle() {
                        node.forget_pauses(at);
                    }
                    registry.complete(node, now);
                }
                _ => node.close(&TerminalReason::Completed, Duration::MAX, at),
            }
        }
        match run.terminal_reason() {
            None => RunCompletion::Pending,
            Some(TerminalReason::Completed) => RunCompletion::Completed,
            Some(reason) => RunCompletion::Ended(reason),
        }
    }

    /// The one call that this run ends with; `None` if the run has no such call, or if the call is
    /// over: then its deadlines end nothing any more.
    fn sole_call(&self) -> Option<Arc<Node<NodeState>>> {
        if !self.node().payload.settlement.ends_with_call() {
            return None;
        }
        let mut children = self.node().children().into_iter();
        children.find(|child| child.payload.settlement.is(Settlement::OnlyCall) && !child.is_over())
    }

    /// Ends the outermost node with a passed deadline, on the path to this node or to its one call.
    /// Completes the runs on the path that were idle for too long. Returns the time of the next
    /// check.
    fn check_deadlines(&self, now: Instant) -> Option<Instant> {
        let call = self.sole_call();
        let last = call.as_ref().unwrap_or_else(|| self.node());
        let _over = last.check_from_outside(self.at(now));
        // A deadline that the check has left alone is one of an idle run: that run completes.
        let clock = last.next_deadline_after(self.at(now));
        let clock = clock.and_then(|at| self.instant(at));
        let above = self.node().path();
        let idle = above.filter_map(|node| node.payload.registration()?.idle(node, now));
        idle.chain(clock).min()
    }
}

impl Future for RunWaiter {
    type Output = Option<RunSnapshot>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // The waker is registered before the check: else an end, or an earlier deadline, between
        // the two would not wake the task.
        if this.key.is_none() {
            this.run.node().watch();
        }
        this.run
            .node()
            .register_waker(&mut this.key, cx.waker(), false);
        loop {
            let now = Instant::now();
            let next = match this.run.terminal_reason() {
                None => this.run.check_deadlines(now),
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
                this.timer.clear();
                return Poll::Pending;
            };
            ready!(this.timer.poll_at(at, cx));
        }
    }
}

impl RunWaiter {
    fn release(&mut self) {
        self.timer.clear();
        if let Some(key) = self.key.take() {
            self.run.node().deregister_waker(key);
            self.run.node().unwatch();
        }
    }
}

impl Drop for RunWaiter {
    fn drop(&mut self) {
        self.release();
    }
}

/// What [`Run::complete`] did.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunCompletion {
    /// The run has ended as completed, by this call or before.
    Completed,
    /// Work of the run is in flight. The run completes when that work is done.
    Pending,
    /// The run had ended for this other reason, and keeps it.
    Ended(TerminalReason),
}

/// Waits until a node has ended and is `done`.
struct EndWaiter {
    run: Run,
    key: Option<usize>,
    done: fn(&Run) -> bool,
}

impl EndWaiter {
    const fn new(run: Run, done: fn(&Run) -> bool) -> Self {
        let key = None;
        Self { run, key, done }
    }
}

impl Future for EndWaiter {
    type Output = TerminalReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TerminalReason> {
        let this = self.get_mut();
        // The waker is registered before the check: else an end between the two would not wake the
        // task.
        this.run
            .node()
            .register_waker(&mut this.key, cx.waker(), false);
        match this.run.terminal_reason() {
            Some(reason) if (this.done)(&this.run) => Poll::Ready(reason),
            _ => Poll::Pending,
        }
    }
}

impl Drop for EndWaiter {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.run.node().deregister_waker(key);
        }
    }
}
