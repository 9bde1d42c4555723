//! Notices that a run is still working, about a step that takes long.

use std::time::Duration;

use crate::run::{report::RunNotice, step::Step};

/// The times at which a run sends [`RunNotice::Working`](crate::run::RunNotice::Working) about a
/// slow step.
///
/// By default notices come after 30 s in one step, then every 60 s, at most ten times, and not
/// within 30 s of content that reached the caller. Each step has a count of its own, and so has
/// each of several tools that run at the same time.
///
/// ```
/// use std::time::Duration;
/// use tower_agent::{ProgressNotices, Run};
///
/// let run = Run::open();
/// run.notices(ProgressNotices::new().after(Duration::from_secs(10)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressNotices {
    after: Duration,
    every: Duration,
    at_most: u32,
    quiet: Duration,
}

/// The state of the notices about one step. The time before the first notice counts from the step's
/// first wait.
#[derive(Debug)]
pub(crate) struct WorkingNotices {
    notices: ProgressNotices,
    began: Option<Duration>,
    next: Duration,
    sent: u32,
    /// Whether content of the step reached the caller since the last wait.
    has_content: bool,
}

impl ProgressNotices {
    /// Makes the default schedule of notices.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            after: Duration::from_secs(30),
            every: Duration::from_secs(60),
            at_most: 10,
            quiet: Duration::from_secs(30),
        }
    }

    /// Sets the time in a step before its first notice; zero turns notices off.
    #[must_use]
    pub const fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// Sets the time between the notices of one step; zero allows only the first.
    #[must_use]
    pub const fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Sets the maximum of notices for one step; zero turns notices off.
    #[must_use]
    pub const fn at_most(mut self, notices: u32) -> Self {
        self.at_most = notices;
        self
    }

    /// Sets how long content that reached the caller delays a notice.
    ///
    /// A notice that is due during the delay comes when the delay is over. With zero, content
    /// delays no notice.
    #[must_use]
    pub const fn quiet(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    pub(in crate::run) const fn is_on(&self) -> bool {
        !self.after.is_zero() && self.at_most > 0
    }
}

impl Default for ProgressNotices {
    fn default() -> Self {
        Self::new()
    }
}

impl WorkingNotices {
    /// Makes the state for the notices about a new step; `None` if notices are off.
    pub(crate) fn new(notices: ProgressNotices) -> Option<Self> {
        notices.is_on().then_some(Self {
            notices,
            began: None,
            next: Duration::ZERO,
            sent: 0,
            has_content: false,
        })
    }

    /// Records that content reached the caller. The next wait supplies the time.
    #[inline]
    pub(crate) const fn show(&mut self) {
        self.has_content = true;
    }

    /// Records that the step waits at `now`. Returns how long the step has been running if a notice
    /// is due; several overdue notices become one.
    pub(crate) fn wait(&mut self, now: Duration) -> Option<Duration> {
        let notices = &self.notices;
        let began = *self.began.get_or_insert_with(|| {
            self.next = now.saturating_add(notices.after);
            now
        });
        if std::mem::take(&mut self.has_content) {
            self.next = self.next.max(now.saturating_add(notices.quiet));
        }
        if self.next()? > now {
            return None;
        }
        self.sent += 1;
        self.next = now.saturating_add(self.notices.every);
        Some(now.saturating_sub(began))
    }

    /// The time at which the step's next notice is due. `None` before the first wait, and after the
    /// last notice.
    pub(crate) fn next(&self) -> Option<Duration> {
        let again = self.sent == 0 || !self.notices.every.is_zero();
        let is_due = self.began.is_some() && again && self.sent < self.notices.at_most;
        is_due.then_some(self.next)
    }
}

impl RunNotice {
    pub(crate) fn working(step: Step, running_for: Duration) -> Self {
        let seconds = running_for.as_secs();
        Self::Working {
            message: format!("Still working: {step} has been running for {seconds} s"),
            step,
            running_for,
        }
    }
}

#[cfg(test)]
mod tests {
    //! covers: B4

    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The times of the notices about a step that begins at 7 s, in seconds since then. The step is
    /// polled when its next notice is due, and at each time of `shown`, when content reaches the
    /// caller.
    fn told(notices: ProgressNotices, shown: &[u64]) -> Vec<u64> {
        let mut working = WorkingNotices::new(notices).unwrap();
        let mut told = Vec::new();
        let mut shown = shown.iter().map(|at| secs(7 + at)).peekable();
        let mut now = secs(7);
        while now < secs(4000) {
            if shown.next_if(|at| *at <= now).is_some() {
                working.show();
            }
            if let Some(running_for) = working.wait(now) {
                assert_eq!(running_for, now - secs(7));
                told.push(running_for.as_secs());
            }
            let Some(next) = working
                .next()
                .into_iter()
                .chain(shown.peek().copied())
                .min()
            else {
                break;
            };
            now = next.max(now);
        }
        told
    }

    #[test]
    fn after_thirty_seconds_then_every_minute_ten_times() {
        let all: Vec<_> = (0..10).map(|n| 30 + 60 * n).collect();
        assert_eq!(told(ProgressNotices::new(), &[]), all);
    }

    #[test]
    fn what_was_handed_on_puts_them_off() {
        let three = ProgressNotices::new().at_most(3);
        assert_eq!(told(three, &[20]), [50, 110, 170]);
        assert_eq!(told(three, &[20, 45, 130]), [75, 160, 220]);
        assert_eq!(told(three.quiet(Duration::ZERO), &[20]), [30, 90, 150]);
    }

    #[test]
    fn zero_is_off() {
        assert!(WorkingNotices::new(ProgressNotices::new().after(Duration::ZERO)).is_none());
        assert!(WorkingNotices::new(ProgressNotices::new().at_most(0)).is_none());
        assert_eq!(
            told(ProgressNotices::new().every(Duration::ZERO), &[]),
            [30]
        );
    }

    #[test]
    fn those_that_nobody_looked_for_are_one() {
        let mut working = WorkingNotices::new(ProgressNotices::new()).unwrap();
        assert_eq!(working.wait(secs(0)), None);
        assert_eq!(working.wait(secs(200)), Some(secs(200)));
        assert_eq!(working.wait(secs(200)), None);
        assert_eq!(working.next(), Some(secs(260)));
    }

    #[test]
    fn the_largest_values_are_never() {
        let never = ProgressNotices::new()
            .after(Duration::MAX)
            .every(Duration::MAX);
        let mut working = WorkingNotices::new(never).unwrap();
        assert_eq!(working.wait(secs(5)), None);
        assert_eq!(working.next(), Some(Duration::MAX));
    }
}
