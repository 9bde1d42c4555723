use super::Run;

/// Keeps step windows stopped while it lives: [`Run::pause`].
#[derive(Debug)]
pub struct PauseGuard(Run);

impl PauseGuard {
    pub(crate) fn new(run: Run) -> Self {
        run.node().pause(run.now());
        Self(run)
    }
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.0.node().resume(self.0.now());
    }
}
