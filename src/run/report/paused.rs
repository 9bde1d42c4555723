//! The pause of a run, in its snapshot and as the error of a turn that it refuses.

use std::{error::Error, fmt, time::Duration};

use super::snapshot::millis;
use crate::run::limit_kind::{LimitHit, LimitKind, TokenMeasure};

/// A cap of a run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunCap {
    /// The cap on turns.
    Turns,
    /// The cap on the tokens of answers.
    OutputTokens,
    /// The cap on the tokens of prompts and answers together.
    TotalTokens,
    /// The cap on the cost of both.
    Cost,
}

impl RunCap {
    /// The cap that this limit is; `None` for other limits.
    pub(in crate::run) const fn of(limit: LimitHit) -> Option<Self> {
        match limit.kind {
            LimitKind::Turns(_) => Some(Self::Turns),
            LimitKind::Tokens(limit) => Some(match limit.of {
                TokenMeasure::Output => Self::OutputTokens,
                TokenMeasure::Total => Self::TotalTokens,
                TokenMeasure::Cost => Self::Cost,
            }),
            _ => None,
        }
    }
}

/// The pause of a run, as a snapshot shows it. Serializes to JSON as it stands.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RunPause {
    /// The cap at which the run is paused; `None` if it is [suspended](crate::Run::suspend) by hand
    /// alone.
    pub cap: Option<RunCap>,
    /// Whether the run is suspended by hand.
    pub suspended: bool,
    /// For how long the run has been paused.
    #[serde(rename = "since_ms", serialize_with = "millis")]
    pub since: Duration,
    /// The number of the run's turns that are held now.
    pub held: usize,
}

/// The error of a turn that was held for as long as a turn waits, while its run is paused.
///
/// [`TerminalResponseLayer`](crate::TerminalResponseLayer) makes it a 503 with the code `run_paused`,
/// `retry-after` and `x-should-retry: true`. It is not an end: the run goes on once an operator
/// [extends](crate::Run::extend) or [resumes](crate::Run::resume) it. The refused turn counts nowhere:
/// it is not a turn of the run or of its owner, and no error.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPaused {
    /// The cap at which the run, or a run above it, is paused; `None` if it is suspended by hand.
    pub cap: Option<RunCap>,
    hold: Hold,
}

/// What holds a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The cap at which a run is paused; `None` without one.
    pub(in crate::run) limit: Option<LimitHit>,
    /// Whether a run above the turn's own one is paused.
    pub(in crate::run) is_above: bool,
}

impl Hold {
    /// The hold of a turn whose own run is paused at this cap.
    pub(in crate::run) const fn at(limit: LimitHit) -> Self {
        Self {
            limit: Some(limit),
            is_above: false,
        }
    }
}

impl RunPaused {
    /// When to try again, as `retry-after` says.
    pub const RETRY_AFTER: Duration = Duration::from_secs(30);

    pub(crate) fn new(hold: Hold) -> Self {
        Self {
            cap: hold.limit.and_then(RunCap::of),
            hold,
        }
    }
}

impl fmt::Display for RunPaused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.hold.is_above {
            "the run of which this is a sub-agent is paused"
        } else {
            "the run is paused"
        })?;
        match self.hold.limit {
            Some(limit) => write!(f, " {}; its operator was asked", CapWords(limit)),
            None => f.write_str(" by its operator"),
        }
    }
}

impl Error for RunPaused {}

/// Writes the cap behind the words "the run is paused".
pub(in crate::run) struct CapWords(pub(in crate::run) LimitHit);

impl fmt::Display for CapWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            LimitKind::Turns(1) => f.write_str("at its cap of 1 turn"),
            LimitKind::Turns(turns) => write!(f, "at its cap of {turns} turns"),
            LimitKind::Tokens(limit) if limit.of == TokenMeasure::Cost => {
                write!(f, "at its cap on the cost, {}", limit.cap())
            }
            LimitKind::Tokens(limit) => write!(f, "at its cap of {limit}"),
            _ => f.write_str("at a cap"),
        }
    }
}
