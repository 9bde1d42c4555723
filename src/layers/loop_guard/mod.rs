//! Ends a run whose tool calls go in circles.
//!
//! An agent that polls a job which never finishes, or tries the same edit again
//! and again, looks busy: every step is quick, every answer is good, and the bill
//! grows until somebody looks. No clock sees it, because something happens all the
//! time. What it does can be seen, though: each request carries the calls that the
//! model made and what came of them.
//!
//! # What is counted
//!
//! An action is a call of a tool whose result is there. Two calls are the same if
//! they have the same name and arguments, whatever the order of the keys. Of the
//! run's last 30 actions:
//!
//! | pattern | told | ends the run |
//! |---|---|---|
//! | the same call with the same result; others may stand between | every 10 | at 20 |
//! | two calls in turn, each with its result of before | every 10 | at 20 |
//! | calls of tools that were not declared when they were made, if any were | | at 10 |
//! | the same call in a row, whatever came of it | every 10 | at 30 |
//!
//! Another result is a change, and begins anew; so does a user who answers a turn
//! that the model had finished, and not one who speaks between two calls. A call
//! that was refused is no action, and changes nothing. The run ends as
//! [`LoopDetected`](crate::TerminalReason::LoopDetected), before the request is
//! sent on; what is told is a [`RunNotice::Loop`](crate::RunNotice::Loop). Actions count
//! for the [signs of being stuck](crate::Run::end_when_stuck) too.
//!
//! Read are the requests and answers of OpenAI's chat and Responses and of
//! Anthropic's messages. A request is read from where the last one of the run
//! ended; one whose history was changed since is read whole, and what is known by
//! its id does not count again. Answers matter where requests do not repeat what
//! they continue (`previous_response_id`). What is not JSON, or compressed, is not
//! read, and passes.
//!
//! Of one request no more than the last 512 calls and results count, and each
//! pattern is told once.
//!
//! Tools that run in this process can
//! [say their arguments](crate::tool::Tool::arguments); then it works without a
//! history too. Such a run is ended by the limits of the layer that one of its model
//! calls has passed, or by [`Run::end_when_looping`](crate::Run::end_when_looping);
//! else observers are told, and it goes on.
//!
//! # Whose history
//!
//! The run's, over all its requests, see [`RunLayer`](crate::RunLayer). Of the
//! first request of a run, and so of each request that belongs to none, only what
//! came after the last message of the user counts: what was before it was another
//! run.
//!
//! # Order
//!
//! Outside of [`ModelFallbackLayer`](crate::ModelFallbackLayer) and
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer), so that a request is read once
//! and its body kept once; inside of [`RunLayer`](crate::RunLayer). Elsewhere, or
//! twice, it counts the same, by the smaller limits. The inner service must be
//! `Clone`, and takes a [`ReplayBody`](crate::ReplayBody).
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside. What was counted stays
//! counted.
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
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{LoopGuardLayer, ReplayBody, TerminalReason};
//!
//! let service = ServiceBuilder::new()
//!     .layer(LoopGuardLayer::new().stop(3))
//!     .service(service_fn(|_: Request<ReplayBody>| async {
//!         Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::default()))
//!     }));
//!
//! let turn = r#",{"role":"assistant","tool_calls":[{"id":"c","type":"function",
//!     "function":{"name":"job_status","arguments":"{\"job\":7}"}}]},
//!     {"role":"tool","tool_call_id":"c","content":"running"}"#;
//! let body = format!(
//!     r#"{{"messages":[{{"role":"user","content":"is it done?"}}{}]}}"#,
//!     turn.repeat(3),
//! );
//! let request = Request::post("/v1/chat/completions").body(Full::<Bytes>::from(body))?;
//!
//! let error = service.oneshot(request).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*error), Some(&TerminalReason::LoopDetected));
//! # Ok(())
//! # }
//! ```
//!
//! To see what it would end, before it may:
//!
//! ```
//! let layer = tower_agent::LoopGuardLayer::new().stop(15).any_tool(0).observe();
//! ```

mod layer;
mod policy;
mod reader;
mod service;

pub use self::{
    layer::LoopGuardLayer,
    service::{LoopGuard, LoopGuardBody, LoopGuardFuture},
};
