//! The state that only calls and attempts have.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use crate::{lock::Lock, run::report::Hooks};

/// The upstream to which an attempt goes.
pub(crate) trait AttemptTarget: Any + Send + Sync + std::fmt::Debug {
    fn label(&self) -> &str;

    /// The target as a value for a downcast, by the module that set the target.
    fn as_any(&self) -> &dyn Any;
}

/// The state of a call, or of a run that is one call. A tool has this state too, because a request
/// may use a tool's node as its call.
#[derive(Debug, Default)]
pub(crate) struct CallState {
    pub(in crate::run) hooks: OnceLock<Box<Hooks>>,
    /// The number that the call has among the run's turns; 0 if it is no turn.
    pub(in crate::run) turn: AtomicU32,
    deposits: Deposits,
    /// The target of the call's last attempt.
    pub(in crate::run) last_target: Lock<Option<Arc<dyn AttemptTarget>>>,
}

/// The retry buckets into which a call has made a deposit: mostly one.
#[derive(Debug, Default)]
struct Deposits {
    /// The address of the first retry bucket with a deposit; 0 for none.
    first: AtomicUsize,
    others: Lock<Vec<usize>>,
}

/// The state of an attempt: the target to which it goes.
#[derive(Debug, Default)]
pub(crate) struct TargetState {
    /// The upstream to which the attempt goes. Only the module that set it knows the type.
    pub(in crate::run) target: OnceLock<Arc<dyn AttemptTarget>>,
    /// Whether targets other than this attempt's could serve the call.
    pub(in crate::run) has_others: AtomicBool,
}

impl CallState {
    /// Records the call's deposit into a retry bucket. Answers whether it is the first one into
    /// this bucket.
    pub(crate) fn first_deposit(&self, bucket: usize) -> bool {
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let first = &self.deposits.first;
        match first.compare_exchange(0, bucket, stored, failed) {
            Ok(_) => return true,
            Err(first) if first == bucket => return false,
            Err(_) => {}
        }
        let mut others = self.deposits.others.lock();
        let is_new = !others.contains(&bucket);
        if is_new {
            others.push(bucket);
        }
        is_new
    }
}
