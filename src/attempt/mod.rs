//! One try of a call, up to the point at which no other may follow, and what is
//! decided when it fails before.
//!
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer) repeats a try and
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) moves it to another model.
//! Everything else about the two is the same, and stands here: the request is
//! read once, each try is an attempt of the run's tree, its answer is held until
//! its first content, and whether another try may follow is asked in one place
//! and in one order.
//!
//! # The order of the questions
//!
//! Is the layer's own node alive, by the clocks? Has the run heard anything but
//! silence? May what was asked for be done twice? Is the failure worth another
//! try? Is there time for the wait and for an attempt? Is there a try or a
//! candidate left, and is it not left alone? Does the program's hook agree? Do the
//! budgets pay? The first no is why the chain of tries stopped, in the event
//! `chain_stopped`.
//!
//! # What is held, and until when
//!
//! A stream is held until its first content event, its end, 256 events or
//! 256 KiB; an answer that is no stream until its end, 256 KiB at most; a
//! compressed one until its first byte; the answer of a failure until 64 KiB or
//! one second, to judge it. What was held is handed on unchanged; beyond a few frames,
//! small ones of it are handed on joined.
//!
//! # What no caller is handed
//!
//! Two answers are errors in place of an answer, also if no other try follows. A
//! 1xx or 3xx of a [candidate with a base URL](crate::Candidate::base_url) is a
//! [`Redirected`](crate::llm::failure::Redirected): a client that followed it would send
//! the prompt, and maybe its key, to a host that the program did not choose. An
//! answer under a good status that is announced as JSON, and does not begin and end
//! as JSON, is an [`IncompleteJson`](crate::llm::failure::IncompleteJson). Of one that is
//! too long to be held the beginning is out by then, and its body ends with that
//! error.
//!
//! # Examples
//!
//! Who failed before the answer that was handed on in the end:
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
mod decide;
mod driver;
mod future;
mod outcome;
mod peek;
mod policy;
mod request_template;
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
        ACCOUNT, ApiKey, Operation, WITHIN_ACCOUNT, generates, strip_hop, undress,
        without_credentials,
    },
    policy::{AttemptPolicy, Denial, Serving, words},
    request_template::RequestTemplate,
};

use std::time::Duration;

/// How much of the answer of a failure is read to judge it.
pub(crate) const MAX_ERROR: usize = 64 * 1024;

/// How long the answer of a failure is read for to judge it.
pub(crate) const ERROR_TIME: Duration = Duration::from_secs(1);

/// The number of a try: told upstream, and to the caller.
const X_ATTEMPT: http::HeaderName = http::HeaderName::from_static("x-attempt");

/// On an answer: a layer further in has handed on the first of it, so that no
/// other may follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed;
