use std::{fmt, sync::Arc};

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
