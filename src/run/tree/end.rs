//! The end of a node, and the reason and limit with which a closing node ends by its closing.

use std::time::Duration;

use super::{
    nanos::{NEVER, Nanos, duration, nanos},
    node_kind::NodeKind,
};
use crate::{
    llm::failure::FailureClass,
    run::{
        limit_kind::{LimitHit, LimitKind},
        reason::TerminalReason,
    },
};

/// The end of a node: why, where and when the node ended. A descendant that has not ended before
/// inherits the end, with its time on the clock of the descendant's tree.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: TerminalReason,
    /// The number of the node that was itself ended. A node that inherits the end keeps this
    /// number.
    pub(crate) origin: u64,
    pub(crate) kind: NodeKind,
    at: Nanos,
    lasted: Nanos,
    /// The length of the limit that passed. `NEVER` if none passed, or if the limit is not a time.
    limit: Nanos,
    pub(crate) limit_kind: LimitKind,
}

impl End {
    /// Makes the end of the node `origin` at the time `at`. `lasted` is the age of the node then.
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
            limit_kind: passed.map_or(LimitKind::Set, |passed| passed.kind),
        }
    }

    /// The same end at the time `at`, on the clock of another tree.
    pub(crate) fn moved_to(&self, at: Duration) -> Self {
        Self {
            at: nanos(at),
            ..self.clone()
        }
    }

    /// The time of the end, since the tree of the node `origin` was opened.
    pub(crate) const fn at(&self) -> Duration {
        Duration::from_nanos(self.at)
    }

    /// The time from the opening of the node `origin` to this end.
    pub(crate) const fn lasted(&self) -> Duration {
        Duration::from_nanos(self.lasted)
    }

    /// The class of failure as which this end of an attempt counts.
    ///
    /// `None` if the reason is not a failure of an attempt, or if the node that ended is not an
    /// attempt.
    pub(crate) fn attempt_failure(&self) -> Option<FailureClass> {
        match self.reason {
            // A node of another kind, above the attempt, ended: no failure of the attempt.
            _ if self.kind != NodeKind::Attempt => None,
            TerminalReason::Failed(class) => Some(class),
            TerminalReason::StepTimeout => Some(FailureClass::StepTimeout),
            TerminalReason::Slow => Some(FailureClass::Slow),
            TerminalReason::HardCeiling | TerminalReason::CallerDeadline => {
                Some(FailureClass::Deadline)
            }
            _ => None,
        }
    }

    /// The length of the limit that passed. `None` if none passed, or if the limit is not a time.
    pub(crate) fn limit(&self) -> Option<Duration> {
        duration(self.limit)
    }
}

/// The reason and the limit of a closing node's end, unless the node ends otherwise before.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) reason: TerminalReason,
    pub(super) passed: Option<LimitHit>,
    /// Whether the closing leaves the calls that had begun before it alone, with all that they
    /// start: their repeats and fallbacks.
    pub(super) spares_calls: bool,
}

impl Closing {
    /// Whether `other` reaches calls that this closing, which came before, has spared.
    pub(super) const fn is_overtaken_by(&self, other: &Self) -> bool {
        self.spares_calls && !other.spares_calls
    }
}
