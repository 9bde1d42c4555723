//! What an operator has changed about a run so far.

use std::time::Duration;

use super::tokens::Raised;

/// What was added to the limits of a run so far, and whether its turns are held by hand: what
/// [`Run::extend`](crate::Run::extend) and [`Run::suspend`](crate::Run::suspend) come to.
///
/// A store of runs keeps it for the replicas that get the run later.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunAdjustments {
    /// What was added to the cap on turns.
    pub turns: u32,
    /// What was added to the cap on output tokens.
    pub output_tokens: u64,
    /// What was added to the cap on all tokens.
    pub total_tokens: u64,
    /// What was added to the cap on the cost.
    pub cost: f64,
    /// What was added to the ceiling and the timeout.
    pub time: Duration,
    /// Whether the turns of the run are held.
    pub suspended: bool,
}

impl RunAdjustments {
    pub(in crate::run) const fn of(
        turns: u32,
        raised: &Raised,
        time: Duration,
        suspended: bool,
    ) -> Self {
        Self {
            turns,
            output_tokens: raised.output,
            total_tokens: raised.total,
            cost: raised.cost,
            time,
            suspended,
        }
    }

    /// The greater of each of the two sums, for a store that is told `newer`. What one replica adds is told
    /// by all that add it, and is one sum. Whether the run is suspended stays, unless `suspension` says
    /// so: a replica that only adds need not know.
    #[must_use]
    pub fn merged(self, newer: Self, suspension: Option<bool>) -> Self {
        Self {
            turns: self.turns.max(newer.turns),
            output_tokens: self.output_tokens.max(newer.output_tokens),
            total_tokens: self.total_tokens.max(newer.total_tokens),
            cost: self.cost.max(newer.cost),
            time: self.time.max(newer.time),
            suspended: suspension.unwrap_or(self.suspended),
        }
    }
}
