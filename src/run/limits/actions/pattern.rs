//! The patterns of a loop, and the thresholds at which each is reported or ends the run.

use std::{fmt, num::NonZeroU32, sync::Arc};

use crate::run::report::RunNotice;

/// In which circle a run goes.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopPattern {
    /// The same call had the same result; other calls may have stood between.
    SameCall,
    /// Two calls in turn, each with the result it had before.
    PingPong,
    /// A tool that the request does not declare.
    UnknownTool,
    /// One tool in a row with the same arguments, whatever came of it.
    SameTool,
}

/// What was done about a loop.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopVerdict {
    /// The run goes on.
    Warned,
    /// The run ends.
    Stopped,
    /// The run would have ended, and goes on.
    Observed,
}

/// A run goes in a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) struct LoopFinding {
    pub(in crate::run) pattern: LoopPattern,
    pub(in crate::run) verdict: LoopVerdict,
    pub(in crate::run) tool: Arc<str>,
    pub(in crate::run) times: u32,
}

/// For people, after "it".
impl fmt::Display for LoopFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tool, times, .. } = self;
        match self.pattern {
            LoopPattern::SameCall => {
                write!(f, "called {tool} {times} times with the same result")
            }
            LoopPattern::PingPong => write!(
                f,
                "went back and forth between {tool} and another call, \
                 {times} calls without any change"
            ),
            LoopPattern::UnknownTool => {
                write!(
                    f,
                    "called tools that do not exist {times} times, {tool} last"
                )
            }
            LoopPattern::SameTool => {
                write!(
                    f,
                    "called {tool} {times} times in a row with the same arguments"
                )
            }
        }
    }
}

impl From<LoopFinding> for RunNotice {
    fn from(found: LoopFinding) -> Self {
        Self::Loop {
            pattern: found.pattern,
            verdict: found.verdict,
            tool: found.tool,
            times: found.times,
        }
    }
}

/// How far a run may go in circles. None is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopLimits {
    /// How often the same may come back before it is told, and after each further
    /// such number.
    pub(crate) warn: Option<NonZeroU32>,
    /// How often the same may come back.
    pub(crate) stop: Option<NonZeroU32>,
    /// How many calls of tools that there are not.
    pub(crate) unknown_tool: Option<NonZeroU32>,
    /// How often the same call in a row, whatever came of it.
    pub(crate) any_tool: Option<NonZeroU32>,
}

const fn count(number: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(number)
}

impl LoopLimits {
    /// How many actions a run remembers at least.
    pub(super) const WINDOW: usize = 30;

    /// The most that a limit may be: as many actions are remembered.
    pub(crate) const MOST: u32 = 1000;

    pub(crate) const DEFAULT: Self = Self {
        warn: count(10),
        stop: count(20),
        unknown_tool: count(10),
        any_tool: count(30),
    };

    /// The limit of a setter: 0 is off, and more than the most is the most.
    pub(crate) const fn limit(number: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(if number > Self::MOST {
            Self::MOST
        } else {
            number
        })
    }

    /// Of each two limits the smaller.
    pub(super) fn tightened(self, by: Self) -> Self {
        let least = |one: Option<NonZeroU32>, other| one.into_iter().chain(other).min();
        Self {
            warn: least(self.warn, by.warn),
            stop: least(self.stop, by.stop),
            unknown_tool: least(self.unknown_tool, by.unknown_tool),
            any_tool: least(self.any_tool, by.any_tool),
        }
    }

    /// How many actions must be remembered to judge by them.
    pub(super) fn window(self) -> usize {
        let limits = [self.warn, self.stop, self.unknown_tool, self.any_tool];
        let most = limits.into_iter().flatten().max();
        most.map_or(0, |most| most.get() as usize).max(Self::WINDOW)
    }
}
