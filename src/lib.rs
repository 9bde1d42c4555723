//! Tower layers that supervise an LLM agent's run, on a server or around a client.
//!
//! The layers give you
//!
//! - two limits on time: a [step window](StepTimeoutLayer), which progress restarts, and a
//!   [ceiling](HardCeilingLayer), which nothing restarts;
//! - the end of a call and of its upstream request as soon as the [caller
//!   disconnects](ClientDisconnectLayer);
//! - [retries](RetryBudgetLayer) and [fallbacks](ModelFallbackLayer) within budgets, and none for
//!   a run that is over;
//! - caps on the [turns](TurnCapLayer), the [tokens](TokenCapLayer) and the cost of a run, on the
//!   runs, turns, tokens and cost of an [owner](OwnerCapLayer), and on [loops](LoopGuardLayer) of
//!   tool calls;
//! - a [registry](RunRegistry), through which a program finds, observes and ends runs;
//! - a [`TerminalReason`] for every end; the official SDKs [raise](TerminalResponseLayer) an
//!   error for a cut answer.
//!
//! Why all of it together: *this attempt failed, try another* and *the run is over, stop* look the
//! same to a layer that sees an error. Here a layer that ends a call stores the reason on a [`Run`]
//! before it drops the call, and retry and fallback layers read the stored reason before they try
//! again.
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
//!     .layer(PumpLayer::new())
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
//! One run covers several calls and tools; the end of the run ends them all:
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
//! The table has the layers from the outside in. [`AgentStack`] makes all of them but the health
//! gate in this order, from named settings. A node is a run, a call, an attempt or a tool: see
//! [`NodeKind`].
//!
//! | layer | what it does |
//! |---|---|
//! | [`TerminalResponseLayer`] | turns reasons into HTTP answers and error events; if asked, keeps a silent stream alive and notifies observers of slow calls |
//! | [`RunStoreLayer`] | several processes: asks the store that they share about the run |
//! | [`RunLayer`] | finds or opens the run by its id, and opens a call |
//! | [`PumpLayer`] | servers: ends a call at its deadlines although the caller does not read |
//! | [`ClientDisconnectLayer`] | ends the call when the caller disconnects; not needed inside of a pump |
//! | [`HardCeilingLayer`] | ends the node at an absolute limit |
//! | [`StepTimeoutLayer`] | ends the node after a window without progress, or below a floor on speed |
//! | [`StopPhraseLayer`] | ends the other runs of a session when its user sends a stop phrase; outside of all caps |
//! | [`OwnerCapLayer`] | caps the open runs of one owner, and its turns, tokens and cost in an hour |
//! | [`TurnCapLayer`] | ends a run that has used up its turns |
//! | [`TokenCapLayer`] | ends a run that has used up its tokens, or what they may cost |
//! | [`LoopGuardLayer`] | ends a run that repeats the same tool calls |
//! | [`ModelFallbackLayer`] | moves a failed call to another model, in a new attempt |
//! | [`RetryBudgetLayer`] | repeats a failed attempt while a budget allows it |
//! | [`HardCeilingLayer`], [`StepTimeoutLayer`] again | end the attempt: another may follow |
//! | [`TimeLimitsLayer`] | a ceiling directly around a step window, in either place: does as the two, for less |
//! | [`HealthGateLayer`] | makes calls wait while the upstream restarts |
//!
//! A layer that limits time acts on the node that it finds in the request's extensions: outside of
//! retry and fallback layers on the call or its run, inside of them on the attempt. [`Scope::Run`]
//! makes it act on the whole run. The end of a node ends the nodes below it.
//!
//! A step window outside of retry and fallback must be longer than the window inside. Otherwise the
//! outer window ends the call before another attempt can follow a silent one, and the first such
//! end is logged as a warning.
//!
//! A layer's own file, such as `src/layers/step_timeout.rs`, says what is limited. The wrapper in
//! `src/supervise/` enforces it for all of them: in each poll it checks the node, and cuts the future or
//! body of a node that has ended.
//!
//! # Around the layers
//!
//! [`Run::open`], [`Run::attach`] and [`Run::tool`] put calls and tools of your own under one
//! run. [`Run::child`] opens the run of a sub-agent, which ends when its parent ends; its own end
//! does not end the parent. At the end of the parent a [`child_asked`](Run::child_asked) is asked
//! to stop, and a [`child_detached`](Run::child_detached) goes on.
//!
//! A [`RunRegistry`] stores runs by owner and id, so that several requests can belong to one run. A
//! request with the id of a completed run opens a new run. A request with the id of a run that
//! ended otherwise gets the stored reason, until the registry forgets the run.
//!
//! See [`abort`](RunRegistry::abort), [`abort_session`](RunRegistry::abort_session),
//! [`supersede`](RunRegistry::supersede), [`wait`](RunRegistry::wait) and
//! [`reopen`](RunRegistry::reopen). [`drain`](RunRegistry::drain) is for a shutdown that lets the
//! current step finish, [`subscribe`](RunRegistry::subscribe) for any number of observers.
//!
//! A new limit on time or on loops can be [observed](StepTimeoutLayer::observe) first: the layer
//! then reports the ends that the limit would have caused, and ends nothing. A [`Watchdog`] asks a
//! checker, then a person, about runs that look stuck. A [`Trajectory`] writes lines of JSON about
//! runs that a limit or a clock ended, and about refused tools and requests. [`Terminated`] is the
//! error of a node that was ended, and a `main` may return it.
//!
//! # In the log
//!
//! Each ended call causes one event of [`tracing`], `call ended`, once all its futures and bodies
//! have been dropped. Each ended run causes one event `run ended`, unless it ended with its only
//! call. The target of these and of all other events is `tower_agent`.
//!
//! | level | the reason of the end | for example |
//! |---|---|---|
//! | `DEBUG` | [`Completed`](TerminalReason::Completed) | |
//! | `INFO` | a cut: a passed clock, a caller that left, an abort, a failed upstream | `step_timeout`, `slow`, `max_turn_time`, `client_disconnect`, `aborted`, `upstream_failed` |
//! | `WARN` | an exceeded limit of the run | `turn_cap_reached`, `retry_budget_exceeded`, `loop_detected` |
//!
//! | field | |
//! |---|---|
//! | `reason` | the terminal reason, by its wire name |
//! | `ended` | the kind of the node that ended: `call`, or the kind of the node above from which it inherited its end, such as `run` |
//! | `run`, `session` | the ids of the run and of its session; no `session` if there is none |
//! | `candidate`, `attempts` | of a call: the candidate that served it, or the last one that was tried, and the number of tries |
//! | `turns` | of a run: the number of turns that it has used up |
//! | `step`, `description` | the last step of the run, unless the reason is `completed`: its kind and its description |
//! | `elapsed` | the time from the opening of the node to its end |
//! | `input_tokens`, `output_tokens` | the usage, as far as an upstream reported it |
//!
//! A run that ends with its only call, or that was opened for that call, has no separate event: the
//! event of the call stands for both. Each event is sent after the tasks that wait for the end
//! have been woken. The event of a call is sent before [`Run::settled`] resolves for the call or for
//! its run. A tracing subscriber that panics does not disturb the call. If no subscriber is
//! interested in the event, its fields are not read.
//!
//! # Traces
//!
//! A subscriber that wants `tower_agent` at `INFO` gets a span for each run that the program opens,
//! and for each call, attempt and tool. Without such a subscriber no span is made. [`Run::span`]
//! returns the span of a node, for a transport that sends its `traceparent`.
//!
//! The fields have the names of OpenTelemetry's GenAI conventions, for the layer of
//! `tracing-opentelemetry`; `docs/events.md`, beside the README, lists them. Neither prompts nor
//! answers are recorded. For work that did not complete, `error.type` is the reason of a run or
//! call, the class of an attempt's failure or the reason that cut the attempt, and for a tool the
//! reason or `tool_failed`.
//!
//! # Compile errors
//!
//! `docs/errors.md`, beside the README, has the compile errors that a first program meets, with
//! their cures, and recipes. Two of these errors:
//!
//! - The method `oneshot` exists, but its trait bounds were not satisfied: inside of a layer that
//!   reads the request, such as [`RetryBudgetLayer`], the service takes a request with a
//!   [`ReplayBody`].
//! - Implementation of `From` is not general enough: at a `tokio::spawn` of a call, if the
//!   innermost service answers with a body with [`BoxError`] as its error. Box the body before it
//!   is read (`answer.into_body().boxed_unsync()`), or box the stack
//!   (`ServiceBuilder::boxed_clone_sync`).
//!
//! # Features
//!
//! All layers are in the default build. The feature `axum` adds an extractor for [`Run`] in
//! [`adapter`], `config` adds `AgentConfig`, a configuration in TOML or JSON, `schema` adds JSON
//! Schemas of that, and `metrics` records metrics with the facade of that name.
//!
//! Clients are crates of their own: `tower-agent-reqwest` and `tower-agent-hyper`. What LLM APIs
//! send is read by `tower-agent-llm`, which is [`llm`] here.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "axum"),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "the module is behind the features"
    )
)]

#[cfg(feature = "axum")]
pub mod adapter;
pub mod attempt;
pub mod body;
#[cfg(feature = "config")]
pub mod config;
pub mod error;
mod guarded;
mod headers;
pub mod layers;
mod lazy_sleep;
pub mod llm;
mod lock;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod registry;
pub mod run;
pub mod stack;
pub mod supervise;
pub mod tool;
mod wall_clock;
pub mod watchdog;

// This alias lets the tests below name the crate `tower_agent`, as its users do.
#[cfg(test)]
extern crate self as tower_agent;
#[cfg(test)]
mod tests;

/// Compiles the examples of the README as doc tests; the examples send requests with reqwest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct Readme;

/// Compiles the programs of `docs/errors.md`, and checks that its wrong programs do not compile.
#[cfg(doctest)]
#[doc = include_str!("../docs/errors.md")]
#[derive(Debug)]
pub struct Errors;

/// Compiles the programs of `docs/concepts.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/concepts.md")]
#[derive(Debug)]
pub struct Concepts;

/// Compiles the programs of `docs/tasks/own-server.md`.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../docs/tasks/own-server.md")]
#[derive(Debug)]
pub struct OwnServer;

/// Compiles the programs of `docs/tasks/own-client.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/tasks/own-client.md")]
#[derive(Debug)]
pub struct OwnClient;

/// Compiles the program of `docs/config.md`.
#[cfg(all(doctest, feature = "config"))]
#[doc = include_str!("../docs/config.md")]
#[derive(Debug)]
pub struct Configuration;

#[cfg(feature = "config")]
#[doc(no_inline)]
pub use self::config::AgentConfig;

#[doc(no_inline)]
pub use self::{
    attempt::{Candidate, CandidateDialect, FailedAttempts, IdleBreaker, Jitter, RetryBudget},
    body::ReplayBody,
    error::BoxError,
    layers::{
        client_disconnect::ClientDisconnectLayer,
        hard_ceiling::HardCeilingLayer,
        health_gate::HealthGateLayer,
        loop_guard::LoopGuardLayer,
        model_fallback::{CandidateOrder, Cooldowns, ModelFallbackLayer},
        owner_cap::OwnerCapLayer,
        pump::PumpLayer,
        retry_budget::RetryBudgetLayer,
        run::RunLayer,
        run_store::RunStoreLayer,
        step_timeout::StepTimeoutLayer,
        stop_phrase::StopPhraseLayer,
        terminal_response::TerminalResponseLayer,
        time_limits::TimeLimitsLayer,
        token_cap::TokenCapLayer,
        turn_cap::TurnCapLayer,
    },
    llm::failure::FailureClass,
    registry::{AbortOutcome, Owner, OwnerCaps, RunRegistry},
    run::{
        CallSummary, CustomReason, InvalidRunId, Limits, LoopPattern, LoopVerdict, NodeKind,
        NotCounted, ProgressNotices, ReasonClass, ResetOn, Run, RunEvent, RunEvents, RunExtension,
        RunId, RunNotice, RunSnapshot, Scope, Step, StepKind, TerminalReason, Terminated,
        TokenCaps, Trajectory,
    },
    stack::AgentStack,
    tool::ToolError,
    watchdog::Watchdog,
};
