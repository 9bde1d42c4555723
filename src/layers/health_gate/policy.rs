use std::time::Duration;

use crate::{
    run::{Nanos, Run, TaskId},
    supervise::{Observer, Policy},
};

/// Sees to it that the deadlines of the node hold while its call waits.
#[derive(Debug)]
pub struct GatePolicy;

impl Policy for GatePolicy {
    const READS: bool = false;

    fn pending(
        &mut self,
        found: &Run,
        _: Option<&Observer>,
        _: Duration,
        _: TaskId,
    ) -> Option<Nanos> {
        found.node().next_deadline()
    }
}
