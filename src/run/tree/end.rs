use std::time::Duration;

use crate::run::{kinds::NodeKind, reason::TerminalReason};

/// A limit that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitHit {
    /// None if it is not measured in time.
    pub(crate) limit: Option<Duration>,
    pub(crate) measure: LimitKind,
}

/// Whose limit, and of what: for the message to people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// What the program set.
    #[default]
    Set,
    /// The time that the caller announced.
    Announced,
    /// The silence after which the caller gives up.
    Unheard,
    /// The time without a sign of life of a stream that gave some.
    Lifeless,
    /// This many turns of the run.
    Turns(u32),
    /// The silence in which the upstream failed its health probes.
    Unhealthy,
    /// This many open runs of its owner.
    OpenRuns(u32),
    /// This many turns of its owner in an hour.
    TurnsPerHour(u32),
}

/// Why, where and when a node ended. Inherited unchanged by its descendants.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: TerminalReason,
    /// The number of the node that was ended, not of one that inherited it.
    pub(crate) origin: u64,
    pub(crate) kind: NodeKind,
    /// Since the tree was opened.
    pub(crate) at: Duration,
    /// How long the node that was ended had lasted.
    pub(crate) lasted: Duration,
    /// The limit that fired, if it was one that is measured in time.
    pub(crate) limit: Option<Duration>,
    pub(crate) measure: LimitKind,
}
