use crate::{
    run::{Run, Scope, TerminalReason},
    supervise::Policy,
};

/// Turns a drop into a reason.
#[derive(Debug)]
pub struct DropPolicy {
    scope: Scope,
}

impl DropPolicy {
    pub(crate) const fn new(scope: Scope) -> Self {
        Self { scope }
    }
}

impl Policy for DropPolicy {
    const READS: bool = true;

    fn dropped(&mut self, found: &Run) {
        // Dropped because it was over: nobody learns anything from that.
        if found.terminal_reason().is_none() {
            let target = found.in_scope(self.scope);
            drop(target.end(TerminalReason::ClientDisconnect, None, found.now()));
        }
    }
}
