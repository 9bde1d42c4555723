//! Layers, tools and runs put together in ways that no single layer's tests see.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

#[path = "support/mod.rs"]
mod support;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Channel, Full};
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, Owner, PumpLayer, Run, RunLayer,
    RunRegistry, Scope, StepTimeoutLayer, TerminalReason, TerminalResponseLayer,
};

use support::{
    DONE, FINISH, ReadExt, Script, Stack, Upstream, reason_of, request, run_on, with_header,
};

const SECOND: Duration = Duration::from_secs(1);

type Answer = Response<Full<Bytes>>;

fn hello() -> Result<Answer, Infallible> {
    Ok(Response::new(Full::new(Bytes::from("hello"))))
}

fn with_id(id: &str) -> Request<()> {
    with_header(Request::new(()), "x-run-id", id)
}

fn run_of<B>(request: &Request<B>) -> Run {
    request.extensions().get::<Run>().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_a_handler_does_not_complete_the_run_of_its_request() {
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(600 * SECOND))
        .service(service_fn(|request: Request<()>| async move {
            let run = run_of(&request);
            run.tool("search").watch(sleep(SECOND)).await.unwrap();
            assert_eq!(run.terminal_reason(), None);
            sleep(SECOND).await;
            hello()
        }));

    let answer = service.oneshot(Request::new(())).await.unwrap();
    let run = run_on(&answer);

    assert_eq!(answer.into_body().read().await.whole(), "hello");
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_handler_makes_several_calls_under_the_run_of_its_request() {
    let client = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(60 * SECOND))
        .service(service_fn(|_: Request<()>| async { hello() }));
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(60 * SECOND))
        .service(service_fn(move |request: Request<()>| async move {
            let run = run_of(&request);
            for _ in 0..3 {
                let answer = client.oneshot(run.attach(Request::new(()))).await?;
                answer.into_body().read().await.end?;
            }
            Ok::<_, BoxError>(hello()?)
        }));

    let answer = service.oneshot(Request::new(())).await.unwrap();

    assert_eq!(answer.into_body().read().await.whole(), "hello");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_found_again_by_its_made_up_id_outlives_its_first_call() {
    let registry = RunRegistry::new();
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry.clone()))
        .service(service_fn(|request: Request<()>| async move {
            let slow = request.headers().contains_key("x-run-id");
            sleep(if slow { 10 * SECOND } else { 2 * SECOND }).await;
            hello()
        }));
    let first = async {
        let answer = service.clone().oneshot(Request::new(())).await.unwrap();
        answer.into_body().read().await.whole()
    };
    let second = async {
        sleep(SECOND).await;
        let id = registry.list()[0].run.to_string();
        let answer = service.clone().oneshot(with_id(&id)).await.unwrap();
        (answer.status(), answer.into_body().read().await.whole())
    };

    let (first, (status, second)) = tokio::join!(first, second);

    assert_eq!(first, "hello");
    assert_eq!(status, StatusCode::OK);
    assert_eq!(second, "hello");
}

#[tokio::test(start_paused = true)]
async fn a_failed_answer_leaves_the_run_of_an_id_open_in_any_order() {
    for run_layer_inside in [false, true] {
        let registry = RunRegistry::new();
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let upstream = service_fn(move |_: Request<()>| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                let mut answer = hello()?;
                if first {
                    *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let ceiling = HardCeilingLayer::new(600 * SECOND);
        let runs = RunLayer::new(registry.clone());
        for expected in [StatusCode::TOO_MANY_REQUESTS, StatusCode::OK] {
            let status = if run_layer_inside {
                let stack = ServiceBuilder::new().layer(ceiling).layer(runs.clone());
                let answer = stack.service(upstream.clone()).oneshot(with_id("r1")).await;
                let answer = answer.unwrap();
                let status = answer.status();
                answer.into_body().read().await.whole();
                status
            } else {
                let stack = ServiceBuilder::new().layer(runs.clone()).layer(ceiling);
                let answer = stack.service(upstream.clone()).oneshot(with_id("r1")).await;
                let answer = answer.unwrap();
                let status = answer.status();
                answer.into_body().read().await.whole();
                status
            };
            assert_eq!(status, expected, "inside: {run_layer_inside}");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}

/// One waiter per task is enough only for the nodes below the driver's.
/// covers: T25
#[tokio::test(start_paused = true)]
async fn the_end_of_another_run_in_the_same_task_is_noticed_at_once() {
    for foreign in [false, true] {
        let client = ServiceBuilder::new()
            .layer(ClientDisconnectLayer::new())
            .service(Upstream::script(Script::before_head().never()));
        let outer = Run::open();
        let inner = if foreign { Run::open() } else { outer.child() };
        let call = client.oneshot(inner.attach(Request::new(())));
        let start = Instant::now();

        let stopping = tokio::spawn({
            let inner = inner.clone();
            async move {
                sleep(SECOND).await;
                inner.end(TerminalReason::Aborted);
            }
        });
        let result = outer.tool("sub-agent").watch(call).await.unwrap();
        stopping.await.unwrap();

        let error = result.err().unwrap();
        assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
        assert_eq!(start.elapsed(), SECOND, "foreign: {foreign}");
        assert_eq!(outer.terminal_reason(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_another_run_in_the_same_task_ends_when_it_is_over() {
    let client = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(10 * SECOND))
        .service(Upstream::script(Script::before_head().never()));
    let outer = Run::open();
    let inner = Run::open();
    let call = client.oneshot(inner.attach(Request::new(())));
    let start = Instant::now();

    let pausing = tokio::spawn({
        let inner = inner.clone();
        async move {
            sleep(SECOND).await;
            let pause = inner.pause();
            sleep(100 * SECOND).await;
            drop(pause);
        }
    });
    let result = outer.tool("sub-agent").watch(call).await.unwrap();
    pausing.await.unwrap();

    let error = result.err().unwrap();
    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), 110 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_time_between_the_head_and_the_first_look_at_the_body_is_the_readers() {
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(10 * SECOND))
        .service(service_fn(|_: Request<()>| async {
            sleep(SECOND).await;
            let (mut upstream, body) = Channel::<Bytes>::new(4);
            tokio::spawn(async move {
                sleep(61 * SECOND).await;
                upstream.send_data(Bytes::from("late")).await.unwrap();
            });
            Ok::<_, Infallible>(Response::new(body))
        }));

    let answer = service.oneshot(Request::new(())).await.unwrap();
    sleep(60 * SECOND).await;

    assert_eq!(answer.into_body().read().await.whole(), "late");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_lies_unread_does_not_stop_the_tools_of_its_run() {
    let run = Run::open();
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(10 * SECOND).scope(Scope::Run))
        .service(service_fn(|_: Request<()>| async {
            sleep(SECOND).await;
            hello()
        }));

    let answer = service.oneshot(run.attach(Request::new(()))).await.unwrap();
    let tool = run.tool("long").window(90 * SECOND);
    let tool = tool.watch(sleep(60 * SECOND)).await;

    assert!(tool.is_ok());
    assert_eq!(answer.into_body().read().await.whole(), "hello");
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_a_credential_is_not_the_program() {
    let registry = RunRegistry::new();
    let nightly = registry.open(Owner::default(), "nightly".parse().unwrap());
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()))
        .layer(HardCeilingLayer::new(SECOND).scope(Scope::Run))
        .service(Upstream::script(Script::before_head().never()));

    assert!(service.oneshot(with_id("nightly")).await.is_err());

    assert_eq!(nightly.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_run_of_the_programs_own_is_forgotten_after_it_was_idle() {
    let registry = RunRegistry::new();
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).idle(60 * SECOND))
        .service(service_fn(|_: Request<()>| async { hello() }));
    for _ in 0..5 {
        let mut request = Request::new(());
        request.extensions_mut().insert(Run::open());
        let answer = service.clone().oneshot(request).await.unwrap();
        answer.into_body().read().await.whole();
    }
    assert_eq!(registry.list().len(), 5);

    sleep(61 * SECOND).await;
    let idle = registry.list();
    sleep(RunRegistry::REMEMBERED + SECOND).await;

    assert!(
        idle.iter()
            .all(|run| run.reason == Some(TerminalReason::Completed))
    );
    assert!(registry.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_after_the_upstreams_own_error_event_did_not_cut_it() {
    let error = "data: {\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n";
    let service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .service(Upstream::script(Script::sse().data(error).never()));

    let answer = service.oneshot(request()).await.unwrap();
    let run = run_on(&answer);
    let mut body = answer.into_body();
    body.token().await;
    drop(body);

    let reason = run.terminal_reason().unwrap();
    assert!(matches!(reason, TerminalReason::Failed(_)), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_supplied_terminator_is_not_glued_to_half_an_event() {
    let usage = "data: {\"usage\":{}}";
    for (tail, kept) in [
        ("data: {\"usage\":{", String::new()),
        (usage, format!("{usage}\n\n")),
    ] {
        let finished = format!("{FINISH}{tail}");
        let upstream = Upstream::script(Script::sse().data(finished));
        let stack = Stack::default().terminal().build(&upstream);

        let outcome = stack.ask(request()).await;

        let end = [FINISH, &kept, DONE].concat();
        assert!(outcome.whole().ends_with(&end), "{}", outcome.whole());
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_head_request_is_complete_without_a_body() {
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(ClientDisconnectLayer::new())
        .service(service_fn(|_: Request<()>| async {
            let events = Response::builder().header("content-type", "text/event-stream");
            Ok::<_, Infallible>(events.body(Full::<Bytes>::default()).unwrap())
        }));

    let mut request = request();
    *request.method_mut() = Method::HEAD;
    let answer = service.oneshot(request).await.unwrap();
    let run = run_on(&answer);

    assert_eq!(answer.into_body().read().await.whole(), "");
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}

/// Nobody polls the body any more, and nobody drops it.
#[tokio::test(start_paused = true)]
async fn the_run_of_one_call_is_over_when_its_call_is_cut_though_nobody_reads() {
    let registry = RunRegistry::new();
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()))
        .layer(PumpLayer::new())
        .layer(HardCeilingLayer::new(10 * SECOND))
        .service(Upstream::script(Script::of("text/plain").never()));

    let unread = service.oneshot(Request::new(())).await.unwrap();
    sleep(11 * SECOND).await;

    let reasons: Vec<_> = registry.list().into_iter().map(|run| run.reason).collect();
    assert_eq!(reasons, [Some(TerminalReason::HardCeiling)]);
    drop(unread);
}
