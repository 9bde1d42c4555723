//! Tries again what failed, as far as a budget pays for it, and never for a run
//! that is over.
//!
//! An agent that meets an error tries again, and so does its harness, its
//! client and the gateway below; a hundred agents that meet the same outage
//! become the outage. And a retry that cannot tell "this attempt failed" from
//! "the run is over" goes on paying for a user who has left. A [`RetryBudget`](crate::RetryBudget)
//! bounds the first in three places: attempts to one candidate within a call,
//! failures that reach the harness within a run, and repeats to one candidate
//! by all runs together. The second is asked first, each time: see
//! [`attempt`](crate::attempt).
//!
//! # What is repeated
//!
//! What [`FailureClass::same`](crate::llm::failure::FailureClass::same) allows and
//! the upstream's `x-should-retry` does not forbid: connections that broke,
//! overload, rate limits, errors of the server, also as the first event of a
//! stream or in place of its end. An attempt that was silent for a step window
//! is repeated once; one that does not stream, never. Nothing is repeated once
//! the first content was handed on. An answer that is compressed can be judged
//! by its status alone: without a [`ModelFallbackLayer`](crate::ModelFallbackLayer)
//! outside, which asks for plain ones, set `accept-encoding: identity`. A redirect
//! is repeated never, and without a candidate that has a base URL it is an answer as
//! any other: where the program's own service sends its requests is its own matter.
//!
//! `retry-after` is waited for exactly, or, if it is longer than
//! [`max_retry_after`](crate::RetryBudget::max_retry_after), not at all. Otherwise
//! waits are [jittered](crate::RetryBudget::delays). Each attempt says its number
//! upstream, as `x-attempt`.
//!
//! # What is counted
//!
//! - Within a call: [attempts per candidate](crate::RetryBudget::max_attempts_per_candidate).
//!   The count of a caller's own client (`x-stainless-retry-count`) lowers it.
//! - Within a run: failures [of the same kind](crate::RetryBudget::per_error_key)
//!   and [of any kind](crate::RetryBudget::per_run) that reach the harness: calls that
//!   failed after all their attempts, though nobody reads the failed answer to its
//!   end, and tools that failed. The kind is an
//!   [`ErrorKey`](crate::run::ErrorKey): who failed, and the message without its ids, numbers, times
//!   and addresses. One too many ends the run, once the answer was handed on.
//! - For all runs: [what is shared](crate::RetryBudget::shared), a bucket for each of
//!   the first 256 candidates and one for all the others. A first attempt
//!   deposits a part of a repeat, a floor is always there. So in an outage the
//!   calls to a candidate are at most its first attempts, the ratio of those,
//!   what had piled up, and the floor for each second and one more. Layers in
//!   layers that share the budget deposit once a call.
//!
//! - Within a run, if the [idle breaker](crate::RetryBudget::idle_breaker) is set:
//!   attempts that were silent for their step window, one after another.
//!
//! # When the clock runs
//!
//! Ceilings run during the wait before a repeat, step windows do not. A repeat
//! for which the time does not last is not begun.
//!
//! # Same instant
//!
//! A deadline of the call or the run that has come beats whatever failed in
//! that instant: nothing is repeated.
//!
//! # Order
//!
//! Inside of [`ModelFallbackLayer`](crate::ModelFallbackLayer) and of the layers
//! that limit the call; outside of those that limit an attempt. The inner
//! service must be `Clone`, its bodies `Unpin`.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the attempt that is under way, and
//! none follows. A [`Permit`](crate::attempt::Permit) that is dropped before it is spent gives its repeat
//! back.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, once
//! something is waited for.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use std::{sync::Arc, sync::atomic::{AtomicU32, Ordering}, time::Duration};
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{ReplayBody, RetryBudget, RetryBudgetLayer};
//!
//! let calls = Arc::new(AtomicU32::new(0));
//! let seen = calls.clone();
//! let budget = RetryBudget::new().delays(Duration::from_millis(1), Duration::from_millis(2));
//! let service = ServiceBuilder::new()
//!     .layer(RetryBudgetLayer::new(budget))
//!     .service(service_fn(move |_: Request<ReplayBody>| {
//!         let call = seen.fetch_add(1, Ordering::SeqCst);
//!         async move {
//!             let mut answer = Response::new(Full::<Bytes>::default());
//!             if call == 0 {
//!                 *answer.status_mut() = StatusCode::BAD_GATEWAY;
//!             }
//!             Ok::<_, std::io::Error>(answer)
//!         }
//!     }));
//!
//! let request = Request::post("/v1/chat/completions").body(Full::from("{}"))?;
//! assert_eq!(service.oneshot(request).await?.status(), StatusCode::OK);
//! assert_eq!(calls.load(Ordering::SeqCst), 2);
//! # Ok(())
//! # }
//! ```
//!
//! More attempts, and no more than a tenth of the traffic:
//!
//! ```
//! use tower_agent::{RetryBudget, RetryBudgetLayer};
//!
//! let budget = RetryBudget::new().max_attempts_per_candidate(4).shared(0.1, 1);
//! let layer = RetryBudgetLayer::new(budget);
//! ```

mod layer;
mod policy;
mod service;

pub use self::{
    layer::RetryBudgetLayer,
    service::{Retry, RetryBody, RetryFuture},
};
