use std::{fmt, sync::Arc, time::Duration};

use super::{
    backoff::{Delays, Jitter},
    bucket::Rates,
    buckets::Buckets,
};
use crate::{llm::failure::FailureClass, run::Run};

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
