use std::time::Duration;

use crate::{
    run::{Nanos, Run, TaskId},
    supervise::{Observer, Policy},
};

/// The supervision policy that enforces the deadlines of a node while its call waits.
#[derive(Debug)]
pub struct GatePolicy;

impl Policy for GatePolicy {
    const READS: bool = false;

    fn pending(
        &mut self,
        run: &Run,
        _: Option<&Observer>,
        _: Duration,
        _: TaskId,
    ) -> Option<Nanos> {
        run.node().next_deadline()
    }
}
