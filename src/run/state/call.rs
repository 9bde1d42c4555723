//! The states of calls and of attempts.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use crate::{
    lock::Lock,
    run::{
        limits::Price,
        report::{Hooks, SpanSlot},
    },
};

/// The upstream to which an attempt goes.
pub(crate) trait AttemptTarget: Any + Send + Sync + std::fmt::Debug {
    fn label(&self) -> &Arc<str>;

    /// The price of the upstream's tokens; `None` if the price is not known.
    fn price(&self) -> Option<Price>;

    /// The target as `Any`: the module that set it knows its type.
    fn as_any(&self) -> &dyn Any;
}

/// The state of a call. A run, which may be one call, and a tool, which may have a span, have it
/// too.
#[derive(Debug, Default)]
pub(crate) struct CallState {
    rare: OnceLock<Box<RareCallState>>,
    /// The number that the call has among the run's turns; 0 if it is not a turn.
    pub(in crate::run) turn: AtomicU32,
    /// Whether the call is counted as a turn of its run's owner.
    pub(in crate::run) is_owners_turn: AtomicBool,
    /// Whether the list of failed attempts was ever used. If not, no lock is taken to clear it.
    has_failed_attempts: AtomicBool,
    /// The address of the first retry bucket into which the call has made a deposit. 0 for none.
    first_deposit: AtomicUsize,
    /// The target of the call's last attempt.
    pub(in crate::run) last_target: Lock<Option<Arc<dyn AttemptTarget>>>,
    #[cfg(feature = "metrics")]
    pub(in crate::run) metrics: crate::run::report::CallMetrics,
}

/// The failed attempts of a call, and why no attempt followed the last of them.
pub(crate) trait FailedAttemptList: Any + Send + Sync + std::fmt::Debug {
    /// The list as `Any`: the module that set it knows its type.
    fn as_any(&self) -> &dyn Any;

    /// Why no other attempt followed, as words for the log; `None` if nothing denied one.
    fn denied_words(&self) -> Option<String>;

    /// Why no other attempt followed, as clauses for people; `None` if nothing denied one.
    fn why_none_followed(&self) -> Option<String>;
}

/// The state that few calls have, allocated when the call first needs it.
#[derive(Debug, Default)]
pub(crate) struct RareCallState {
    /// The hooks for the end of the call.
    pub(in crate::run) hooks: Hooks,
    /// The list of the call's failed attempts. Only the module that set it knows the type.
    failed_attempts: Lock<Option<Arc<dyn FailedAttemptList>>>,
    /// The addresses of the retry buckets with a deposit, after the first one.
    more_deposits: Lock<Vec<usize>>,
    /// The span of the call, tool or run.
    pub(in crate::run) span: SpanSlot,
}

/// The state of an attempt: its target, the marks of its reports, and its span.
#[derive(Debug, Default)]
pub(crate) struct TargetState {
    /// The upstream to which the attempt goes. Only the module that set it knows the type.
    pub(in crate::run) target: OnceLock<Arc<dyn AttemptTarget>>,
    /// Whether targets other than this attempt's could serve the call.
    pub(in crate::run) has_others: AtomicBool,
    /// Whether the caller's request asks for a stream.
    pub(in crate::run) asks_for_stream: AtomicBool,
    /// Whether a layer sets a floor on the speed of the attempt's stream.
    pub(in crate::run) has_floor: AtomicBool,
    /// Whether the program's hook was called for this attempt, or for one within it.
    pub(in crate::run) is_reported: AtomicBool,
    /// Whether a metric has counted this attempt, or one within it.
    #[cfg(feature = "metrics")]
    pub(in crate::run) is_counted: AtomicBool,
    /// Whether an inner layer makes attempts for this one: they count the prompt.
    pub(in crate::run) is_outer: AtomicBool,
    /// Whether an inner layer holds the request back: no upstream has it.
    pub(in crate::run) is_held: AtomicBool,
    /// The place for the attempt's span, allocated if a subscriber wants it.
    pub(in crate::run) span: OnceLock<Box<SpanSlot>>,
}

impl CallState {
    pub(in crate::run) fn rare(&self) -> &RareCallState {
        self.rare.get_or_init(Box::default)
    }

    pub(in crate::run) fn rare_if_any(&self) -> Option<&RareCallState> {
        self.rare.get().map(|rare| &**rare)
    }

    pub(in crate::run) fn failed_attempts(&self) -> Option<Arc<dyn FailedAttemptList>> {
        self.rare.get()?.failed_attempts.lock().clone()
    }

    /// Calls `act` with the list of the call's failed attempts, which is `None` until one has
    /// failed.
    pub(in crate::run) fn with_failed_attempts(
        &self,
        act: impl FnOnce(&mut Option<Arc<dyn FailedAttemptList>>),
    ) {
        self.has_failed_attempts.store(true, Ordering::Release);
        act(&mut self.rare().failed_attempts.lock());
    }

    /// Clears the list of failed attempts, before a layer begins the attempts of a call.
    pub(in crate::run) fn forget_failed_attempts(&self) {
        if self.has_failed_attempts.load(Ordering::Acquire) {
            *self.rare().failed_attempts.lock() = None;
        }
    }

    /// Records the call's deposit into a retry bucket. Returns whether it is the first one into
    /// this bucket.
    pub(crate) fn first_deposit(&self, bucket: usize) -> bool {
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let first = &self.first_deposit;
        match first.compare_exchange(0, bucket, stored, failed) {
            Ok(_) => return true,
            Err(first) if first == bucket => return false,
            Err(_) => {}
        }
        let mut more = self.rare().more_deposits.lock();
        let is_new = !more.contains(&bucket);
        if is_new {
            more.push(bucket);
        }
        is_new
    }
}
