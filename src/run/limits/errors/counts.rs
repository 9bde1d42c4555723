use std::sync::{Mutex, PoisonError};

use super::error_key::ErrorKey;

/// How many kinds of failure a run tells apart.
pub(super) const KEYS: usize = 64;

/// The failures of one run, counted against its limits.
///
/// ```
/// use tower_agent::{RetryBudget, run::{ErrorAllowance, ErrorKey}};
///
/// let counts = RetryBudget::new().per_error_key(1).counts();
/// let failed = |after| ErrorKey::new("search", &format!("timed out after {after} ms"));
///
/// assert_eq!(counts.count(failed(350)), ErrorAllowance::Within);
/// assert_eq!(counts.count(failed(1002)), ErrorAllowance::KeySpent);
/// ```
#[derive(Debug)]
pub struct ErrorCounts(Mutex<ErrorRows>);

/// What a count amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorAllowance {
    /// Within the limits: it may be tried again.
    Within,
    /// This kind of failure has been repeated as often as it may be.
    KeySpent,
    /// The run has had as many failures as it may.
    RunSpent,
    /// Both.
    BothSpent,
    /// The run has had as many failures in a row as it may, and neither of the
    /// others.
    RowSpent,
}

#[derive(Debug, Default)]
struct ErrorRows {
    per_key: Option<u32>,
    per_run: Option<u32>,
    in_a_row: Option<u32>,
    all: u32,
    /// Since the last success, of those that reached the harness.
    row: u32,
    /// At most `KEYS`: few enough to be looked through.
    keys: Vec<(ErrorKey, u32)>,
    /// All the other keys, as one.
    overflow: u32,
}

impl ErrorCounts {
    /// Nothing counted. With a limit of n the n + 1st is over it; `None` is no
    /// limit.
    #[must_use]
    pub fn new(per_key: Option<u32>, per_run: Option<u32>) -> Self {
        Self(Mutex::new(ErrorRows {
            per_key,
            per_run,
            ..ErrorRows::default()
        }))
    }

    /// Keeps the smaller of each limit and this one. What was counted stays.
    pub fn tighten(&self, per_key: Option<u32>, per_run: Option<u32>) {
        self.with(|counted| {
            counted.per_key = smaller(counted.per_key, per_key);
            counted.per_run = smaller(counted.per_run, per_run);
        });
    }

    /// The same for failures in a row, whatever failed.
    pub fn tighten_in_a_row(&self, limit: Option<u32>) {
        self.with(|counted| counted.in_a_row = smaller(counted.in_a_row, limit));
    }

    /// Counts one failure. Once over a limit, each further one is over it too.
    ///
    /// The first 64 keys of a run are told apart; all others count as one.
    pub fn count(&self, key: ErrorKey) -> ErrorAllowance {
        self.with(|counted| {
            let verdict = counted.add(key);
            match (verdict, counted.add_to_row()) {
                (ErrorAllowance::Within, true) => ErrorAllowance::RowSpent,
                (verdict, _) => verdict,
            }
        })
    }

    /// Something succeeded: the next failure is the first in a row.
    pub fn succeeded(&self) {
        self.with(|counted| counted.row = 0);
    }

    /// Counts one failure that may not be one of the run yet: another try may
    /// succeed.
    pub(crate) fn count_attempt(&self, key: ErrorKey) -> ErrorAllowance {
        self.with(|counted| counted.add(key))
    }

    /// What was counted as attempts has reached the harness. Answers whether that
    /// is one too many in a row.
    pub(crate) fn reached(&self) -> bool {
        self.with(ErrorRows::add_to_row)
    }

    /// How many were counted in all.
    pub(crate) fn all(&self) -> u32 {
        self.with(|counted| counted.all)
    }

    fn with<R>(&self, f: impl FnOnce(&mut ErrorRows) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ErrorRows {
    fn add(&mut self, key: ErrorKey) -> ErrorAllowance {
        self.all = self.all.saturating_add(1);
        let of_key = self.of_key(key);
        *of_key = of_key.saturating_add(1);
        let of_key = *of_key;
        let key_spent = self.per_key.is_some_and(|limit| of_key > limit);
        let run_spent = self.per_run.is_some_and(|limit| self.all > limit);
        match (key_spent, run_spent) {
            (false, false) => ErrorAllowance::Within,
            (true, false) => ErrorAllowance::KeySpent,
            (false, true) => ErrorAllowance::RunSpent,
            (true, true) => ErrorAllowance::BothSpent,
        }
    }

    fn add_to_row(&mut self) -> bool {
        self.row = self.row.saturating_add(1);
        self.in_a_row.is_some_and(|limit| self.row > limit)
    }

    fn of_key(&mut self, key: ErrorKey) -> &mut u32 {
        let known = self.keys.iter().position(|(known, _)| *known == key);
        let at = known.unwrap_or(self.keys.len());
        if at == KEYS {
            return &mut self.overflow;
        }
        if at == self.keys.len() {
            self.keys.push((key, 0));
        }
        &mut self.keys[at].1
    }
}

fn smaller(ours: Option<u32>, theirs: Option<u32>) -> Option<u32> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
        (ours, theirs) => ours.or(theirs),
    }
}
