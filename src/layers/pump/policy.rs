use std::time::Duration;

use crate::{
    layers::client_disconnect::DropPolicy,
    run::{Run, Scope, TerminalReason},
    supervise::Policy,
};

/// Turns a drop into a reason, at once or after a drain.
#[derive(Debug)]
pub struct PumpPolicy {
    drain: Option<Duration>,
}

impl PumpPolicy {
    pub(super) const fn new(drain: Option<Duration>) -> Self {
        Self { drain }
    }
}

impl Policy for PumpPolicy {
    const READS: bool = true;

    fn dropped(&mut self, found: &Run) {
        let Some(limit) = self.drain else {
            return DropPolicy::new(Scope::Found).dropped(found);
        };
        let now = found.now();
        let until = now.saturating_add(limit);
        let reason = TerminalReason::ClientDisconnect;
        found.node().close(&reason, until, now);
    }
}

/// Reads along inside of the task: of a call whose reader has left nobody
/// further out learns anything.
#[derive(Debug)]
pub(super) struct ReaderPolicy;

impl Policy for ReaderPolicy {
    const READS: bool = true;
    const TELLS: bool = false;
}
