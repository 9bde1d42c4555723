//! The end of a node, the limit that may have caused it, and the end that a closing node awaits.

use std::time::Duration;

use super::clocks::{NEVER, Nanos, duration, nanos};
use crate::{
    llm::failure::FailureClass,
    run::{
        kinds::{LimitHit, LimitKind, NodeKind},
        reason::TerminalReason,
    },
};

/// The end of a node: why, where and when it ended. Descendants inherit it unchanged.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: TerminalReason,
    /// The number of the node that was ended itself; its descendants inherit the number.
    pub(crate) origin: u64,
    pub(crate) kind: NodeKind,
    at: Nanos,
    lasted: Nanos,
    /// The length of the limit that fired; `NEVER` if none did, or if it is not a time.
    limit: Nanos,
    pub(crate) measure: LimitKind,
}

impl End {
    /// Makes the end of a node that is ended itself at `at`, after it had `lasted` so long.
    pub(super) fn new(
        reason: TerminalReason,
        (origin, kind): (u64, NodeKind),
        at: Duration,
        lasted: Duration,
        passed: Option<LimitHit>,
    ) -> Self {
        let limit = passed.and_then(|passed| passed.limit);
        Self {
            reason,
            origin,
            kind,
            at: nanos(at),
            lasted: nanos(lasted),
            limit: limit.map_or(NEVER, nanos),
            measure: passed.map_or(LimitKind::Set, |passed| passed.measure),
        }
    }

    /// The time of the end, since the tree was opened.
    pub(crate) const fn at(&self) -> Duration {
        Duration::from_nanos(self.at)
    }

    /// How long the node that was ended itself had lasted.
    pub(crate) const fn lasted(&self) -> Duration {
        Duration::from_nanos(self.lasted)
    }

    /// The class of failure as which this end of an attempt counts; `None` if the attempt did not
    /// fail by itself.
    pub(crate) fn attempt_failure(&self) -> Option<FailureClass> {
        match self.reason {
            // The end of the call, and no failure of the attempt.
            _ if self.kind != NodeKind::Attempt => None,
            TerminalReason::Failed(class) => Some(class),
            TerminalReason::StepTimeout => Some(FailureClass::StepTimeout),
            TerminalReason::HardCeiling | TerminalReason::CallerDeadline => {
                Some(FailureClass::Deadline)
            }
            _ => None,
        }
    }

    /// The limit that fired, if it is a time.
    pub(crate) const fn limit(&self) -> Option<Duration> {
        duration(self.limit)
    }
}

/// The reason and the limit that a closing node will end with.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) reason: TerminalReason,
    pub(super) passed: Option<LimitHit>,
}
