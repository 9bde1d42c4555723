use crate::{
    body::Policy,
    run::{Run, TerminalReason},
};

/// Turns a drop into a reason.
#[derive(Debug)]
pub(crate) struct DropPolicy {
    target: Run,
}

impl DropPolicy {
    pub(crate) const fn new(target: Run) -> Self {
        Self { target }
    }
}

impl Policy for DropPolicy {
    const READS: bool = true;

    fn dropped(&mut self, found: &Run) {
        // Dropped because it was over: nobody learns anything from that.
        if found.terminal_reason().is_none() {
            self.target.end(TerminalReason::ClientDisconnect);
        }
    }
}
