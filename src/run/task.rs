use super::handle::Run;

/// A task that works on a node: the node is not settled before the task is gone,
/// and what it did is dropped.
#[derive(Debug)]
pub(crate) struct TaskGuard(Run);

impl TaskGuard {
    pub(crate) fn new(run: Run) -> Self {
        run.node().enter_task();
        Self(run)
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.node().leave_task(self.0.now());
    }
}
