//! The retry budget: its settings, its buckets, and the permits that it grants.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    backoff::{Backoff, Delays, Jitter},
    bucket::{Bucket, Buckets, PermitSource, Rates},
};
use crate::{
    llm::failure::FailureClass,
    run::{ErrorCounts, Run},
};

/// How often what failed may be tried again: see the
/// [module](crate::layers::retry_budget).
///
/// Cheap to clone. Clones share what was spent; each has its own settings, so
/// a setter changes nothing for the others.
///
/// ```
/// use std::time::Duration;
/// use tower_agent::RetryBudget;
///
/// let budget = RetryBudget::new()
///     .max_attempts_per_candidate(3)
///     .per_run(20)
///     .delays(Duration::from_millis(200), Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget(Arc<Settings>);

impl RetryBudget {
    /// Two attempts per candidate and call; three repeats of one failure and
    /// ten failures per run; a fifth of the first attempts repeated, and ten
    /// repeats per second in any case.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Settings::new()))
    }

    /// How often one candidate is tried within a call, the first attempt
    /// included. By default 2; with 1 nothing is repeated.
    ///
    /// # Panics
    ///
    /// If `attempts` is zero.
    #[must_use]
    pub fn max_attempts_per_candidate(self, attempts: u32) -> Self {
        assert!(attempts > 0, "a candidate must have at least one attempt");
        self.set(|settings| settings.max_attempts_per_candidate = attempts)
    }

    /// How often a run may repeat the same failure: with the default of 3 its
    /// fourth occurrence ends the run. Successes do not reset it. `None`: as
    /// often as it likes.
    #[must_use]
    pub fn per_error_key(self, repeats: impl Into<Option<u32>>) -> Self {
        self.set(|settings| settings.per_error_key = repeats.into())
    }

    /// How many failures of any kind a run may have: with the default of 10
    /// the eleventh ends it. Successes do not reset it. `None`: any number.
    #[must_use]
    pub fn per_run(self, failures: impl Into<Option<u32>>) -> Self {
        self.set(|settings| settings.per_run = failures.into())
    }

    /// How many failures in a row a run may have, whatever failed: with 5 the sixth
    /// ends it, unless a call or a tool succeeded between them. Only what reaches the
    /// harness counts, also under [`Count::Every`]. Off by default.
    #[must_use]
    pub fn consecutive_errors(self, failures: impl Into<Option<u32>>) -> Self {
        self.set(|settings| settings.consecutive_errors = failures.into())
    }

    /// What all runs together may repeat, per candidate: `ratio` repeats per
    /// first attempt (by default 0.2, kept to the thousandth), and `floor`
    /// repeats per second (by default 10) in any case.
    ///
    /// Deposits are used up first. They do not expire, and pile up to ten
    /// seconds of the floor, at least to 10 repeats; the floor piles up to one
    /// second of it. What was spent starts anew, and is no longer shared with
    /// earlier clones.
    ///
    /// # Panics
    ///
    /// If `ratio` is not a number from 0 to 10.
    #[must_use]
    pub fn shared(self, ratio: f64, floor: u32) -> Self {
        let buckets = Arc::new(Buckets::new(Rates::new(ratio, floor)));
        self.set(|settings| settings.buckets = Some(buckets))
    }

    /// Runs do not share a budget: in an outage each repeats as if it were
    /// alone.
    #[must_use]
    pub fn unshared(self) -> Self {
        self.set(|settings| settings.buckets = None)
    }

    /// How long to wait before a repeat, unless the upstream says so: jittered
    /// from `base` (by default 500 ms), which grows with each repeat up to
    /// `max` (8 s). A `base` above `max` counts as `max`. An upstream that is
    /// overloaded is given four times the `base`.
    #[must_use]
    pub fn delays(self, base: Duration, max: Duration) -> Self {
        self.set(|settings| (settings.delays.base, settings.delays.max) = (base, max))
    }

    /// How waits are spread, by default [`Jitter::Full`].
    #[must_use]
    pub fn jitter(self, jitter: Jitter) -> Self {
        self.set(|settings| settings.delays.jitter = jitter)
    }

    /// The longest wait that an upstream may ask for, by default 60 s. If it
    /// asks for more the same candidate is not asked again.
    #[must_use]
    pub fn max_retry_after(self, max: Duration) -> Self {
        self.set(|settings| settings.max_retry_after = max)
    }

    /// What must be left of the time after the wait for another attempt to be
    /// worth it, by default 100 ms.
    #[must_use]
    pub fn min_attempt(self, min: Duration) -> Self {
        self.set(|settings| settings.min_attempt = min)
    }

    /// Which failures count towards [`per_error_key`](Self::per_error_key) and
    /// [`per_run`](Self::per_run), by default [`Count::Harness`].
    #[must_use]
    pub fn count(self, count: Count) -> Self {
        self.set(|settings| settings.count = count)
    }

    /// How many attempts of a run may be silent for their step window, one after
    /// another, and what is done about it: five are recommended. Anything that
    /// is not silent, an error of the upstream too, starts the count anew. Off
    /// by default. Calls that failed in silence are also failures of one kind, of
    /// which [`per_error_key`](Self::per_error_key) may end the run before.
    ///
    /// # Panics
    ///
    /// If `silent` is zero.
    #[must_use]
    pub fn idle_breaker(self, silent: u32, then: IdleBreaker) -> Self {
        assert!(silent > 0, "a run must have at least one attempt");
        self.set(|settings| settings.idle_breaker = Some((silent, then)))
    }

    /// Asked before every repeat and every fallback, after everything but the
    /// budgets has agreed; `false` refuses it. It runs on the request path and
    /// must not block. A later one replaces it.
    #[must_use]
    pub fn before_attempt(
        self,
        hook: impl Fn(&NextAttempt<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.before_attempt = Some(Arc::new(hook)))
    }

    /// A first attempt goes to `candidate`: it pays for a part of a repeat.
    ///
    /// For retry loops of your own, as [`withdraw`](Self::withdraw) and
    /// [`counts`](Self::counts) are: layers do it themselves.
    #[inline]
    pub fn deposit(&self, candidate: Option<&str>) {
        if let Some(bucket) = self.bucket(candidate) {
            bucket.deposit();
        }
    }

    /// Leave for one repeat to `candidate`, or `None` if the candidate has
    /// none left. Given back unless it is [spent](Permit::spend).
    ///
    /// ```
    /// use tower_agent::RetryBudget;
    ///
    /// let budget = RetryBudget::new().shared(0.5, 0);
    /// budget.deposit(Some("large"));
    /// assert!(budget.withdraw(Some("large")).is_none());
    ///
    /// budget.deposit(Some("large"));
    /// let grant = budget.withdraw(Some("large")).expect("two halves");
    /// // wait here; if the wait is cut, the repeat goes back
    /// grant.spend();
    /// ```
    #[inline]
    #[must_use = "dropped, it gives the repeat back"]
    pub fn withdraw(&self, candidate: Option<&str>) -> Option<Permit<'_>> {
        let Some(buckets) = &self.0.buckets else {
            return Some(Permit::unshared());
        };
        Permit::withdraw(buckets.of(candidate), || buckets.now())
    }

    /// Counts for one run, with this budget's limits; nothing is counted yet.
    #[must_use]
    pub fn counts(&self) -> ErrorCounts {
        let counts = ErrorCounts::new(self.0.per_error_key, self.0.per_run);
        counts.tighten_in_a_row(self.0.consecutive_errors);
        counts
    }

    /// Limits how many errors the nearest run of `run` may make, in all, in a row and of
    /// one kind: what this budget says, and never more than a budget said before. The
    /// layers do it for a run of calls; this is for one of tools alone.
    pub fn limit_errors(&self, run: &Run) {
        let settings = self.settings();
        run.tighten_errors(
            settings.per_error_key,
            settings.per_run,
            settings.consecutive_errors,
        );
    }

    /// The same for a call of the run.
    pub(crate) fn limit_errors_of_call(&self, call: &Run) {
        // A run that is one call is over with the first failure that reaches it.
        let counts = self.settings().count == Count::Every;
        if counts || !call.is_single() {
            self.limit_errors(call);
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0
    }

    /// Whether a run ends whose attempts were silent.
    pub(crate) fn ends_idle_runs(&self) -> bool {
        let breaker = self.0.idle_breaker;
        breaker.is_some_and(|(_, then)| then == IdleBreaker::End)
    }

    /// The shared bucket of a candidate.
    pub(crate) fn bucket(&self, candidate: Option<&str>) -> Option<&Arc<Bucket>> {
        let buckets = self.0.buckets.as_ref()?;
        Some(buckets.of(candidate))
    }

    /// The waits of one call. Seeded from the run, so that runs which failed
    /// together do not come back together.
    pub(crate) fn backoff(&self, seed: u64) -> Backoff {
        Backoff::new(self.0.delays, seed)
    }

    /// Whether the program's hook has nothing against it.
    pub(crate) fn allows(&self, next: &NextAttempt<'_>) -> bool {
        self.0.before_attempt.as_ref().is_none_or(|hook| hook(next))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

/// Which failures the limits of a run count.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Count {
    /// Those that reach the harness: a call that failed after all its
    /// attempts, an error of a tool.
    #[default]
    Harness,
    /// Attempts inside a call as well.
    Every,
}

/// What a run comes to whose attempts were silent, one after another.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IdleBreaker {
    /// It ends, as [`IdleCircuitOpen`](crate::TerminalReason::IdleCircuitOpen).
    #[default]
    End,
    /// A silent candidate is not asked again; another one is.
    FailOver,
}

/// What is about to be started, for the hook
/// [`before_attempt`](crate::attempt::RetryBudget::before_attempt).
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct NextAttempt<'a> {
    /// The call whose attempt it will be.
    pub run: &'a Run,
    /// Its number within the call; the first attempt, which no hook sees, is 1.
    pub attempt: u32,
    /// Whom it goes to, if the request names a candidate.
    pub candidate: Option<&'a str>,
    /// How the attempt before it failed.
    pub after: FailureClass,
}

pub(super) type AttemptHook = dyn Fn(&NextAttempt<'_>) -> bool + Send + Sync;

/// What a budget is set to, and the buckets that its clones share.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) max_attempts_per_candidate: u32,
    pub(crate) per_error_key: Option<u32>,
    pub(crate) per_run: Option<u32>,
    pub(crate) consecutive_errors: Option<u32>,
    pub(crate) delays: Delays,
    pub(crate) max_retry_after: Duration,
    pub(crate) min_attempt: Duration,
    pub(crate) count: Count,
    pub(crate) idle_breaker: Option<(u32, IdleBreaker)>,
    pub(super) buckets: Option<Arc<Buckets>>,
    pub(super) before_attempt: Option<Arc<AttemptHook>>,
}

impl Settings {
    pub(super) fn new() -> Self {
        Self {
            max_attempts_per_candidate: 2,
            per_error_key: Some(3),
            per_run: Some(10),
            consecutive_errors: None,
            delays: Delays {
                base: Duration::from_millis(500),
                max: Duration::from_secs(8),
                jitter: Jitter::Full,
            },
            max_retry_after: Duration::from_secs(60),
            min_attempt: Duration::from_millis(100),
            count: Count::Harness,
            idle_breaker: None,
            buckets: Some(Arc::new(Buckets::new(Rates::new(0.2, 10)))),
            before_attempt: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field(
                "max_attempts_per_candidate",
                &self.max_attempts_per_candidate,
            )
            .field("per_error_key", &self.per_error_key)
            .field("per_run", &self.per_run)
            .field("consecutive_errors", &self.consecutive_errors)
            .field("delays", &self.delays)
            .field("max_retry_after", &self.max_retry_after)
            .field("min_attempt", &self.min_attempt)
            .field("count", &self.count)
            .field("idle_breaker", &self.idle_breaker)
            .field("buckets", &self.buckets)
            .field("before_attempt", &self.before_attempt.is_some())
            .finish()
    }
}

/// Leave for one repeat, from [`RetryBudget::withdraw`](crate::attempt::RetryBudget::withdraw).
///
/// Dropped without [`spend`](Self::spend) it gives the repeat back: the wait
/// before a repeat is often cut by the end of the run.
#[derive(Debug)]
#[must_use = "dropped, it gives the repeat back"]
pub struct Permit<'a> {
    /// What goes back on a drop; nothing from a budget that is not shared.
    from: Option<(Lender<'a>, PermitSource)>,
}

/// Borrowed where it can be: threads that count references to one bucket
/// hinder each other as much as those that withdraw from it.
#[derive(Debug)]
enum Lender<'a> {
    Borrowed(&'a Arc<Bucket>),
    Owned(Arc<Bucket>),
}

impl<'a> Permit<'a> {
    pub(super) const fn unshared() -> Self {
        Self { from: None }
    }

    #[inline]
    pub(super) fn withdraw(bucket: &'a Arc<Bucket>, now: impl FnOnce() -> u64) -> Option<Self> {
        let source = bucket.withdraw(now)?;
        Some(Self {
            from: Some((Lender::Borrowed(bucket), source)),
        })
    }

    /// The repeat starts now: nothing goes back any more.
    #[inline]
    pub fn spend(mut self) {
        self.from = None;
    }

    /// The same, to be kept beside or beyond the budget.
    pub fn into_owned(mut self) -> Permit<'static> {
        let from = self.from.take().map(|(lender, source)| match lender {
            Lender::Borrowed(bucket) => (Lender::Owned(Arc::clone(bucket)), source),
            Lender::Owned(bucket) => (Lender::Owned(bucket), source),
        });
        Permit { from }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((lender, source)) = self.from.take() {
            match lender {
                Lender::Borrowed(bucket) => bucket.refund(source),
                Lender::Owned(bucket) => bucket.refund(source),
            }
        }
    }
}
