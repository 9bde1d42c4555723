//! The instructions that it adds to a gateway's stack to count turns and tokens without caps.
//!
//! `.ci/instructions.py` runs the cases as it does those of `instructions.rs`; the bare case is the
//! stack that does not count.

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

const CASES: [&str; 4] = [
    "count_call/bare",
    "count_call/tower_agent",
    "count_frame/bare",
    "count_frame/tower_agent",
];

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
    let counts = name.ends_with("/tower_agent");
    match name.split('/').next() {
        Some("count_call") => {
            let body = Full::new(Bytes::from_static(ANSWER));
            let events = false;
            let mut stack = stack(Answers { body, events }, counts);
            for _ in 0..times {
                let answer = ready_after(stack.call(prompt())).unwrap();
                black_box(ready_after(answer.into_body().collect()).is_ok());
            }
            times
        }
        Some("count_frame") => {
            let body = Frames::pending(EVENT);
            let mut stack = stack(Answers { body, events: true }, counts);
            for _ in 0..times {
                let answer = ready_after(stack.call(prompt())).unwrap();
                black_box(drain(answer.into_body()));
            }
            times * FRAMES
        }
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
