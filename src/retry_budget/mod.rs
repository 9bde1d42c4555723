//! How often what failed may be tried again.
//!
//! An agent that meets an error tries again, and so does its harness, its
//! client and the gateway below; a hundred agents that meet the same outage
//! become the outage. A [`RetryBudget`] bounds this in three places: attempts
//! to one candidate within a call, failures that reach the harness within a
//! run, and repeats to one candidate by all runs together.
//!
//! # What is counted
//!
//! - Within a call: [attempts per candidate](RetryBudget::max_attempts_per_candidate),
//!   with a jittered [delay](RetryBudget::delays) between them.
//! - Within a run: failures [of the same kind](RetryBudget::per_error_key)
//!   and [of any kind](RetryBudget::per_run). The kind is an [`ErrorKey`]: who
//!   failed, and the message without its ids, numbers, times and addresses.
//! - For all runs: [what is shared](RetryBudget::shared), a bucket for each of
//!   the first 256 candidates and one for all the others. A first attempt
//!   deposits a part of a repeat, a floor is always there.
//!
//! # Cancel safety
//!
//! A [`Grant`] that is dropped before it is spent gives its repeat back.

#![allow(
    dead_code,
    reason = "the layer that reads the settings is not here yet"
)]

mod backoff;
mod bucket;
mod buckets;
mod budget;
mod counts;
mod grant;
mod key;
mod settings;
#[cfg(test)]
mod tests;

pub use self::{
    backoff::Jitter,
    budget::RetryBudget,
    counts::{ErrorCounts, Verdict},
    grant::Grant,
    key::ErrorKey,
    settings::{Count, NextAttempt},
};
