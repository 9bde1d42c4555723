//! One attempt of a call, and the decision whether another follows it.
//!
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer) repeats an attempt and
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) moves it to another model.
//! Everything else is the same for both layers: the request is read once, each
//! attempt is a node of the run's tree, its answer is held until its first content,
//! and one function asks in one order whether another attempt may follow.
//!
//! # The order of the questions
//!
//! 1. Is the layer's own node alive, by the clocks?
//! 2. Were the last attempts of the run all silent?
//! 3. May the request be carried out twice?
//! 4. Is the failure of a class that another attempt can cure?
//! 5. Is there time for the wait and for an attempt?
//! 6. Is an attempt or a candidate left, and is that candidate not in a cooldown?
//! 7. Does the program's hook agree?
//! 8. Do the budgets pay?
//!
//! The first no is the reason why no attempt follows, in the event `chain_stopped`.
//!
//! # What is held, and until when
//!
//! | answer | held until |
//! |---|---|
//! | a stream of events | its first content event, its end, 256 events or 256 KiB |
//! | any other answer | its end, or 256 KiB |
//! | a compressed answer | its first byte |
//! | the answer of a failure | 64 KiB or one second, to classify it |
//!
//! The caller gets the held bytes unchanged. Of more than a few frames, small ones are
//! joined.
//!
//! # What no caller is handed
//!
//! Two kinds of answers become errors, also if no other attempt follows:
//!
//! - A 1xx or 3xx of a [candidate with a base URL](crate::Candidate::base_url) is a
//!   [`Redirected`](crate::llm::failure::Redirected): a client that followed it would
//!   send the prompt, and maybe its key, to a host that the program did not choose.
//! - An answer with a status of success that claims to be JSON, and does not begin and
//!   end as JSON, is an [`IncompleteJson`](crate::llm::failure::IncompleteJson). If it is
//!   too long to be held, the caller has its beginning already, and the body ends with
//!   that error.
//!
//! # Examples
//!
//! Reads from the failed answer that the caller gets how many attempts failed:
//!
//! ```
//! use tower_agent::attempt::Tries;
//!
//! fn failed<B>(answer: &http::Response<B>) -> usize {
//!     answer.extensions().get::<Tries>().map_or(0, |tries| tries.all().len())
//! }
//! ```

mod body;
mod budget;
mod candidate;
mod driver;
mod future;
mod outcome;
mod peek;
mod policy;
mod settle;
mod tries;

pub use self::{
    body::AttemptBody,
    budget::{Count, IdleBreaker, Jitter, NextAttempt, Permit, RetryBudget},
    candidate::{Candidate, CandidateDialect, InvalidBaseUrl},
    future::Attempts,
    policy::SideEffects,
    tries::{Tried, Tries},
};

pub(crate) use self::{
    budget::Backoff,
    candidate::{
        ApiKey, Operation, WITHIN_ACCOUNT, generates, strip_hop, undress, without_credentials,
    },
    driver::RequestTemplate,
    policy::{AttemptPolicy, AttemptSettings, CompletionObserver, Denial},
};

use std::time::Duration;

/// The most bytes of a failed answer that are read to classify it.
pub(crate) const MAX_ERROR: usize = 64 * 1024;

/// The longest time for which a failed answer is read to classify it.
pub(crate) const ERROR_TIME: Duration = Duration::from_secs(1);

/// An answer's extension: a layer further in has committed to it, so no attempt follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed;
