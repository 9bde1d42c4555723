//! Tower layers that supervise an LLM agent's run, on a server or around a client.
//!
//! They give you
//!
//! - clocks that know work from silence: a [step window](StepTimeoutLayer) that each token
//!   restarts, and a [ceiling](HardCeilingLayer) that nothing restarts;
//! - an end of work, upstream too, as soon as the [caller leaves](ClientDisconnectLayer);
//! - [retries](RetryBudgetLayer) and [fallbacks](ModelFallbackLayer) within budgets, and none
//!   for a run that is over;
//! - caps on [turns](TurnCapLayer), [owners](OwnerCapLayer) and [loops](LoopGuardLayer);
//! - a [registry](RunRegistry), by which runs are found, observed and ended from outside;
//! - a [`TerminalReason`] for every end, which the official SDKs [raise](TerminalResponseLayer).
//!
//! Why all of it together: *this attempt failed, try another* and *the run is over, stop* look
//! the same to a layer that sees an error. Here the reason is stored on a [`Run`] before
//! anything is dropped, and every layer reads it before it acts.
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
//! One run over several calls and tools; its end ends them all:
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
//! From the outside in. A wrong order is never unsafe, only less useful.
//!
//! | layer | what it does |
//! |---|---|
//! | [`TerminalResponseLayer`] | turns reasons into HTTP answers and error events |
//! | [`RunLayer`] | finds or opens the run by its id, and opens a call |
//! | [`PumpLayer`] | servers: makes deadlines hold although the caller reads slowly |
//! | [`ClientDisconnectLayer`] | ends the call when the caller leaves |
//! | [`HardCeilingLayer`] | ends the node at an absolute limit |
//! | [`StepTimeoutLayer`] | ends the node when nothing was progress for a while |
//! | [`StopPhraseLayer`] | ends the runs of a session when its user says so; outside of all caps |
//! | [`OwnerCapLayer`] | caps the open runs of one owner, and its turns in an hour |
//! | [`TurnCapLayer`] | ends a run that has used up its turns |
//! | [`LoopGuardLayer`] | ends a run with tool calls that go in circles |
//! | [`ProgressLayer`] | reports calls that take long, keeps a silent stream alive |
//! | [`ModelFallbackLayer`] | moves a failed call to another model, an attempt each |
//! | [`RetryBudgetLayer`] | repeats a failed attempt while a budget pays for it |
//! | [`HardCeilingLayer`], [`StepTimeoutLayer`] again | end the attempt: another may follow |
//! | [`HealthGateLayer`] | makes calls wait while the upstream restarts |
//!
//! A layer acts on the node that it finds in the request's extensions, so the
//! same layer means another thing further in: below a layer that opens an
//! attempt it ends the attempt. [`Scope::Run`] makes it act on the whole run. A node's end
//! ends everything below it, and nothing above it.
//!
//! # Around the layers
//!
//! [`Run::open`], [`Run::attach`] and [`Run::tool`] put calls and tools of your own under one
//! run. [`Run::child`] is a sub-agent's run: it ends with its parent, never the other way
//! round; [`child_asked`](Run::child_asked) is asked to stop, and
//! [`child_detached`](Run::child_detached) lives on.
//!
//! A [`RunRegistry`] knows runs by owner and id, across the requests of each:
//! [`abort`](RunRegistry::abort), [`abort_session`](RunRegistry::abort_session),
//! [`supersede`](RunRegistry::supersede), [`wait`](RunRegistry::wait),
//! [`reopen`](RunRegistry::reopen), [`drain`](RunRegistry::drain) for a shutdown that lets the
//! current step finish, [`subscribe`](RunRegistry::subscribe) for any number of observers. An
//! ended id stays ended, whatever its agent sends, until the registry forgets it.
//!
//! A new limit can be [observed](StepTimeoutLayer::observe) first. A [`Watchdog`] has a
//! checker, then a person, look at runs that look stuck. A [`Trajectory`] writes a line of JSON
//! for each run that a limit or a clock ended. [`Terminated`] is the error of a node that was
//! ended, and a `main` may return it.
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
//! | `INFO` | a cut: a clock, a caller that left, an abort, a failed upstream | `step_timeout`, `max_turn_time`, `client_disconnect`, `aborted`, `upstream_failed` |
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
mod headers;
pub mod layers;
pub mod llm;
mod lock;
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

/// The README's examples compile; they send their requests with reqwest.
#[cfg(all(doctest, feature = "reqwest"))]
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
        owner_cap::OwnerCapLayer,
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
