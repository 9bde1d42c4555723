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
    seat::{Seat, wait},
};
use crate::run::Run;

/// So many failed probes in a row are a dead upstream.
const DEAD: u32 = 2;

/// Asks after the upstream of a call that is silent, in the polls that wait for
/// it: a reader that is away is no silence.
pub(super) struct Silence<P: Service<()>> {
    gate: Arc<Gate<P>>,
    found: Run,
    after: Duration,
    since: Option<Instant>,
    failed: u32,
    /// Made once and set anew, if it fires too early.
    timer: Option<Pin<Box<Sleep>>>,
    seat: Option<Pin<Box<Seat<P>>>>,
}

impl<P: Service<()>> Silence<P> {
    pub(super) const fn new(gate: Arc<Gate<P>>, found: Run, after: Duration) -> Self {
        Self {
            gate,
            found,
            after,
            since: None,
            failed: 0,
            timer: None,
            seat: None,
        }
    }

    /// Something came.
    #[inline]
    pub(super) fn heard(&mut self) {
        if self.since.take().is_some() {
            self.failed = 0;
            self.seat = None;
        }
    }
}

impl<P: Service<(), Response = bool> + Clone> Silence<P> {
    /// Nothing came: ends the node once the upstream is dead, and sees to the
    /// next poll otherwise.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let since = *self.since.get_or_insert_with(Instant::now);
        loop {
            let Some(seat) = &mut self.seat else {
                let at = since + self.after;
                let new = || Box::pin(tokio::time::sleep_until(at));
                let timer = self.timer.get_or_insert_with(new).as_mut();
                // One that is early is cheaper than to move it with every frame.
                let is_early = timer.deadline() < at && !timer.is_elapsed();
                let until = if is_early { timer.deadline() } else { at };
                if wait(timer, until, cx).is_pending() {
                    return;
                }
                if Instant::now() >= at {
                    self.seat = Some(Box::pin(Seat::listening(Arc::clone(&self.gate))));
                }
                continue;
            };
            match seat.as_mut().poll(cx) {
                Poll::Pending => return,
                Poll::Ready(true) => self.failed = 0,
                Poll::Ready(false) => self.failed += 1,
            }
            if self.failed >= DEAD {
                self.seat = None;
                self.found.end_unhealthy(since.elapsed());
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
