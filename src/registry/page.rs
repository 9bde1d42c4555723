use std::{error::Error, fmt, str::FromStr, time::Duration};

use tokio::time::Instant;

use super::{RunRegistry, check_trees};
use crate::run::{Run, RunSnapshot};

/// A part of a registry's runs: see [`RunRegistry::page`].
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct RunPage {
    /// The snapshots of the page's runs, newest first.
    pub runs: Vec<RunSnapshot>,
    /// The place of each of `runs` in the registry, in the same order.
    pub places: Vec<RunPlace>,
    /// The cursor of this page: a page after it begins with the same run, whichever runs are opened
    /// meanwhile.
    pub start: RunCursor,
    /// The cursor of the next page; `None` if this page is the last.
    pub next: Option<RunCursor>,
}

/// The place of a run of a [`RunPage`], by which pages of several registries can be merged.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPlace {
    /// The cursor behind the run: a page after it begins with the next run of the page.
    pub cursor: RunCursor,
    /// The time since the run was opened in this registry.
    ///
    /// A run that another replica opened before is older than this: its
    /// [`elapsed`](RunSnapshot::elapsed) counts from there.
    pub age: Duration,
}

/// A cursor in a registry's runs: the next [`RunPage`] begins after its run.
/// [`END`](Self::END) is that of an empty page.
///
/// The registry need not remember that run. The cursor prints as a text of up to 20 digits, to
/// pass in a query. In another registry the cursor means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunCursor(u64);

/// The error for a text that cannot be parsed as a [`RunCursor`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRunCursor;

impl RunRegistry {
    /// The number of live runs in the registry: those without a reason in their snapshot.
    ///
    /// Apart from upkeep that is due, the cost does not depend on the number. A run past its
    /// deadline that no task has checked since counts for up to [`SAFETY`](Self::SAFETY) more.
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
        self.state.tidy();
        let mut live = 0;
        self.state.each(|entries| live += entries.count_live());
        live
    }

    /// A page of the registry's live and remembered runs, newest first.
    ///
    /// The page begins after the run of the cursor `after`, or with the newest run. The page holds
    /// at most `limit` runs; a `limit` of zero counts as one. Only these runs cost a snapshot.
    ///
    /// Consecutive pages show each run at most once. The pages show no run that was opened after
    /// the request for the first page, and leave out runs that are forgotten meanwhile.
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
        self.state.tidy();
        let limit = limit.max(1);
        let before = after.map_or(u64::MAX, |RunCursor(serial)| serial);
        // One run more than the page holds shows whether there is a next page.
        let mut runs = self.state.newest(before, limit.saturating_add(1));
        let (is_last, now) = (runs.len() <= limit, Instant::now());
        runs.truncate(limit);
        check_trees(runs.iter().map(|(.., run)| run), now);
        let last = runs.last().map_or(before, |(serial, ..)| *serial);
        let newest = runs.first().map_or(0, |(serial, ..)| serial + 1);
        let places = runs.iter().map(|(serial, opened, _)| RunPlace {
            cursor: RunCursor(*serial),
            age: now.saturating_duration_since(*opened),
        });
        RunPage {
            places: places.collect(),
            runs: runs.iter().map(|(.., run)| Run::snapshot(run)).collect(),
            start: RunCursor(newest),
            next: (!is_last).then_some(RunCursor(last)),
        }
    }
}

impl RunCursor {
    /// The cursor behind all runs: a page after it is empty, also of a registry that opens runs
    /// meanwhile.
    pub const END: Self = Self(0);
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
    /// [`InvalidRunCursor`] if the text is empty, has other characters than digits, or exceeds
    /// [`u64::MAX`].
    fn from_str(text: &str) -> Result<Self, InvalidRunCursor> {
        // `u64::from_str` would also take a leading `+`, which no cursor prints.
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
