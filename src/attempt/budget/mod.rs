//! How often what failed may be tried again, by all who share the budget.

mod backoff;
mod bucket;
mod buckets;
#[allow(clippy::module_inception, reason = "the folder is about this type")]
mod budget;
mod grant;
mod settings;
#[cfg(test)]
mod tests;

pub use self::{
    backoff::Jitter,
    budget::RetryBudget,
    grant::Permit,
    settings::{Count, IdleBreaker, NextAttempt},
};

pub(crate) use self::backoff::Backoff;
