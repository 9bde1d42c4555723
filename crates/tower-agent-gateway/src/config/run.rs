//! `[run]`: the limits of a run.

use std::time::Duration;

use tower_agent::RunRegistry;

use super::error::Problem;
use super::fallback::idle_breaker;
use super::file;
use super::limit::Limit;
use super::{IdleBreaker, number};

/// What `preset = "recommended"` stands for.
pub(super) const PRESET_TURNS: u32 = 30;

/// More turns are no cap: 0 says so.
const MOST_TURNS: u32 = 1_000_000;

/// `[run]`; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunLimits {
    /// Ends a run in which no step completes for this long.
    pub(crate) step_timeout: Option<Duration>,
    /// Ends a run at this age, whatever it does.
    pub(crate) max_turn_time: Option<Duration>,
    /// The run's total: as `max_turn_time`, under the caller's name for it.
    pub(crate) timeout: Option<Duration>,
    /// Completes a run by its id of which nothing is in flight for this long.
    pub(crate) idle: Option<Duration>,
    /// How many turns a run has.
    pub(crate) max_turns: Option<u32>,
    /// How many attempts may be silent in a row, and whether the run then ends.
    pub(crate) idle_breaker: Option<IdleBreaker>,
}

/// The limits that `table`, whose keys stand in `place`, says; and where it says nothing, `absent`.
pub(super) fn run(
    table: file::RunTable,
    place: &str,
    absent: RunLimits,
) -> Result<RunLimits, Problem> {
    let limit = |key: &str, value, absent| {
        let limit = Limit::read(&format!("{place}.{key}"), value)?;
        Ok::<_, Problem>(limit.or(absent))
    };
    let turns = format!("{place}.max_turns");
    let turns = number::count(&turns, table.max_turns, 0..=MOST_TURNS)?;
    Ok(RunLimits {
        step_timeout: limit("step_timeout", table.step_timeout, absent.step_timeout)?,
        max_turn_time: limit("max_turn_time", table.max_turn_time, absent.max_turn_time)?,
        timeout: limit("timeout", table.timeout, absent.timeout)?,
        idle: limit("idle", table.idle, absent.idle)?,
        max_turns: turns.or(absent.max_turns).filter(|turns| *turns > 0),
        idle_breaker: idle_breaker(
            table.idle_breaker,
            table.idle_fails_over,
            place,
            absent.idle_breaker,
        )?,
    })
}

/// No limit, but that a run of which nothing more is heard is over some day.
impl Default for RunLimits {
    fn default() -> Self {
        Self {
            step_timeout: None,
            max_turn_time: None,
            timeout: None,
            idle: Some(RunRegistry::IDLE),
            max_turns: None,
            idle_breaker: None,
        }
    }
}
