//! The instructions that the layers add: one case, run a given number of times.
//!
//! `.ci/instructions.py` runs each case under valgrind with two numbers, takes the difference, and
//! compares what a case adds to its bare service with the bounds in `.ci/instructions.txt`. Without
//! arguments each case runs once.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

mod support;

use std::{cell::Cell, hint::black_box, rc::Rc};

use bytes::Bytes;
use http::Request;
use http_body::Body;
use http_body_util::Empty;
use tower::{Layer, Service, ServiceBuilder};
use tower_agent::{
    ClientDisconnectLayer, HardCeilingLayer, Run, StepTimeoutLayer, TimeLimitsLayer,
    llm::dialect::Dialect, llm::stream::StreamReader,
};

use support::{
    Answers, EVENT, FRAMES, Frames, LIMIT, Slot, SlotUpstream, TOKEN, drain, five_layers,
    full_stack, prompt, ready_after, request, runtime, server_stack,
};

/// Calls `service` with a request of `slot`, which the upstream puts back.
fn calls<S>(slot: &Slot, mut service: S, times: usize)
where
    S: Service<Request<()>>,
{
    for _ in 0..times {
        let request = slot.take().expect("the upstream put it back");
        black_box(ready_after(service.call(request)).is_ok());
    }
}

/// Calls `service` with prompts of eight headers and 200 bytes.
fn prompts<S: Service<Request<http_body_util::Full<Bytes>>>>(mut service: S, times: usize) {
    let template = prompt();
    for _ in 0..times {
        black_box(ready_after(service.call(template.clone())).is_ok());
    }
}

/// Reads bodies of [`FRAMES`] frames each, one answer after the other.
fn frames<B>(mut answer: impl FnMut() -> B, times: usize)
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    for _ in 0..times {
        black_box(drain(answer()));
    }
}

/// The body of the answer of `service` to a request of `run`.
fn body<S, B>(mut service: S, run: &Run) -> B
where
    S: Service<Request<()>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
{
    let mut request = request("/v1/chat/completions");
    request.extensions_mut().insert(run.clone());
    ready_after(service.call(request)).unwrap().into_body()
}

fn upstream(body: Frames, events: bool) -> SlotUpstream<Frames> {
    SlotUpstream {
        slot: Slot::default(),
        body,
        events,
        pending: false,
    }
}

/// Runs one case `times` times; answers how many things of its kind, calls or frames, that is.
fn case(name: &str, times: usize) -> usize {
    let run = Run::open();
    let mut call = request("/v1/chat/completions");
    call.extensions_mut().insert(run.clone());
    let slot: Slot = Rc::new(Cell::new(Some(call)));
    let empty = |pending| SlotUpstream {
        slot: Rc::clone(&slot),
        body: Empty::<Bytes>::new(),
        events: false,
        pending,
    };
    let timeout = tower::timeout::TimeoutLayer::new(LIMIT);
    let body_timeout = tower_http::timeout::ResponseBodyTimeoutLayer::new(LIMIT);
    let clocks = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT));
    let limits = TimeLimitsLayer::new(HardCeilingLayer::new(LIMIT), StepTimeoutLayer::new(LIMIT));
    let [ready, pending] =
        [Frames::ready(TOKEN), Frames::pending(TOKEN)].map(|frames| upstream(frames, false));
    let [content, waited] = [Frames::ready(EVENT), Frames::pending(EVENT)];
    let sse = upstream(content, true);
    let prompted = Answers {
        body: Empty::<Bytes>::new(),
        events: false,
    };
    let stream = Answers {
        body: waited,
        events: true,
    };
    match name {
        "T3/bare" => calls(&slot, empty(false), times),
        "T3/tower_agent" => calls(
            &slot,
            StepTimeoutLayer::new(LIMIT).layer(empty(false)),
            times,
        ),
        "T3/tower" => calls(&slot, timeout.layer(empty(false)), times),
        "T4/bare" => prompts(prompted.clone(), times),
        "T4/tower_agent" => prompts(five_layers(prompted.clone()), times),
        "T5/bare" => calls(&slot, empty(true), times),
        "T5/tower_agent" => {
            let stack = ServiceBuilder::new()
                .layer(ClientDisconnectLayer::new())
                .layer(clocks)
                .service(empty(true));
            calls(&slot, stack, times);
        }
        "T5/agent_stack" => {
            let stack = ServiceBuilder::new()
                .layer(ClientDisconnectLayer::new())
                .layer(limits)
                .service(empty(true));
            calls(&slot, stack, times);
        }
        "T5/tower" => calls(&slot, timeout.layer(empty(true)), times),
        "T1/bare" => frames(|| body(ready.clone(), &run), times),
        "T1/tower_agent" => frames(|| body(clocks.service(ready.clone()), &run), times),
        "T1/agent_stack" => frames(|| body(limits.layer(ready.clone()), &run), times),
        "T1/tower_http" => frames(|| body(body_timeout.layer(ready.clone()), &run), times),
        "T2/bare" => frames(|| body(pending.clone(), &run), times),
        "T2/tower_agent" => frames(|| body(clocks.service(pending.clone()), &run), times),
        "T2/agent_stack" => frames(|| body(limits.layer(pending.clone()), &run), times),
        "T2/tower_http" => frames(|| body(body_timeout.layer(pending.clone()), &run), times),
        "T1b/bare" => frames(|| body(sse.clone(), &run), times),
        "T1b/tower_agent" => frames(|| body(clocks.service(sse.clone()), &run), times),
        "T7/bare" => {}
        "T7/tower_agent" => {
            let mut reader = StreamReader::new(Dialect::OpenAiChat);
            for _ in 0..times * FRAMES {
                black_box(reader.push(black_box(EVENT)));
            }
        }
        "T14/bare" => frames(
            || {
                ready_after(stream.clone().call(prompt()))
                    .unwrap()
                    .into_body()
            },
            times,
        ),
        "T14/tower_agent" => {
            let mut stack = full_stack(stream);
            frames(
                || ready_after(stack.call(prompt())).unwrap().into_body(),
                times,
            );
        }
        "T14/agent_stack" => {
            let mut stack = server_stack(stream);
            frames(
                || ready_after(stack.call(prompt())).unwrap().into_body(),
                times,
            );
        }
        "T14/tower_http" => {
            let mut service = body_timeout.layer(stream);
            frames(
                || ready_after(service.call(prompt())).unwrap().into_body(),
                times,
            );
        }
        other => panic!("there is no case {other}"),
    }
    match name.split('/').next() {
        Some("T3" | "T4" | "T5") => times,
        _ => times * FRAMES,
    }
}

const CASES: [&str; 25] = [
    "T1/bare",
    "T1/tower_agent",
    "T1/agent_stack",
    "T1/tower_http",
    "T1b/bare",
    "T1b/tower_agent",
    "T2/bare",
    "T2/tower_agent",
    "T2/agent_stack",
    "T2/tower_http",
    "T3/bare",
    "T3/tower_agent",
    "T3/tower",
    "T4/bare",
    "T4/tower_agent",
    "T5/bare",
    "T5/tower_agent",
    "T5/agent_stack",
    "T5/tower",
    "T7/bare",
    "T7/tower_agent",
    "T14/bare",
    "T14/tower_agent",
    "T14/agent_stack",
    "T14/tower_http",
];

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
