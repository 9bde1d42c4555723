//! The silence of one call's upstream, and the probes while it lasts.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::gate::{Gate, Probing};
use crate::{lazy_sleep::LazySleep, lock::Lock, run::Run};

/// Probes the upstream of a silent call, in the polls of that call.
///
/// Silence starts at a `Pending`, so a caller that does not poll causes none.
pub(super) struct Silence {
    gate: Arc<Gate>,
    run: Run,
    after: Duration,
    since: Option<Instant>,
    /// The timer for the start of the probes, made at the first silence.
    timer: LazySleep,
    /// The probes of this silence, behind a lock to keep the body `Sync`.
    probes: Option<Lock<Probing<()>>>,
}

impl Silence {
    pub(super) const fn new(gate: Arc<Gate>, run: Run, after: Duration) -> Self {
        Self {
            gate,
            run,
            after,
            since: None,
            timer: LazySleep::new(),
            probes: None,
        }
    }

    /// Ends the silence; the next `Pending` starts another.
    #[inline]
    pub(super) fn reset(&mut self) {
        if self.since.take().is_some() {
            self.probes = None;
        }
    }

    /// Handles a `Pending` of the upstream; ends the node if the probes find the upstream dead.
    ///
    /// While the node goes on, the task wakes when the probes have to start or to go on.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.probes.is_none() && self.poll_start(since + self.after, cx).is_ready() {
            self.probes = Some(Lock::new(self.gate.find_dead()));
        }
        let Some(probes) = &mut self.probes else {
            return;
        };
        if probes.get_mut().as_mut().poll(cx).is_ready() {
            self.probes = None;
            self.run.end_unhealthy(since.elapsed());
        }
    }

    /// Waits for the start of the probes, at `at`.
    fn poll_start(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll_passed(at, cx)
    }
}

impl fmt::Debug for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Silence")
            .field("after", &self.after)
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}
