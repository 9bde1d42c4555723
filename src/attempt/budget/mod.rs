//! The retry budget: its settings, the permits that it grants, and the waits before repeats.
//!
//! A budget limits repeats of failed attempts within a call, within a run, and of all runs
//! together.

mod bucket;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use self::bucket::{Bucket, Buckets, PermitSource, Rates};
use super::{failed_attempts::AttemptSummary, report::AfterAttempt};
use crate::{
    llm::failure::FailureClass,
    run::{ErrorCounts, Nanos, Run, nanos},
};

/// A budget for repeats of failed attempts: see the [module](crate::layers::retry_budget).
///
/// A budget is cheap to clone. Clones share the buckets that pay for repeats; each clone has its
/// own settings, so a setter does not change other clones.
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
    /// Makes a budget with the default limits.
    ///
    /// By default a call makes at most two attempts per candidate. A run allows three repeats of
    /// one failure, and ten failures. At one candidate all runs together may repeat a fifth as
    /// often as they make first attempts, and ten times per second in any case.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Settings {
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
            after_attempt: None,
        }))
    }

    /// How many attempts a call may make at one candidate, the first included; 2 by default.
    ///
    /// With a limit of 1 no attempt is repeated.
    ///
    /// # Panics
    ///
    /// If `attempts` is zero.
    #[must_use]
    pub fn max_attempts_per_candidate(self, attempts: u32) -> Self {
        assert!(attempts > 0, "a candidate must have at least one attempt");
        self.set(|settings| settings.max_attempts_per_candidate = attempts)
    }

    /// How often a run may repeat the same failure; 3 by default.
    ///
    /// With a limit of 3, the fourth occurrence of the failure ends the run. Under
    /// [`Count::Every`], the fourth such failure of an attempt ends no run, but the retry layer
    /// does not repeat it. Successes do not reset the count. `None` means any number.
    #[must_use]
    pub fn per_error_key(self, repeats: impl Into<Option<u32>>) -> Self {
        self.set(|settings| settings.per_error_key = repeats.into())
    }

    /// How many failures of any kind a run may have; 10 by default.
    ///
    /// With a limit of 10, the eleventh failure ends the run. Successes do not reset the
    /// count. `None` means any number.
    #[must_use]
    pub fn per_run(self, failures: impl Into<Option<u32>>) -> Self {
        self.set(|settings| settings.per_run = failures.into())
    }

    /// The number of failures of any kind in a row that ends a run; off by default.
    ///
    /// With a limit of 5, the fifth failure in a row ends the run. A limit of 0 acts as 1. A call
    /// or a tool that succeeds begins a new row; only failures that reach the harness count, also
    /// under [`Count::Every`].
    #[must_use]
    pub fn consecutive_errors(self, failures: impl Into<Option<u32>>) -> Self {
        self.set(|settings| settings.consecutive_errors = failures.into())
    }

    /// How often all runs together may repeat attempts at one candidate.
    ///
    /// All runs together may make `ratio` repeats per first attempt (by default 0.2, rounded
    /// to the thousandth), and `floor` repeats per second (by default 10) in any case.
    ///
    /// Each first attempt deposits `ratio` of a repeat. A repeat uses the deposits first, then the
    /// floor. Deposits do not expire, and accumulate up to ten seconds of the floor, at least to 10
    /// repeats; the floor accumulates up to one second. The budget starts with new buckets, which
    /// earlier clones do not share.
    ///
    /// # Panics
    ///
    /// If `ratio` is not a number from 0 to 10.
    #[must_use]
    pub fn shared(self, ratio: f64, floor: u32) -> Self {
        let buckets = Arc::new(Buckets::new(Rates::new(ratio, floor)));
        self.set(|settings| settings.buckets = Some(buckets))
    }

    /// Removes the limit for all runs together: in an outage each run repeats on its own.
    #[must_use]
    pub fn unshared(self) -> Self {
        self.set(|settings| settings.buckets = None)
    }

    /// The wait before a repeat, unless the upstream names one.
    ///
    /// By default `base` is 500 ms and `max` is 8 s. The [`jitter`](Self::jitter) says how the
    /// waits grow from `base` up to `max`; a `base` above `max` counts as `max`. For an upstream
    /// that is overloaded or still starting, the `base` is four times as long.
    #[must_use]
    pub fn delays(self, base: Duration, max: Duration) -> Self {
        self.set(|settings| (settings.delays.base, settings.delays.max) = (base, max))
    }

    /// How the waits before repeats are spread; by default [`Jitter::Full`].
    #[must_use]
    pub fn jitter(self, jitter: Jitter) -> Self {
        self.set(|settings| settings.delays.jitter = jitter)
    }

    /// The longest wait that an upstream may ask for; by default 60 s.
    ///
    /// If an upstream asks for a longer wait, the retry layer does not repeat the call at its
    /// candidate.
    #[must_use]
    pub fn max_retry_after(self, max: Duration) -> Self {
        self.set(|settings| settings.max_retry_after = max)
    }

    /// The least time from the end of the wait to the call's next deadline; by default 100 ms.
    ///
    /// If less time is left for another attempt, none follows.
    #[must_use]
    pub fn min_attempt(self, min: Duration) -> Self {
        self.set(|settings| settings.min_attempt = min)
    }

    /// The failures that count for a run; by default [`Count::Harness`].
    ///
    /// The setting holds for [`per_error_key`](Self::per_error_key) and
    /// [`per_run`](Self::per_run).
    #[must_use]
    pub fn count(self, count: Count) -> Self {
        self.set(|settings| settings.count = count)
    }

    /// Limits the silent attempts of a run in a row; off by default.
    ///
    /// An attempt is silent if its step window ends it. `then` says what happens at the
    /// `silent`-th such attempt; five are recommended. An attempt that is not silent restarts the
    /// count, also one with an error of the upstream. Calls that fail in silence are failures of
    /// one kind too, so [`per_error_key`](Self::per_error_key) may end the run earlier.
    ///
    /// # Panics
    ///
    /// If `silent` is zero.
    #[must_use]
    pub fn idle_breaker(self, silent: u32, then: IdleBreaker) -> Self {
        assert!(silent > 0, "a run must have at least one attempt");
        self.set_idle_breaker(Some((silent, then)))
    }

    /// Sets the [idle breaker](Self::idle_breaker); `None` removes the one that the budget has.
    pub(crate) fn set_idle_breaker(self, breaker: Option<(u32, IdleBreaker)>) -> Self {
        self.set(|settings| settings.idle_breaker = breaker)
    }

    /// A hook before every repeat and every fallback; `false` refuses the attempt.
    ///
    /// The layers call the hook after all other checks except the run's error limits and the shared
    /// budget. The hook runs on the request path and must not block. A later hook replaces an
    /// earlier one.
    #[must_use]
    pub fn before_attempt(
        self,
        hook: impl Fn(&NextAttempt<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.before_attempt = Some(Arc::new(hook)))
    }

    /// A hook after every attempt, the first one included.
    ///
    /// The layer calls the hook once for each attempt. It does so when a failed attempt is
    /// classified, when the body of the answer that serves the call has ended or was dropped, and
    /// else when the attempt is over. An attempt that ends before the service is ready counts too.
    ///
    /// Of nested layers with hooks, only the innermost that made the attempt calls its own. The
    /// hook runs on the request path, also where bodies are dropped, and must not block; a panic
    /// in it is logged as `after_attempt panicked`. A later hook replaces an earlier one.
    ///
    /// ```
    /// use tower_agent::RetryBudget;
    ///
    /// let budget = RetryBudget::new().after_attempt(|tried| {
    ///     let tokens = tried.usage.map(|usage| usage.output_tokens);
    ///     println!("{:?}: {} {tokens:?}", tried.candidate, tried.reason);
    /// });
    /// ```
    #[must_use]
    pub fn after_attempt(self, hook: impl Fn(&AttemptSummary) + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.after_attempt = Some(Arc::new(hook)))
    }

    /// Deposits what a first attempt at `candidate` earns: the `ratio` of a repeat. `None` is the
    /// bucket of attempts without a candidate; an unshared budget has no buckets.
    ///
    /// This method is for your own retry loops, as are [`withdraw`](Self::withdraw) and
    /// [`counts`](Self::counts). The layers deposit, withdraw and count by themselves.
    #[inline]
    pub fn deposit(&self, candidate: Option<&str>) {
        if let Some(bucket) = self.bucket(candidate) {
            bucket.deposit();
        }
    }

    /// A permit for one repeat to `candidate`. `None` if the candidate's bucket has neither the
    /// deposits for a whole repeat nor a repeat of the floor left. An unshared budget always grants
    /// a permit.
    ///
    /// A permit that is dropped before it is [spent](Permit::spend) gives the repeat back.
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

    /// Makes new error counts for one run, with this budget's limits.
    #[must_use]
    pub fn counts(&self) -> ErrorCounts {
        let counts = ErrorCounts::new(self.0.per_error_key, self.0.per_run);
        counts.tighten_in_a_row(self.0.consecutive_errors);
        counts
    }

    /// Limits the errors of the nearest run of `run`: in all, in a row and of one kind.
    ///
    /// The limits are this budget's, unless an earlier budget set lower ones; errors that the
    /// run made before count. The layers do this for a run of calls; call this method for a
    /// run of tools alone.
    pub fn limit_errors(&self, run: &Run) {
        let settings = self.settings();
        run.errors().tighten(
            settings.per_error_key,
            settings.per_run,
            settings.consecutive_errors,
        );
    }

    /// Limits the errors of the call's run, unless the run has one call and the budget counts only
    /// failures that reach the harness.
    pub(crate) fn limit_errors_of_call(&self, call: &Run) {
        // A run of one call ends with the first failure that reaches the harness.
        let counts = self.settings().count == Count::Every;
        if counts || !call.node().is_single() {
            self.limit_errors(call);
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0
    }

    /// Whether the budget's idle breaker ends the run, and does not only fail over.
    pub(crate) fn ends_idle_runs(&self) -> bool {
        let breaker = self.0.idle_breaker;
        breaker.is_some_and(|(_, then)| then == IdleBreaker::End)
    }

    /// The bucket that all runs share for repeats to a candidate; `None` in an unshared budget.
    pub(crate) fn bucket(&self, candidate: Option<&str>) -> Option<&Arc<Bucket>> {
        let buckets = self.0.buckets.as_ref()?;
        Some(buckets.of(candidate))
    }

    /// Makes the generator of one call's waits.
    ///
    /// Each call has its own seed, so that calls that failed together do not repeat together.
    pub(crate) fn backoff(&self, seed: u64) -> Backoff {
        Backoff::new(self.0.delays, seed)
    }

    /// Whether the program's hook, if there is one, allows the attempt.
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
    /// Failures that reach the agent's harness: calls after all their attempts, errors of tools.
    #[default]
    Harness,
    /// Failures that reach the harness, and failed attempts inside of a call.
    Every,
}

/// The effect of too many silent attempts in a row.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IdleBreaker {
    /// The run ends, as [`IdleCircuitOpen`](crate::TerminalReason::IdleCircuitOpen).
    #[default]
    End,
    /// The retry layer does not repeat the call at the silent candidate. The fallback layer may
    /// still move it to another one.
    FailOver,
}

/// The attempt that is about to start, as the hook of
/// [`before_attempt`](crate::attempt::RetryBudget::before_attempt) sees it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct NextAttempt<'a> {
    /// The node below which the layer opens the attempt. It is, for example, the call, or an
    /// attempt of an outer layer.
    pub run: &'a Run,
    /// The number of the attempt in the call, from 1. Attempts that failed before the service was
    /// called do not count. The hook is not called before a layer's first attempt.
    pub attempt: u32,
    /// The label of the attempt's candidate; `None` if no fallback layer chose one.
    pub candidate: Option<&'a str>,
    /// The class of the previous attempt's failure.
    pub after: FailureClass,
}

type AttemptHook = dyn Fn(&NextAttempt<'_>) -> bool + Send + Sync;

/// The settings of a budget, and the buckets that its clones share.
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
    buckets: Option<Arc<Buckets>>,
    before_attempt: Option<Arc<AttemptHook>>,
    pub(crate) after_attempt: Option<Arc<AfterAttempt>>,
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
            .field("after_attempt", &self.after_attempt.is_some())
            .finish()
    }
}

/// A permit for one repeat, from [`RetryBudget::withdraw`](crate::attempt::RetryBudget::withdraw).
///
/// A permit that is dropped before [`spend`](Self::spend) gives the repeat back: the end of
/// the run often cuts the wait before a repeat.
#[derive(Debug)]
#[must_use = "dropped, it gives the repeat back"]
pub struct Permit<'a> {
    /// The bucket that a drop refunds; `None` in an unshared budget, and once the permit is spent.
    ///
    /// A borrow saves the bucket's reference count, on which threads contend as much as on the
    /// bucket's own counts.
    from: Option<(Cow<'a, Arc<Bucket>>, PermitSource)>,
}

impl<'a> Permit<'a> {
    const fn unshared() -> Self {
        Self { from: None }
    }

    #[inline]
    fn withdraw(bucket: &'a Arc<Bucket>, now: impl FnOnce() -> u64) -> Option<Self> {
        let source = bucket.withdraw(now)?;
        Some(Self {
            from: Some((Cow::Borrowed(bucket), source)),
        })
    }

    /// Spends the permit: the repeat starts now, and no drop gives it back.
    #[inline]
    pub fn spend(mut self) {
        self.from = None;
    }

    /// Turns the permit into one that does not borrow the budget, so that a future can store it.
    pub fn into_owned(mut self) -> Permit<'static> {
        let from = self.from.take();
        let from = from.map(|(bucket, source)| (Cow::Owned(bucket.into_owned()), source));
        Permit { from }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((bucket, source)) = self.from.take() {
            bucket.refund(source);
        }
    }
}

/// How the waits before repeats are spread at random.
///
/// Spread waits keep clients that failed together from repeating together.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Jitter {
    /// A wait is the base, which doubles with each repeat up to the longest wait.
    None,
    /// A wait lies between zero and the base, which doubles with each repeat up to the longest
    /// wait.
    #[default]
    Full,
    /// A wait lies between the base and three times the previous wait, up to the longest wait.
    Decorrelated,
}

/// The settings of a [`Backoff`]: the base and the longest wait, and the jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    pub(crate) base: Duration,
    pub(crate) max: Duration,
    pub(crate) jitter: Jitter,
}

/// The factor on the base wait for an upstream that is overloaded or still starting.
const SLOWLY: Nanos = 4;

/// Generates the waits before the repeats of one call.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    delays: Delays,
    rng: fastrand::Rng,
    repeats: u32,
    /// The previous wait of the call; at first the base.
    last: Nanos,
}

impl Backoff {
    /// Makes the waits of one call; the same seed gives the same waits.
    pub(crate) fn new(delays: Delays, seed: u64) -> Self {
        Self {
            delays,
            rng: fastrand::Rng::with_seed(seed),
            repeats: 0,
            last: nanos(delays.base),
        }
    }

    /// The wait before the next repeat; from a longer base if `slowly`: see `SLOWLY`.
    pub(crate) fn next(&mut self, slowly: bool) -> Duration {
        let (base, max) = (nanos(self.delays.base), nanos(self.delays.max));
        let base = base.saturating_mul(if slowly { SLOWLY } else { 1 });
        let doubled = 1_u64.checked_shl(self.repeats).unwrap_or(Nanos::MAX);
        let doubled = base.saturating_mul(doubled).min(max);
        let wait = match self.delays.jitter {
            Jitter::None => doubled,
            Jitter::Full => self.rng.u64(0..=doubled),
            Jitter::Decorrelated => {
                let most = self.last.saturating_mul(3).max(base);
                self.rng.u64(base..=most).min(max)
            }
        };
        self.repeats = self.repeats.saturating_add(1);
        self.last = wait;
        Duration::from_nanos(wait)
    }
}
