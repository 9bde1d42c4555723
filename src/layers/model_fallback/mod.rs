//! Moves a call to another model when an attempt fails, unless the run is over.
//!
//! A second model helps when the first one is down, overloaded, too small or gone. A second model
//! does harm when no caller waits: a gateway that sees an error without its reason goes on to the
//! next provider though the user has closed the tab. A fallback does harm when the prompt changes:
//! a JSON library that parses and serializes it turns `1.0000000000000000001` into `1.0`. And a
//! caller's key that goes to another provider is a leak.
//!
//! # Which candidates, and in which order
//!
//! The layer tries the candidate that the request names as its `model`, then the others in the
//! order of the layer's list, or of a [`CandidateOrder`] that the program sets for this request,
//! each at most once per call. If the layer is [sticky](ModelFallbackLayer::sticky), the candidate
//! that served the session last goes before all of them, unless a `CandidateOrder` leaves it out. A
//! candidate that does not accept the request's dialect is skipped.
//!
//! The failure decides which candidates remain: after a refused key those with another credential,
//! after an overflow of the context those with a larger window, after a bad request none by
//! default; see [`FailureClass::fallback`](crate::llm::failure::FailureClass::fallback).
//!
//! A request that [`SideEffects`](crate::attempt::SideEffects) marks, or that its attempt
//! [marks](crate::Run::mark_side_effects), goes to no other candidate. An attempt can check
//! whether [it is at the last one](crate::Run::is_final_attempt). The layer logs each step from
//! one candidate to another as an event `falling back`, with both names, the cause, and the
//! model that the caller requested. An event `candidate serves`, at debug level, names the candidate
//! that serves.
//!
//! # Cooldowns
//!
//! With [`Cooldowns`] the layer sends a failed candidate only probes for a while. After a failure
//! of the model this holds for all calls to it, after a refused key for the calls on the same
//! account. The failure of a caller's own key affects that caller only. There is no cooldown after
//! an attempt that the caller, a limit of the call or an end from outside cut, nor after a failure
//! that the request itself caused.
//!
//! While all candidates that could serve are in a cooldown, and no probe is due, the layer sends no
//! request. Its error is then a [`AllCandidatesCoolingDown`](crate::llm::failure::AllCandidatesCoolingDown), which becomes a
//! 503 with `retry-after`.
//!
//! # What a candidate is sent
//!
//! A candidate is sent the original request. The layer changes only the URL, the bytes of the
//! top-level `model`, the length, `accept-encoding`, `x-attempt`, the candidate's own
//! [headers](crate::Candidate::header) and key, and the headers that belong to one connection or
//! one upstream. A multipart form goes to the first candidate only, unchanged. The layer refuses
//! any other body that is neither empty nor a JSON object.
//!
//! A candidate with an upstream of its own gets none of the caller's `authorization`, `x-api-key`,
//! `api-key`, `x-goog-api-key`, `x-amz-security-token` and `cookie`, and no `key`, `api_key`,
//! `api-key`, `apikey` and `access_token` of the query, unless it [forwards
//! credentials](crate::Candidate::forward_credentials). Headers of unknown names and the rest of
//! the query are sent, so an outer layer must remove a secret in one of them. Only trusted
//! candidates get the run's id.
//!
//! Requests for embeddings and images follow the same rules as those for text.
//!
//! # The commit
//!
//! The layer holds an answer back until the attempt commits to it, in a stream at the first content
//! at the latest. After that the layer tries no other candidate, and the caller gets a later
//! failure: see [`attempt`](crate::attempt).
//!
//! # What the caller is sent
//!
//! The caller is sent the answer of the candidate that served, without the headers of the
//! upstream's connection, and with `x-served-model`, `x-served-candidate` (its
//! [label](crate::Candidate::label)) and `x-attempt`. Unless the candidate is
//! [trusted](crate::Candidate::trusted), the layer removes the headers that speak for the
//! upstream's server: `x-terminal-reason`, `x-run-id`, `x-attempt`, `set-cookie`,
//! `set-cookie2`, `alt-svc`, `strict-transport-security`, `clear-site-data`, `nel`, `report-to`,
//! `reporting-endpoints`. Otherwise an outer server would take the first three for this
//! server's, and a browser would apply the others to the program's origin. No caller gets
//! redirects of a candidate's own upstream, or incomplete JSON documents: see
//! [attempt](crate::attempt#what-no-caller-is-handed). If no candidate serves, the caller mostly gets
//! the last one's answer: see [attempt](crate::attempt#which-failure-the-caller-gets).
//!
//! # When the clock runs
//!
//! Each attempt but the one at the last candidate gets a share of the time that is left until the
//! earliest deadline of the attempt, its call or their run: that time divided by the number of
//! candidates left, this one included and without those in a cooldown. Without a deadline, or with
//! [`share(false)`](ModelFallbackLayer::share), there is no share. The share limits the attempt until its commit. Layers inside limit the attempt, layers
//! outside the call.
//!
//! # Same instant
//!
//! A deadline of the call or the run that passes in the instant of a failure wins: no other
//! candidate is tried.
//!
//! # Order
//!
//! This layer belongs outside of [`RetryBudgetLayer`](crate::RetryBudgetLayer) and of the
//! layers that limit an attempt; inside of those that limit the call. The inner service
//! must be `Clone`, its bodies `Unpin`.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the attempt in progress; no attempt follows.
//!
//! # Panics
//!
//! A pending poll of a call with a deadline panics outside of a tokio runtime with its timer
//! enabled.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{Candidate, ModelFallbackLayer, ReplayBody};
//!
//! let service = ServiceBuilder::new()
//!     .layer(ModelFallbackLayer::new([Candidate::new("large"), Candidate::new("small")]))
//!     .service(service_fn(|request: Request<ReplayBody>| async move {
//!         let mut answer = Response::new(Full::<Bytes>::default());
//!         if request.body().len() == br#"{"model":"large"}"#.len() && first() {
//!             *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
//!         }
//!         Ok::<_, std::io::Error>(answer)
//!     }));
//! # fn first() -> bool {
//! #     static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
//! #     CALLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0
//! # }
//!
//! let request = Request::post("/v1/chat/completions").body(Full::from(r#"{"model":"large"}"#))?;
//! let answer = service.oneshot(request).await?;
//! assert_eq!(answer.status(), StatusCode::OK);
//! assert_eq!(answer.headers()["x-served-model"], "small");
//! # Ok(())
//! # }
//! ```
//!
//! Candidates at upstreams of their own, and repeats of each attempt by a layer inside:
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_agent::{
//!     Candidate, CandidateDialect, ModelFallbackLayer, RetryBudget, RetryBudgetLayer,
//! };
//!
//! # fn main() -> Result<(), tower_agent::BoxError> {
//! let budget = RetryBudget::new();
//! let candidates = [
//!     Candidate::new("gpt-large")
//!         .base_url("https://api.example.com/v1")?
//!         .api_key("secret")?,
//!     Candidate::new("local-small")
//!         .base_url("http://localhost:8000/v1")?
//!         .dialect(CandidateDialect::OpenAi),
//! ];
//! let stack = ServiceBuilder::new()
//!     .layer(ModelFallbackLayer::new(candidates).budget(budget.clone()))
//!     .layer(RetryBudgetLayer::new(budget));
//! # let _ = stack;
//! # Ok(())
//! # }
//! ```

mod cooldown;
mod layer;
mod policy;
mod quoted_words;
mod request;
mod route;
mod select;
mod settings;
mod sticky_sessions;
#[cfg(test)]
mod tests;

pub(crate) use self::sticky_sessions::StickySessions;
pub use self::{
    cooldown::Cooldowns,
    layer::{ModelFallback, ModelFallbackBody, ModelFallbackFuture, ModelFallbackLayer},
    route::CandidateOrder,
};
