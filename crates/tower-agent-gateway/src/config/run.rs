//! `[run]`: the limits of a run.

use std::time::Duration;

use tower_agent::RunRegistry;

use super::error::Problem;
use super::fallback::idle_breaker;
use super::file;
use super::limit::{Limit, observe};
use super::{IdleBreaker, number};

/// The turns of a run under `preset = "recommended"`.
pub(super) const PRESET_TURNS: u32 = 30;

/// The largest cap of turns; 0 switches the cap off.
const MOST_TURNS: u32 = 1_000_000;

/// The most bytes of a partial text, 1 MiB; 0 keeps none.
const MOST_PARTIAL: u32 = 1 << 20;

/// `[run]`; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunLimits {
    /// Ends a run in which no step completes for this long.
    pub(crate) step_timeout: Option<Duration>,
    /// Ends a run at this age, also if it makes progress.
    pub(crate) max_turn_time: Option<Duration>,
    /// Ends a run at this age too, but with the reason `CallerDeadline`.
    pub(crate) timeout: Option<Duration>,
    /// Completes a run with a given id after this long with nothing in flight.
    pub(crate) idle: Option<Duration>,
    /// How many turns a run has.
    pub(crate) max_turns: Option<u32>,
    /// The limit on silent attempts in a row, and its effect.
    pub(crate) idle_breaker: Option<IdleBreaker>,
    /// Whether the limits on time only give notices and end no run.
    pub(crate) observe: bool,
    /// The most bytes of an answer's text that are kept for the notice of its run's end.
    pub(crate) partial: Option<u32>,
}

/// Resolves `table`; `absent` fills in what it leaves out. Errors name keys under `place`.
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
    let partial = format!("{place}.partial");
    let partial = number::count(&partial, table.partial, 0..=MOST_PARTIAL)?;
    let step_timeout = limit("step_timeout", table.step_timeout, absent.step_timeout)?;
    let max_turn_time = limit("max_turn_time", table.max_turn_time, absent.max_turn_time)?;
    let timeout = limit("timeout", table.timeout, absent.timeout)?;
    let times = [step_timeout, max_turn_time, timeout];
    Ok(RunLimits {
        step_timeout,
        max_turn_time,
        timeout,
        observe: observe(table.observe, place, &times, absent.observe)?,
        partial: partial.or(absent.partial).filter(|bytes| *bytes > 0),
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

/// No limits but one: a run with nothing in flight ends some day.
impl Default for RunLimits {
    fn default() -> Self {
        Self {
            step_timeout: None,
            max_turn_time: None,
            timeout: None,
            idle: Some(RunRegistry::IDLE),
            max_turns: None,
            idle_breaker: None,
            observe: false,
            partial: None,
        }
    }
}
