//! The support of all tests: scripted upstreams, stacks of layers, and their outcomes.
//!
//! A test has three moves. It scripts an [`Upstream`], builds a [`Stack`] around it, and
//! compares the [`Outcome`] of one request, on a paused clock:
//!
//! ```ignore
//! use crate::support::{Script, Stack, Upstream, chat, prompt, secs};
//!
//! #[tokio::test(start_paused = true)]
//! async fn silence_after_a_token_ends_the_call_and_drops_the_upstream() {
//!     let upstream = Upstream::script(Script::sse().data(chat("a")).never());
//!     let stack = Stack::default().step(120).build(&upstream);
//!
//!     let outcome = stack.ask(prompt("a")).await;
//!
//!     assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
//!     assert_eq!((outcome.at, outcome.text), (secs(120), chat("a")));
//!     assert_eq!(upstream.dropped().reason, Some(TerminalReason::StepTimeout));
//! }
//! ```
//!
//! A target includes it with `#[path = "../support/mod.rs"] mod support;` and its modules
//! import from `crate::support`.
//!
//! # Which part for which test
//!
//! | for | use |
//! |---|---|
//! | what the upstream does | [`Script`]: `sse()`, `json()`, `before_head()`, then its steps; [`failure`], [`healthy`], `Script::answer`, `Script::error_code` |
//! | a script a call | [`Upstream::scripts`]; by model, [`Upstream::play`] |
//! | what reached the upstream | [`Upstream`]: `calls`, `requests`, `models`, `times`, `reasons`, `dropped`, ... |
//! | layers in the documented order | [`Stack`] and its setters, in seconds |
//! | a setter that `Stack` lacks | [`Stack::layer`] with a [`Place`] and the layer |
//! | layers in another order, or services of other crates | `ServiceBuilder`, and [`Outcome::of`] around `service.oneshot(request)` |
//! | the answer piece by piece | `stack.oneshot(request)`, then [`ReadExt`]: `token`, `next`, `read` |
//! | requests | [`prompt`], [`prompt_json`], [`request`], [`messages`]; with a node, [`attach`], [`call_of`], [`request_of`] |
//! | an act in the middle of a call | [`later`] |
//! | log lines, spans, call summaries | [`LogCapture`], [`SpanCapture`], [`Summaries`] |
//! | wakes, with polls by hand | [`WakeCount`], [`poll_once`], [`poll_body`] |
//!
//! Sockets and processes have a support of their own, `tests/support/net/`, which the targets
//! `sockets` and `gateway` mount as `net`.
//!
//! # How to convert an older test
//!
//! A free function that builds layers becomes a `Stack` expression; one that asks and
//! reads becomes `ask`; a struct for what the caller got becomes `Outcome`. `start` and
//! `start.elapsed()` become `outcome.at`. What stands in one test alone stays in it.

#![allow(
    dead_code,
    unused_imports,
    reason = "each target uses a part of the support"
)]

mod clock;
mod log_capture;
mod outcome;
mod playback;
mod read;
mod record;
mod request;
mod request_body;
mod script;
mod service;
mod span_capture;
mod stack;
mod summaries;
mod upstream;
mod wake;
mod wire;

pub(crate) use self::{
    clock::{later, secs},
    log_capture::{LogCapture, LogEvent},
    outcome::{Outcome, run_on, tries},
    playback::{UpstreamBody, UpstreamFuture},
    read::{Read, ReadExt, poll_body, poll_once, read_ahead, reason_of},
    record::{DropRecord, RequestRecord},
    request::{
        attach, call_of, messages, plain, prompt, prompt_as, prompt_json, request, request_of,
        with_header,
    },
    request_body::{RequestBody, Upload},
    script::{Script, failure, healthy, healthy_text},
    service::{ResponseBody, StackService},
    span_capture::{SpanCapture, SpanRecord},
    stack::{Place, Stack, no_delay},
    summaries::Summaries,
    upstream::Upstream,
    wake::WakeCount,
    wire::{DONE, ERROR, FINISH, PING, PRELUDE, STOP, TOKEN, USAGE, chat, content_block},
};
