use std::{error::Error, fmt, str::FromStr};

use tokio::time::Instant;

use super::RunRegistry;
use crate::run::{Run, RunSnapshot};

/// A part of what a registry knows: see [`RunRegistry::page`].
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct RunPage {
    /// The newest run first.
    pub runs: Vec<RunSnapshot>,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<RunCursor>,
}

/// Where a [`RunPage`] begins: behind the run that this stands for, whether or not the
/// registry still knows that run. Text of up to 20 digits, for a query of one's own; of
/// another registry it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunCursor(u64);

/// A text that is no [`RunCursor`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRunCursor;

impl RunRegistry {
    /// How many runs live: those that have a snapshot without a reason. Costs the same
    /// however many there are.
    ///
    /// A run whose deadline has passed, and which nothing else looked at since, counts
    /// for up to [`SAFETY`](Self::SAFETY) more.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry, TerminalReason};
    ///
    /// let registry = RunRegistry::new();
    /// let run = registry.open(Owner::default(), "nightly".parse()?);
    /// assert_eq!(registry.open_runs(), 1);
    ///
    /// run.end(TerminalReason::Completed);
    /// assert_eq!(registry.open_runs(), 0);
    /// # Ok::<_, tower_agent::InvalidRunId>(())
    /// ```
    #[must_use]
    pub fn open_runs(&self) -> usize {
        self.shared.tidy();
        self.shared.count_live()
    }

    /// At most `limit`, and at least one, of the runs that live or are remembered, the
    /// newest first, from behind `after` on. Only these are made snapshots of.
    ///
    /// Pages that follow one another show each run at most once, and none that was
    /// opened after the first of them was asked for; a run that is forgotten meanwhile
    /// is left out.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry};
    ///
    /// let registry = RunRegistry::new();
    /// for id in ["a", "b", "c"] {
    ///     let _run = registry.open(Owner::default(), id.parse()?);
    /// }
    ///
    /// let page = registry.page(None, 2);
    /// assert_eq!(page.runs[0].run.to_string(), "c");
    /// let last = registry.page(page.next, 2);
    /// assert_eq!(last.runs[0].run.to_string(), "a");
    /// assert!(last.next.is_none());
    /// # Ok::<_, tower_agent::InvalidRunId>(())
    /// ```
    #[must_use]
    pub fn page(&self, after: Option<RunCursor>, limit: usize) -> RunPage {
        self.shared.tidy();
        let limit = limit.max(1);
        let before = after.map_or(u64::MAX, |RunCursor(serial)| serial);
        // One more than is shown: it says whether there is a next page.
        let mut runs = self.shared.newest(before, limit.saturating_add(1));
        let is_last = runs.len() <= limit;
        runs.truncate(limit);
        let now = Instant::now();
        for (_, run) in &runs {
            run.node().check_below(run.at(now));
        }
        let last = runs.last().map_or(before, |(serial, _)| *serial);
        RunPage {
            runs: runs.iter().map(|(_, run)| Run::snapshot(run)).collect(),
            next: (!is_last).then_some(RunCursor(last)),
        }
    }
}

impl fmt::Display for RunCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RunCursor {
    type Err = InvalidRunCursor;

    /// # Errors
    ///
    /// If the text is no number that a cursor prints as.
    fn from_str(text: &str) -> Result<Self, InvalidRunCursor> {
        // `u64::from_str` also takes a sign.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let serial = text.parse().ok().filter(|_| is_number);
        serial.map(Self).ok_or(InvalidRunCursor)
    }
}

impl fmt::Display for InvalidRunCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a cursor that a page of runs ended with")
    }
}

impl Error for InvalidRunCursor {}
