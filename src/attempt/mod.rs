//! One attempt of a call, and the decision whether another follows it.
//!
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer) repeats an attempt, and
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) moves the call to another model. This module
//! is the part that both layers share: it buffers the request, opens a node of the run's tree for
//! each attempt, and decides after a failed attempt whether another may follow.
//!
//! # The order of the questions
//!
//! 1. Is the layer's node live, after a check of its deadlines, and not closing?
//! 2. Does the [idle breaker](crate::RetryBudget::idle_breaker) allow this layer another attempt
//!    after so many silent attempts of the run in a row?
//! 3. May the request be carried out twice?
//! 4. Does the failure's class allow another attempt by this layer? For a repeat: do
//!    `x-should-retry`, and the wait that the upstream asks for, allow it?
//! 5. Is there time for the wait and for an attempt?
//! 6. Is an attempt left, or a suitable candidate that no cooldown blocks?
//! 7. Does the program's [hook](crate::RetryBudget::before_attempt) allow the attempt?
//! 8. Do the run's error limits grant the attempt and, for a repeat, the shared bucket?
//!
//! At the first no this layer makes no further attempt. The event `no further attempt` then has the
//! cause in its field `denied`, unless the layer's node has ended, is closing or is itself an
//! attempt. In the last case an outer layer, if there is one, asks its own questions. But an
//! idle breaker that ends the run is logged by the layer that asked it, also in an attempt.
//!
//! A failure may report that a run with the id of the call's run has ended elsewhere. Then the call
//! ends with that reason, and of the questions above only the first is asked.
//!
//! # What is held, and until when
//!
//! The layer holds an answer until the attempt commits to it, or the answer proves to be a failure.
//! After the commit this layer makes no other attempt, whatever the rest of the answer brings.
//!
//! | answer | held until |
//! |---|---|
//! | a stream of events | its first content or error event, its end, 256 events or 256 KiB |
//! | a stream with a [floor on its speed](crate::layers::step_timeout#a-floor-on-speed), by a layer with a `hold` | an error event, its end, 256 KiB, or its content or 256 events once it has shown its speed |
//! | any other answer of success | its end, or 256 KiB |
//! | a 204, 1xx or 3xx, or one that an inner layer has held or classified | not held |
//! | a compressed answer of success | its first byte |
//! | a 4xx or 5xx, to classify it | its end or error, 64 KiB or one second |
//!
//! An answer may also commit by time. If its head shows no failure, it commits once the layer's
//! [`hold`](crate::ModelFallbackLayer::hold) has passed, if that is set. The caller gets the held
//! bytes unchanged, but held frames may be joined.
//!
//! # What no caller is handed
//!
//! Two kinds of answers become errors, also if no other attempt follows:
//!
//! - A 1xx or 3xx of a [candidate with a base URL](crate::Candidate::base_url) is a
//!   [`Redirected`](crate::llm::failure::Redirected): a client that followed it would
//!   send the prompt, and maybe an API key, to a host that the program did not choose.
//! - A cut JSON document is an [`IncompleteJson`](crate::llm::failure::IncompleteJson). The layer
//!   finds it in an uncompressed answer of success with a JSON content type, if the body leaves a
//!   bracket or a string open, or does not begin and end as JSON. If the attempt committed before
//!   the answer's end, the caller has the beginning already, and the body ends with that error.
//!
//! # Which failure the caller gets
//!
//! If all attempts fail, the caller gets the last one's answer or error, but in these cases:
//!
//! - An error object under a good status gets the status that it should have had, from its code or
//!   its name, else 502: clients take a 200 for an answer.
//! - The last candidate refuses turns that only another one can read, such as signed thinking, and
//!   one before it was rate-limited, overloaded or failed in itself: the caller gets the answer of
//!   the first such candidate, which its client repeats.
//! - The last candidate cannot be reached, and one before it reported that the prompt is too long:
//!   the caller gets that answer, on which agents compact.
//!
//! An earlier answer is kept only if it was read to its end, so it has at most 64 KiB.
//!
//! # Examples
//!
//! Counts the failed attempts of the call to which an answer belongs:
//!
//! ```
//! use tower_agent::attempt::FailedAttempts;
//!
//! fn failed<B>(answer: &http::Response<B>) -> usize {
//!     answer.extensions().get::<FailedAttempts>().map_or(0, |failed| failed.all().len())
//! }
//! ```

mod body;
mod budget;
mod candidate;
mod conclude;
mod decision;
mod denial;
mod driver;
mod failed_attempts;
mod future;
mod hidden_failures;
mod peek;
mod policy;
mod prompt_count;
mod report;
mod request_template;
mod settle;

pub use self::{
    body::AttemptBody,
    budget::{Count, IdleBreaker, Jitter, NextAttempt, Permit, RetryBudget},
    candidate::{Candidate, CandidateDialect, InvalidCandidate},
    decision::SideEffects,
    failed_attempts::{AttemptSummary, FailedAttempts},
    future::Attempts,
};

#[cfg(feature = "config")]
pub(crate) use self::candidate::without_last_operation;

pub(crate) use self::{
    budget::Backoff,
    candidate::{
        Operation, WITHIN_ACCOUNT, generates, strip_hop, strip_request_headers, without_credentials,
    },
    denial::Denial,
    failed_attempts::is_logged,
    peek::{HeldBody, PeekedAnswer},
    policy::{AttemptPolicy, AttemptSettings},
    request_template::{RequestTemplate, number_value},
    settle::CompletionObserver,
};

use std::time::Duration;

use http::Request;

use crate::{
    run::{NodeKind, Run, Terminated, is_traced},
    supervise::{Claim, LayerSettings, SupervisedFuture},
};

/// The number of held bytes of a failed answer that suffices to classify it.
pub(crate) const MAX_ERROR: usize = 64 * 1024;

/// The longest time for which a failed answer is read to classify it.
pub(crate) const ERROR_TIME: Duration = Duration::from_secs(1);

impl Run {
    /// Opens an attempt below this node, which is mostly a call, and makes it with `call`.
    ///
    /// The method is for a retry, a hedge or a cache of the program's own. The request that `call`
    /// gets carries the attempt instead of this node, so an inner layer finds the attempt.
    /// The attempt counts in the call's [summary](crate::CallSummary::attempts). If this node is
    /// itself an attempt, the first attempt below it does not count again.
    ///
    /// Once the attempt or a node above it has ended, the returned future (or the body of its
    /// answer) drops the inner one at its next poll. The outcome of the answer settles the attempt.
    /// A drop before the answer's end settles the attempt as aborted, or as failed if the answer's
    /// head has shown a failure.
    ///
    /// The layer that opened the call settles it, or the first layer of this crate that saw it.
    /// Such a layer, for example [`RunLayer`](crate::RunLayer), must stand outside of the caller of
    /// this method.
    ///
    /// # Errors
    ///
    /// The end of this node, or of a node above it, if it is over or closing; passed deadlines are
    /// checked first. Then `call` is not called: return the error, and try nothing more. An attempt
    /// that merely failed, by its own step timeout for example, leaves this node live, and another
    /// may follow.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub fn attempt<B, F>(
        &self,
        mut request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> Result<SupervisedFuture<F>, Terminated> {
        let attempt = self.admit(NodeKind::Attempt);
        let attempt = attempt.ok_or_else(|| self.to_terminated())?;
        self.attempts().count_own();
        if is_traced() {
            let model = self.attempts().served_by().map(Candidate::model);
            let span = attempt.spans();
            span.make_attempt(model, false);
            span.describe_attempt(self.attempts().made(), request.uri());
        }
        request.extensions_mut().insert(attempt.clone());
        let claim = Claim {
            run: attempt,
            settles: true,
        };
        let settings = LayerSettings::passive().counting().hiding_node();
        Ok(SupervisedFuture::new(claim, settings, request, call))
    }

    /// Whether this attempt is at the last candidate: if it fails, no other candidate follows.
    ///
    /// Without another candidate a layer may treat the attempt's failure as the call's. The result
    /// is true without a [`ModelFallbackLayer`](crate::ModelFallbackLayer). The attempt may still
    /// be repeated.
    #[must_use]
    pub fn is_final_attempt(&self) -> bool {
        self.attempts().is_final()
    }

    /// Marks that this call had effects that must not happen twice: a sent message, say.
    ///
    /// From now on the call is neither repeated nor moved to another candidate. The method acts as
    /// the `SideEffects` extension of a request does, for effects that become known only later.
    pub fn mark_side_effects(&self) {
        self.attempts().mark_side_effects();
    }
}

/// An answer's extension: a retry or fallback layer further in has committed to this answer.
///
/// A retry or fallback layer further out that finds this extension makes no other attempt. The
/// exception is a redirect of a candidate's own upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed;
