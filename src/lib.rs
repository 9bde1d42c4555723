//! Tower layers that supervise an LLM agent's run.
//!
//! Agents fail in the same few ways: a turn that was working is killed by one
//! wall clock, a stream that hangs is never noticed, the user closes the tab
//! and the server goes on paying for tokens, retries, then falls back to a
//! second model, for nobody, and when something was cut nobody learns why. The
//! root is one confusion: *this attempt failed, try another* and *the run is
//! over, stop* look the same. Here every cancellation carries a
//! [`TerminalReason`], stored on a [`Run`] before anything is dropped, and
//! every layer reads it before it acts.
//!
//! # On a server
//!
//! ```
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, service_fn};
//! use tower_agent::*;
//!
//! let registry = RunRegistry::new();
//! let budget = RetryBudget::new();
//! let candidates = [Candidate::new("large"), Candidate::new("small")];
//! let service = ServiceBuilder::new()
//!     .layer(TerminalResponseLayer::new())
//!     .layer(RunLayer::new(registry.clone()))
//!     .layer(PumpLayer::new(32))
//!     .layer(ClientDisconnectLayer::new())
//!     .layer(HardCeilingLayer::new(Duration::from_secs(1800)))
//!     .layer(ModelFallbackLayer::new(candidates).budget(budget.clone()))
//!     .layer(RetryBudgetLayer::new(budget))
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)))
//!     .service(service_fn(|_: Request<ReplayBody>| async {
//!         Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("hello"))))
//!     }));
//! # let _ = tower::ServiceExt::oneshot(service, Request::new(Full::<Bytes>::default()));
//! ```
//!
//! # Around a client
//!
//! One run over several calls and tools; whoever ends it ends them all:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Service, ServiceBuilder, service_fn};
//! use tower_agent::{Run, StepTimeoutLayer, TerminalReason};
//!
//! let mut model = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)))
//!     .service(service_fn(|_: Request<()>| async {
//!         Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("42"))))
//!     }));
//!
//! let run = Run::open();
//! model.call(run.attach(Request::new(()))).await?;
//! run.end(TerminalReason::Aborted);
//!
//! let late = model.call(run.attach(Request::new(()))).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*late), Some(&TerminalReason::Aborted));
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! From the outside in. Misorder is never unsafe, only less useful.
//!
//! | layer | what it does |
//! |---|---|
//! | [`TerminalResponseLayer`] | reasons become HTTP answers and error events |
//! | [`RunLayer`] | run id and session, registry, a call per request |
//! | [`PumpLayer`] | servers: deadlines hold whatever the reader does |
//! | [`ClientDisconnectLayer`] | ends the call when the caller goes away |
//! | [`HardCeilingLayer`] | ends the node at an absolute limit |
//! | [`StepTimeoutLayer`] | ends the node when nothing was progress for a while |
//! | [`StopPhraseLayer`] | ends the runs of a session when its user says so; outside of all caps |
//! | [`TurnCapLayer`] | ends a run that has used up its turns |
//! | [`LoopGuardLayer`] | ends a run whose tool calls go in circles |
//! | [`ProgressLayer`] | says that a call takes long, keeps a silent stream alive |
//! | [`ModelFallbackLayer`] | moves a failed call to another model, an attempt each |
//! | [`RetryBudgetLayer`] | repeats a failed attempt while a budget pays for it |
//! | [`HardCeilingLayer`], [`StepTimeoutLayer`] again | end the attempt: another may be tried |
//! | [`HealthGateLayer`] | lets calls wait while the upstream restarts |
//!
//! A layer acts on the node that it finds in the request's extensions, so the
//! same layer means another thing further in: below a layer that opens an
//! attempt it ends the attempt. [`Scope::Run`] makes it act on the whole run.
//!
//! # In the log
//!
//! Each call that is over is one event of [`tracing`], `call ended`, once nothing of it is
//! left; so is each run that is more than its call, `run ended`. The target of these and of
//! all other events is `tower_agent`.
//!
//! | level | of an end that was | for example |
//! |---|---|---|
//! | `DEBUG` | [`Completed`](TerminalReason::Completed) | |
//! | `INFO` | a cut: a clock, a caller who left, an abort, a failed upstream | `step_timeout`, `max_turn_time`, `client_disconnect`, `aborted`, `upstream_failed` |
//! | `WARN` | a limit of the run | `turn_cap_reached`, `retry_budget_exceeded`, `loop_detected` |
//!
//! | field | |
//! |---|---|
//! | `reason` | why, by the wire name |
//! | `ended` | what was ended: the `call`, or the `run` that it belongs to |
//! | `run`, `session` | their ids; no `session` if there is none |
//! | `candidate`, `attempts` | of a call: which candidate served it, or was asked last, and how many tries there were |
//! | `turns` | of a run: how many it has used up |
//! | `elapsed` | from the opening to the end |
//! | `input_tokens`, `output_tokens` | the usage, as far as an upstream said |
//!
//! A run that was opened for one call has the line of that call, and so has a run that ends
//! with the only call it ever had. A line is written after all that wait for the end have
//! been woken; a subscriber that panics disturbs nothing, and without one that wants the
//! line nothing is read for it.
//!
//! # Features
//!
//! All layers are always there. `axum` adds an extractor for [`Run`], `reqwest`
//! adds `ReqwestService`; both are in [`adapter`].

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(any(feature = "axum", feature = "reqwest")),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "the module is behind the features"
    )
)]

#[cfg(any(feature = "axum", feature = "reqwest"))]
pub mod adapter;
pub mod attempt;
pub mod body;
pub mod error;
pub mod layers;
pub mod llm;
pub mod registry;
pub mod run;
pub mod supervise;
pub mod tool;
pub mod watchdog;

// The tests below name the crate as its users do.
#[cfg(test)]
extern crate self as tower_agent;
#[cfg(test)]
mod tests;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct Readme;

#[doc(no_inline)]
pub use self::{
    attempt::{Candidate, CandidateDialect, IdleBreaker, RetryBudget},
    body::ReplayBody,
    error::BoxError,
    layers::{
        client_disconnect::ClientDisconnectLayer,
        hard_ceiling::HardCeilingLayer,
        health_gate::HealthGateLayer,
        loop_guard::LoopGuardLayer,
        model_fallback::{CandidateOrder, Cooldowns, ModelFallbackLayer},
        progress::ProgressLayer,
        pump::PumpLayer,
        response::TerminalResponseLayer,
        retry_budget::RetryBudgetLayer,
        run::RunLayer,
        step_timeout::StepTimeoutLayer,
        stop_phrase::StopPhraseLayer,
        turn_cap::TurnCapLayer,
    },
    registry::{Owner, OwnerCaps, RunRegistry},
    run::{
        CallSummary, InvalidRunId, Limits, LoopPattern, LoopVerdict, NodeKind, NotCounted,
        ProgressNotices, ResetOn, Run, RunEvent, RunId, RunNotice, RunSnapshot, Scope, Step,
        StepKind, TerminalReason, Terminated, Trajectory,
    },
    tool::ToolError,
    watchdog::Watchdog,
};
