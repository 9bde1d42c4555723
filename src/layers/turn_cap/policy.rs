use std::time::Duration;

use crate::{
    run::{Clock, Nanos, Run, TaskId, nanos},
    supervise::{Observer, Policy},
};

/// Watches the time that a run has which is closing for its cap. What is counted is
/// counted before the call.
#[derive(Debug)]
pub struct TurnPolicy {
    closes: bool,
}

impl TurnPolicy {
    pub(super) const fn new(closes: bool) -> Self {
        Self { closes }
    }
}

impl Policy for TurnPolicy {
    const READS: bool = false;
    const TIMED: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        _: Option<&Observer>,
        _: Duration,
        _: TaskId,
    ) -> Option<Nanos> {
        // Whoever waits is polled when the run begins to close.
        let until = || found.nearest().clocks.get(Clock::Drain).map(nanos);
        self.closes.then(until).flatten()
    }
}
