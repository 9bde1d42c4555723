//! `[progress]`: notices and keep-alive comments of calls that take long.

use std::time::Duration;

use super::error::Problem;
use super::file;
use super::limit::Limit;

/// The times of `[progress]`; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// How long a step takes before observers are told.
    pub(crate) notify_after: Option<Duration>,
    /// How long a stream may be silent before the gateway sends a comment in it.
    pub(crate) keep_alive: Option<Duration>,
    /// Whether a notice to observers is also a comment in the stream.
    pub(crate) comments: bool,
}

/// The defaults of the table's keys.
const NOTIFY_AFTER: Duration = Duration::from_secs(30);
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Resolves the table. No preset turns it on, because it is not a limit.
pub(super) fn progress(table: Option<file::ProgressTable>) -> Result<Option<Progress>, Problem> {
    let Some(table) = table else {
        return Ok(None);
    };
    let progress = Progress {
        notify_after: Limit::read("progress.notify_after", table.notify_after)?
            .or(Some(NOTIFY_AFTER)),
        keep_alive: Limit::read("progress.keep_alive", table.keep_alive)?.or(Some(KEEP_ALIVE)),
        comments: table.comments.unwrap_or(false),
    };
    let says = progress.notify_after.is_some() || progress.keep_alive.is_some();
    Ok(says.then_some(progress))
}
