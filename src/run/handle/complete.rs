//! Completes a run, because its program, its caller or an operator says that it is done.

use std::time::Duration;

use tokio::time::Instant;

use super::Run;
use crate::run::reason::TerminalReason;

/// What [`Run::complete`] did.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunCompletion {
    /// The run has ended as completed, by this call or before.
    Completed,
    /// Work of the run is in flight. The run completes when that work is done.
    Pending,
    /// The run had ended for this other reason, and keeps it.
    Ended(TerminalReason),
}

impl Run {
    /// Completes the nearest run, because its work is done.
    ///
    /// Without work in flight the run ends at once as
    /// [`Completed`](TerminalReason::Completed), also if its ceiling has passed while it was idle.
    /// With work in flight it completes when that work is done, unless a limit ends it before.
    /// Until then a run in a [`RunRegistry`](crate::RunRegistry) admits further requests with its
    /// id; another run refuses new work.
    ///
    /// A later call has no further effect. A registry opens a new run for the next request with the
    /// id of a completed run.
    ///
    /// ```
    /// use tower_agent::{Run, TerminalReason, run::RunCompletion};
    ///
    /// let run = Run::open();
    ///
    /// assert_eq!(run.complete(), RunCompletion::Completed);
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    /// assert_eq!(run.complete(), RunCompletion::Completed, "idempotent");
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know whether work is left"
    )]
    pub fn complete(&self) -> RunCompletion {
        let run = self.run();
        let (node, now) = (run.node(), Instant::now());
        let at = run.at(now);
        if node.check_from_outside(at).is_ok() {
            match node.payload.registration() {
                Some(registry) if node.is_of_many() => registry.complete(node, now),
                _ => node.close(&TerminalReason::Completed, Duration::MAX, at),
            }
        }
        match run.terminal_reason() {
            None => RunCompletion::Pending,
            Some(TerminalReason::Completed) => RunCompletion::Completed,
            Some(reason) => RunCompletion::Ended(reason),
        }
    }
}
