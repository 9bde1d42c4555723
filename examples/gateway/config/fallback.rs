//! `[fallback]`: whom a call goes to when a candidate has failed before; and when a run ends of
//! which nothing is heard.

use toml::Spanned;

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
    fails_over: Option<Spanned<bool>>,
    recommended: bool,
) -> Result<Option<IdleBreaker>, Problem> {
    let silent = number::count("run.idle_breaker", silent, 0..=MOST_SILENT)?;
    let silent = silent.or(recommended.then_some(SILENT));
    let silent = silent.filter(|silent| *silent > 0);
    let over = fails_over.as_ref().is_some_and(|over| *over.get_ref());
    if let (true, None, Some(key)) = (over, silent, &fails_over) {
        let message = "run.idle_fails_over does nothing without run.idle_breaker";
        return Err(Problem::new(message).at(key.span()));
    }
    Ok(silent.map(|silent| IdleBreaker {
        silent,
        fails_over: over,
    }))
}
