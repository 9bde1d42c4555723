//! `[loops]`: the limits on repeated tool calls of a run.

use super::error::Problem;
use super::{file, number};

/// The numbers of `[loops]`; 0 means never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loops {
    /// The number of repetitions after which observers get a notice, and again at each
    /// multiple.
    pub(crate) warn: u32,
    /// The number of repetitions that ends the run.
    pub(crate) stop: u32,
    /// The number of calls of undeclared tools that ends the run.
    pub(crate) unknown_tool: u32,
    /// The number of same calls in a row, with any results, that ends the run.
    pub(crate) any_tool: u32,
    /// Whether the guard only gives notices and ends no run.
    pub(crate) observe: bool,
    /// The names of the tools that poll.
    pub(crate) polls: Vec<String>,
    /// Whether results that differ only in ids, times and durations are different results.
    pub(crate) exact_results: bool,
}

/// The defaults of the table's keys, and the values of `preset = "recommended"`.
const ABSENT: Loops = Loops {
    warn: 10,
    stop: 20,
    unknown_tool: 10,
    any_tool: 30,
    observe: false,
    polls: Vec::new(),
    exact_results: false,
};

/// The largest number of the table; the loop guard counts no further.
const MOST: u32 = 1_000;

/// Resolves the table. `None` is off: then the guard reads no conversation.
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
        polls: table.polls.unwrap_or_default(),
        exact_results: table.exact_results.unwrap_or(ABSENT.exact_results),
    };
    let numbers = [loops.warn, loops.stop, loops.unknown_tool, loops.any_tool];
    Ok((numbers != [0; 4]).then_some(loops))
}
