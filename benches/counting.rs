//! The instructions that it adds to a gateway's stack to count turns and tokens without caps, and
//! those of a stack without fallback and loop guard.
//!
//! `.ci/instructions.py` runs the cases as it does those of `instructions.rs`. The bare case of the
//! counts is the stack that does not count, and that of the sole candidate the upstream alone.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

mod support;

use std::{convert::Infallible, hint::black_box};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceBuilder};
use tower_agent::{
    AgentStack, BoxError, Candidate, ClientDisconnectLayer, ReplayBody, RetryBudget, RunLayer,
    RunRegistry, TerminalResponseLayer,
};

use support::{Answers, EVENT, FRAMES, Frames, LIMIT, drain, prompt, ready_after, runtime};

/// A whole answer that states its tokens.
const ANSWER: &[u8] = br#"{"object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hello"}}],"usage":{"prompt_tokens":50,"completion_tokens":2}}"#;

const CASES: [&str; 8] = [
    "count_call/bare",
    "count_call/tower_agent",
    "count_frame/bare",
    "count_frame/tower_agent",
    "sole_call/bare",
    "sole_call/tower_agent",
    "sole_frame/bare",
    "sole_frame/tower_agent",
];

/// A client's stack for one model.
fn sole<S, B>(
    upstream: S,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<impl Body<Data = Bytes, Error = BoxError>>,
    Error = BoxError,
>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let stack = AgentStack::client().ceiling(LIMIT).step(LIMIT);
    stack.retry(RetryBudget::new()).service(upstream)
}

/// Runs calls with a whole answer each.
fn calls<S, B>(mut service: S, times: usize) -> usize
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error: std::fmt::Debug>,
    B: Body,
{
    for _ in 0..times {
        let answer = ready_after(service.call(prompt())).unwrap();
        black_box(ready_after(answer.into_body().collect()).is_ok());
    }
    times
}

/// Runs calls with a stream each, and answers how many frames that is.
fn frames<S, B>(mut service: S, times: usize) -> usize
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error: std::fmt::Debug>,
    B: Body<Data = Bytes, Error: std::fmt::Debug>,
{
    for _ in 0..times {
        let answer = ready_after(service.call(prompt())).unwrap();
        black_box(drain(answer.into_body()));
    }
    times * FRAMES
}

fn stack<S, B>(
    upstream: S,
    counts: bool,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<impl Body<Data = Bytes, Error = BoxError>>,
    Error = Infallible,
>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let stack = AgentStack::client()
        .ceiling(LIMIT)
        .run_step(LIMIT)
        .fallback([Candidate::new("large"), Candidate::new("small")])
        .retry(RetryBudget::new())
        .step(LIMIT);
    let stack = match counts {
        true => stack.always_count(),
        false => stack,
    };
    // As a server's stack, without the pump, which needs a runtime.
    ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(ClientDisconnectLayer::new())
        .layer(stack.layer())
        .service(upstream)
}

/// Runs one case `times` times; answers how many calls or frames that is.
fn case(name: &str, times: usize) -> usize {
    let is_ours = name.ends_with("/tower_agent");
    let whole = Answers {
        body: Full::new(Bytes::from_static(ANSWER)),
        events: false,
    };
    let stream = Answers {
        body: Frames::pending(EVENT),
        events: true,
    };
    match (name.split('/').next(), is_ours) {
        (Some("count_call"), counts) => calls(stack(whole, counts), times),
        (Some("count_frame"), counts) => frames(stack(stream, counts), times),
        (Some("sole_call"), false) => calls(whole, times),
        (Some("sole_call"), true) => calls(sole(whole), times),
        (Some("sole_frame"), false) => frames(stream, times),
        (Some("sole_frame"), true) => frames(sole(stream), times),
        _ => panic!("there is no case {name}"),
    }
}

fn main() {
    let rt = runtime();
    let _entered = rt.enter();
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    if let [name, times] = &*arguments {
        println!("{}", case(name, times.parse().unwrap()));
        return;
    }
    for name in CASES {
        println!("{name} {}", case(name, 1));
    }
}
