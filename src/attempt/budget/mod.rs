//! How often failed attempts may be repeated: within a call, a run, and all runs together.

mod backoff;
mod bucket;
#[allow(clippy::module_inception, reason = "the folder is about this type")]
mod budget;
#[cfg(test)]
mod tests;

pub use self::{
    backoff::Jitter,
    budget::{Count, IdleBreaker, NextAttempt, Permit, RetryBudget},
};

pub(crate) use self::backoff::Backoff;
