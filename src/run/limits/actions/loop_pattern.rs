//! The patterns that a loop of tool calls can have, and the limits on each.

use std::{fmt, num::NonZeroU32, sync::Arc};

use crate::run::report::RunNotice;

/// The pattern of a loop of tool calls.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopPattern {
    /// One call had the same result again; other calls may stand between.
    SameCall,
    /// Two calls alternate, each with the result it had before.
    PingPong,
    /// Up to four calls, in any order, of which each had its result before.
    Cycle,
    /// Calls of tools that no recent request declares.
    UnknownTool,
    /// One tool was called in a row with the same arguments, whatever the results.
    SameTool,
}

/// The effect of a loop on its run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopVerdict {
    /// The run goes on, and observers receive a report.
    Warned,
    /// The loop has reached a limit that ends the run.
    Stopped,
    /// The loop has reached a limit that ends nothing: the run would have ended, and goes on.
    Observed,
}

/// A loop of a run that has reached a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) struct LoopFinding {
    pub(in crate::run) pattern: LoopPattern,
    pub(in crate::run) verdict: LoopVerdict,
    pub(in crate::run) tool: Arc<str>,
    pub(in crate::run) times: u32,
}

/// Describes the loop for people, as a clause that completes "it ..".
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
            LoopPattern::Cycle => write!(
                f,
                "went round up to four calls, {tool} last, {times} calls without a new result"
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

/// The limits on the loops of a run; `None` turns a limit off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopLimits {
    /// A loop is reported each time that its count reaches a multiple of this number. Loops of
    /// unknown tools are not.
    pub(crate) warn: Option<NonZeroU32>,
    /// The number of calls with the same result, or of two calls in alternation, that ends the run.
    pub(crate) stop: Option<NonZeroU32>,
    /// The number of calls of unknown tools that ends the run.
    pub(crate) unknown_tool: Option<NonZeroU32>,
    /// The number of equal calls in a row that ends the run, whatever the results. The same number
    /// of actions in a [cycle](LoopPattern::Cycle) also ends it.
    pub(crate) any_tool: Option<NonZeroU32>,
}

impl LoopLimits {
    /// The minimum number of actions that a run remembers to find loops.
    pub(super) const WINDOW: usize = 30;

    /// The maximum of each limit on loops: it bounds the number of actions that a run remembers.
    pub(crate) const MOST: u32 = 1000;

    pub(crate) const DEFAULT: Self = Self {
        warn: NonZeroU32::new(10),
        stop: NonZeroU32::new(20),
        unknown_tool: NonZeroU32::new(10),
        any_tool: NonZeroU32::new(30),
    };

    /// Turns a number from a setter into a limit: 0 turns the limit off, and `MOST` is the maximum.
    pub(crate) const fn limit(number: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(if number > Self::MOST {
            Self::MOST
        } else {
            number
        })
    }

    /// Takes, of each pair of limits, the smaller one; a limit that is off does not count.
    pub(super) fn tightened(self, by: Self) -> Self {
        let least = |one: Option<NonZeroU32>, other| one.into_iter().chain(other).min();
        Self {
            warn: least(self.warn, by.warn),
            stop: least(self.stop, by.stop),
            unknown_tool: least(self.unknown_tool, by.unknown_tool),
            any_tool: least(self.any_tool, by.any_tool),
        }
    }

    /// The number of actions that a run must remember for these limits.
    pub(super) fn window(self) -> usize {
        let limits = [self.warn, self.stop, self.unknown_tool, self.any_tool];
        let most = limits.into_iter().flatten().max();
        most.map_or(0, |most| most.get() as usize).max(Self::WINDOW)
    }
}

impl LoopPattern {
    /// The count of this pattern at which the run ends; `None` if no limit on it is set.
    pub(in crate::run) fn stop(self, limits: &LoopLimits) -> Option<u32> {
        let limit = match self {
            Self::SameCall | Self::PingPong => limits.stop,
            Self::UnknownTool => limits.unknown_tool,
            Self::Cycle | Self::SameTool => limits.any_tool,
        };
        limit.map(NonZeroU32::get)
    }

    /// The detector reports this pattern's count at each multiple of this number; `None` for none.
    pub(in crate::run) fn warn(self, limits: &LoopLimits) -> Option<u32> {
        let limit = match self {
            Self::SameCall | Self::PingPong | Self::Cycle | Self::SameTool => limits.warn,
            Self::UnknownTool => None,
        };
        limit.map(NonZeroU32::get)
    }
}
