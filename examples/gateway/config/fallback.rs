//! `[fallback]`: whom a call goes to when a candidate has failed before; and when a run ends of
//! which nothing is heard.

use super::error::Problem;
use super::file;
use super::{Fallback, IdleBreaker, number};

/// What `preset = "recommended"` stands for.
const SILENT: u32 = 5;

/// More silent attempts are no limit: 0 says so.
const MOST_SILENT: u32 = 1_000;

/// Without a table, and without the preset, every call asks every candidate.
pub(super) fn fallback(table: file::Fallback, recommended: bool) -> Fallback {
    Fallback {
        cooldown: table.cooldown.unwrap_or(recommended),
        sticky: table.sticky.unwrap_or(recommended),
    }
}

pub(super) fn idle_breaker(
    silent: file::Number,
    fails_over: bool,
    recommended: bool,
) -> Result<Option<IdleBreaker>, Problem> {
    let silent = number::count("run.idle_breaker", silent, 0..=MOST_SILENT)?;
    let silent = silent.or(recommended.then_some(SILENT));
    let breaker = |silent| IdleBreaker { silent, fails_over };
    Ok(silent.filter(|silent| *silent > 0).map(breaker))
}
