//! Moves a call to another model when one fails, and never for a run that is
//! over.
//!
//! A second model helps when the first one is down, overloaded, too small or
//! gone. It harms when nobody waits any more: a gateway that sees an error and
//! not its reason goes on to the next provider for a user who has closed the
//! tab. It harms when the prompt is not the same: one that goes through a JSON
//! library and back comes out different (`1.0000000000000000001` becomes
//! `1.0`). And a caller's key that goes to another provider is a leak.
//!
//! # Which candidates, and in which order
//!
//! The one that the request names as its `model`, then the others as they are
//! listed, or as the program lists them for this request by a [`CandidateOrder`],
//! each at most once per call. Before all of them goes the one that served the
//! session last, if the layer is [sticky](ModelFallbackLayer::sticky). One that
//! does not speak the request's dialect is skipped. What failed decides who comes next: a refused key only
//! leaves candidates of another credential, an overflow of the context those
//! with a larger window, a bad request nobody; see
//! [`FailureClass::other`](crate::llm::failure::FailureClass::other).
//!
//! A request that is marked by [`SideEffects`](crate::attempt::SideEffects), or
//! whose attempt [says so](crate::Run::mark_side_effects), goes to nobody else.
//! An attempt can tell whether [others follow](crate::Run::is_final_attempt).
//! Each step from one candidate to another is one event, `model_fallback`, with
//! both names, why, and the model that was asked for; `model_served` says at the
//! debug level which one it was in the end.
//!
//! # Who is left alone
//!
//! With [`Cooldowns`] a candidate that has failed is not asked by other calls for
//! a while: by none of them if the model is down, by none on the same account if
//! its key was refused. A caller's own key is that caller's matter. When all that
//! could serve are left alone, the error is [`CoolingDown`](crate::llm::failure::CoolingDown), a 503 with
//! `retry-after`, and nobody is asked. What was cut by the caller, a limit of the
//! call or an end from elsewhere says nothing about the candidate, and neither
//! does a request that is itself at fault.
//!
//! # What a candidate is sent
//!
//! The original request: only the bytes of the top-level `model` change, with
//! the length and the headers that belong to one upstream. An upstream of its
//! own gets none of the caller's `authorization`, `x-api-key`, `api-key`,
//! `x-goog-api-key`, `x-amz-security-token` and `cookie`, and no `key`, `api_key`,
//! `api-key`, `apikey` and `access_token` of the query; other headers and the rest of
//! the query go along, so a secret in one of them must be removed further out. The run's id is for
//! trusted candidates alone. A body that is not JSON is refused; one that is a
//! form goes to the first candidate alone, as it is.
//!
//! Embeddings and images are treated alike.
//!
//! # The commit
//!
//! An answer is held until its first content; after that nothing else is tried,
//! and a failure is told to the caller: see [`attempt`](crate::attempt).
//!
//! # What the caller is sent
//!
//! The answer of the candidate that served, without the headers of the upstream's
//! connection, and with `x-served-model` and `x-attempt`. What an answer says for the
//! server that it comes from is removed unless the candidate is
//! [trusted](crate::Candidate::trusted): `x-terminal-reason`, `x-run-id`, `set-cookie`,
//! `alt-svc`, `strict-transport-security`, `clear-site-data`, `nel`, `report-to`,
//! `reporting-endpoints`. A server further out would take the first two for the word
//! of this one, and a browser the others for that of the program's origin. No caller
//! is handed redirects of a candidate's own upstream, nor half JSON documents: see
//! [attempt](crate::attempt#what-no-caller-is-handed).
//!
//! # When the clock runs
//!
//! If the call has a ceiling, an attempt gets the time that is left divided by
//! the candidates that are left, until its commit. Layers inside limit the
//! attempt, layers outside the call.
//!
//! # Same instant
//!
//! A deadline of the call or the run that has come beats whatever failed in
//! that instant: nothing more is tried.
//!
//! # Order
//!
//! Outside of [`RetryBudgetLayer`](crate::RetryBudgetLayer) and of the layers
//! that limit an attempt; inside of those that limit the call. The inner
//! service must be `Clone`, its bodies `Unpin`.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the attempt that is under way, and no
//! other is made.
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
//! Candidates at upstreams of their own, repeats inside:
//!
//! ```
//! use http::Uri;
//! use tower::ServiceBuilder;
//! use tower_agent::{
//!     Candidate, CandidateDialect, ModelFallbackLayer, RetryBudget, RetryBudgetLayer,
//! };
//!
//! # fn main() -> Result<(), tower_agent::BoxError> {
//! let budget = RetryBudget::new();
//! let candidates = [
//!     Candidate::new("gpt-large")
//!         .base_url(Uri::from_static("https://api.example.com/v1"))?
//!         .api_key("secret")?,
//!     Candidate::new("local-small")
//!         .base_url(Uri::from_static("http://localhost:8000/v1"))?
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
mod order;
mod plan;
mod policy;
mod request;
mod route;
mod select;
mod sticky;
#[cfg(test)]
mod tests;

pub use self::{
    cooldown::Cooldowns,
    layer::{ModelFallback, ModelFallbackBody, ModelFallbackFuture, ModelFallbackLayer},
    order::CandidateOrder,
};
