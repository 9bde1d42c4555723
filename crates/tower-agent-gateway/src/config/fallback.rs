//! `[fallback]`, and the idle breaker of `[run]` and `[agents.NAME]`.

use toml::Spanned;

use super::error::Problem;
use super::file;
use super::{Fallback, IdleBreaker, number};

/// The idle breaker of `preset = "recommended"`.
pub(super) const PRESET: IdleBreaker = IdleBreaker {
    silent: 5,
    fails_over: false,
};

/// The largest limit of silent attempts; 0 switches the breaker off.
const MOST_SILENT: u32 = 1_000;

/// Resolves the table. Without its keys and the preset, calls pass over no candidate.
pub(super) fn fallback(table: file::FallbackTable, recommended: bool) -> Fallback {
    Fallback {
        cooldown: table.cooldown.unwrap_or(recommended),
        sticky: table.sticky.unwrap_or(recommended),
    }
}

pub(super) fn idle_breaker(
    silent: file::Number,
    fails_over: Option<Spanned<bool>>,
    place: &str,
    absent: Option<IdleBreaker>,
) -> Result<Option<IdleBreaker>, Problem> {
    let silent = number::count(&format!("{place}.idle_breaker"), silent, 0..=MOST_SILENT)?;
    let silent = silent.or(absent.map(|absent| absent.silent));
    let silent = silent.filter(|silent| *silent > 0);
    let over = fails_over.as_ref().map(|over| *over.get_ref());
    if let (Some(true), None, Some(key)) = (over, silent, &fails_over) {
        let message = format!("{place}.idle_fails_over does nothing without {place}.idle_breaker");
        return Err(Problem::new(message).at(key.span()));
    }
    let over = over.or(absent.map(|absent| absent.fails_over));
    Ok(silent.map(|silent| IdleBreaker {
        silent,
        fails_over: over.unwrap_or(false),
    }))
}
