//! How often what failed may be tried again, by all who share the budget.

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
