use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::{
    gate::Gate,
    subscription::{ProbeSubscription, wait},
};
use crate::run::Run;

/// The number of failed probes in a row after which the upstream counts as dead.
const DEAD: u32 = 2;

/// Probes the upstream of a silent call, in the polls that wait for it.
///
/// A caller that does not poll causes no silence.
pub(super) struct Silence<P: Service<()>> {
    gate: Arc<Gate<P>>,
    run: Run,
    after: Duration,
    since: Option<Instant>,
    failed: u32,
    /// The timer for the next probe; created once, and reset if it fires too early.
    timer: Option<Pin<Box<Sleep>>>,
    subscription: Option<Pin<Box<ProbeSubscription<P>>>>,
}

impl<P: Service<()>> Silence<P> {
    pub(super) const fn new(gate: Arc<Gate<P>>, run: Run, after: Duration) -> Self {
        Self {
            gate,
            run,
            after,
            since: None,
            failed: 0,
            timer: None,
            subscription: None,
        }
    }

    /// Ends the silence: the upstream has sent something.
    #[inline]
    pub(super) fn reset(&mut self) {
        if self.since.take().is_some() {
            self.failed = 0;
            self.subscription = None;
        }
    }
}

impl<P: Service<(), Response = bool> + Clone> Silence<P> {
    /// Handles a `Pending` of the upstream; ends the node if the upstream is dead.
    ///
    /// If the upstream is not dead, the task will be woken for the next probe.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let since = *self.since.get_or_insert_with(Instant::now);
        loop {
            let Some(subscription) = &mut self.subscription else {
                let at = since + self.after;
                let new = || Box::pin(tokio::time::sleep_until(at));
                let timer = self.timer.get_or_insert_with(new).as_mut();
                // A timer that fires too early costs less than a reset with every
                // frame.
                let is_early = timer.deadline() < at && !timer.is_elapsed();
                let until = if is_early { timer.deadline() } else { at };
                if wait(timer, until, cx).is_pending() {
                    return;
                }
                if Instant::now() >= at {
                    self.subscription = Some(Box::pin(ProbeSubscription::for_silence(Arc::clone(
                        &self.gate,
                    ))));
                }
                continue;
            };
            match subscription.as_mut().poll(cx) {
                Poll::Pending => return,
                Poll::Ready(true) => self.failed = 0,
                Poll::Ready(false) => self.failed += 1,
            }
            if self.failed >= DEAD {
                self.subscription = None;
                self.run.end_unhealthy(since.elapsed());
                return;
            }
        }
    }
}

impl<P: Service<()>> fmt::Debug for Silence<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Silence")
            .field("after", &self.after)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
