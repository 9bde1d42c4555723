//! "Still working": what people are told of a step that takes long.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::run::{kinds::Step, report::RunNotice};

/// When people are told that a step is still under way:
/// [`RunNotice::Working`](crate::run::RunNotice::Working).
///
/// After 30 s in one step, then every 60 s, at most ten times, and not within
/// 30 s of content that was handed to the caller. Each step is counted on its
/// own, also of tools that run at the same time.
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

/// What a run asks for.
#[derive(Debug, Default)]
pub(crate) struct NoticeSettings(Mutex<Option<ProgressNotices>>);

/// One step, from its first wait on: when the next notice is due.
#[derive(Debug)]
pub(crate) struct WorkingNotices {
    notices: ProgressNotices,
    began: Option<Duration>,
    next: Duration,
    told: u32,
    /// Content was handed on since the last wait.
    shown: bool,
}

impl ProgressNotices {
    /// The default.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            after: Duration::from_secs(30),
            every: Duration::from_secs(60),
            at_most: 10,
            quiet: Duration::from_secs(30),
        }
    }

    /// How long a step goes on before the first; zero for none at all.
    #[must_use]
    pub const fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// From one to the next; zero for no second one.
    #[must_use]
    pub const fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// How many there are of one step; zero for none at all.
    #[must_use]
    pub const fn at_most(mut self, notices: u32) -> Self {
        self.at_most = notices;
        self
    }

    /// How long content that the caller was handed speaks for itself: one that is
    /// due within it comes at its end. Zero if it does not matter.
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
    /// None if there is nothing to tell.
    pub(crate) fn new(notices: ProgressNotices) -> Option<Self> {
        notices.is_on().then_some(Self {
            notices,
            began: None,
            next: Duration::ZERO,
            told: 0,
            shown: false,
        })
    }

    /// Content was handed to the caller. When, the next wait tells.
    #[inline]
    pub(crate) const fn show(&mut self) {
        self.shown = true;
    }

    /// The step is waited for at `now`. Answers how long it has been running, if
    /// it is time to say so; several that were due at once are one.
    pub(crate) fn wait(&mut self, now: Duration) -> Option<Duration> {
        let notices = &self.notices;
        let began = *self.began.get_or_insert_with(|| {
            self.next = now.saturating_add(notices.after);
            now
        });
        if std::mem::take(&mut self.shown) {
            self.next = self.next.max(now.saturating_add(notices.quiet));
        }
        if self.next()? > now {
            return None;
        }
        self.told += 1;
        self.next = now.saturating_add(self.notices.every);
        Some(now.saturating_sub(began))
    }

    /// When to look again; none if nothing more is told, or nothing was waited for
    /// yet.
    pub(crate) const fn next(&self) -> Option<Duration> {
        if self.began.is_none() {
            return None;
        }
        let again = self.told == 0 || !self.notices.every.is_zero();
        if again && self.told < self.notices.at_most {
            Some(self.next)
        } else {
            None
        }
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

impl NoticeSettings {
    pub(in crate::run) fn with<R>(&self, f: impl FnOnce(&mut Option<ProgressNotices>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in crate::run) fn set(&self, notices: ProgressNotices) {
        self.with(|asked| *asked = Some(notices));
    }

    pub(in crate::run) fn suggest(&self, notices: ProgressNotices) {
        self.with(|asked| *asked = asked.or(Some(notices)));
    }

    pub(in crate::run) fn get(&self) -> Option<ProgressNotices> {
        self.with(|asked| *asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// When notices come of a step that begins at 7 s and is looked at when it asks
    /// for it, and at `shown`, when content is handed on.
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
