//! `[loops]`: when a run goes in circles.

use super::error::Problem;
use super::{file, number};

/// `[loops]`; 0 is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loops {
    /// Tells observers when the same call came back so often, and again after as many.
    pub(crate) warn: u32,
    /// Ends a run for that.
    pub(crate) stop: u32,
    /// Ends a run after so many calls of tools that there are not.
    pub(crate) unknown_tool: u32,
    /// Ends a run after so many calls of one tool that learn nothing.
    pub(crate) any_tool: u32,
    /// Whether it only says what it would end.
    pub(crate) observe: bool,
}

/// What the table, or `preset = "recommended"`, stands for where it says nothing.
const ABSENT: Loops = Loops {
    warn: 10,
    stop: 20,
    unknown_tool: 10,
    any_tool: 30,
    observe: false,
};

/// More are never counted.
const MOST: u32 = 1_000;

/// `None` is off: then nothing is read.
pub(super) fn loops(
    table: Option<file::LoopsTable>,
    recommended: bool,
) -> Result<Option<Loops>, Problem> {
    let Some(table) = table else {
        return Ok(recommended.then_some(ABSENT));
    };
    let count = |key: &str, value, absent| {
        let count = number::count(&format!("loops.{key}"), value, 0..=MOST)?;
        Ok::<_, Problem>(count.unwrap_or(absent))
    };
    let loops = Loops {
        warn: count("warn", table.warn, ABSENT.warn)?,
        stop: count("stop", table.stop, ABSENT.stop)?,
        unknown_tool: count("unknown_tool", table.unknown_tool, ABSENT.unknown_tool)?,
        any_tool: count("any_tool", table.any_tool, ABSENT.any_tool)?,
        observe: table.observe.unwrap_or(ABSENT.observe),
    };
    let numbers = [loops.warn, loops.stop, loops.unknown_tool, loops.any_tool];
    Ok((numbers != [0; 4]).then_some(loops))
}
