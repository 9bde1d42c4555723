use std::time::Duration;

use crate::{
    run::{Nanos, Run, TaskId},
    supervise::{Observer, Policy},
};

/// Watches an attempt's share of the time, and settles the attempt.
#[derive(Debug)]
pub(crate) struct AttemptSupervision;

impl Policy for AttemptSupervision {
    // What the attempt comes to is judged here, unless it was further in.
    const READS: bool = true;
    // Whoever is further out looks for the answer's node, and finds its own.
    const TELLS: bool = false;
    // A whole answer may be judged a failure yet.
    const DEFERS: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        _: Option<&Observer>,
        _: Duration,
        _: TaskId,
    ) -> Option<Nanos> {
        found.node().clocks.next()
    }
}
