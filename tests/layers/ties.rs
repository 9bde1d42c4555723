//! Upstream layers in one stack, and which of them has the last word.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::time::{Instant, advance};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, HealthGateLayer, LoopGuardLayer,
    ModelFallbackLayer, NodeKind, PumpLayer, ReplayBody, RetryBudget, RetryBudgetLayer, Run,
    RunLayer, RunRegistry, Scope, StepTimeoutLayer, TerminalReason, TerminalResponseLayer,
    Terminated, TokenCapLayer, TokenCaps, TurnCapLayer, registry::AbortOutcome,
};

use crate::support::{
    DONE, Outcome, PING, PRELUDE, Place, ReadExt, Script, Stack, StackService, Upstream,
    UpstreamBody, call_of, chat, later, poll_body, read_ahead, reason_of, request, request_of,
    secs,
};

const WINDOW: Duration = secs(10);

fn origin(error: &BoxError) -> (NodeKind, TerminalReason) {
    let end = Terminated::find(&**error).unwrap();
    (end.kind, end.reason.clone())
}

#[tokio::test(start_paused = true)]
async fn of_equal_ceilings_on_run_and_call_the_runs_is_latched_in_either_order() {
    let layers = [[Scope::Run, Scope::Found], [Scope::Found, Scope::Run]];
    for [outer, inner] in layers {
        let run = Run::open();
        let upstream = Upstream::script(Script::sse().never());
        let service = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(WINDOW).scope(outer))
            .layer(HardCeilingLayer::new(WINDOW).scope(inner))
            .service(upstream);

        let outcome = Outcome::of(service.oneshot(run.attach(request()))).await;

        assert_eq!(
            origin(&outcome.error.unwrap()),
            (NodeKind::Run, TerminalReason::HardCeiling)
        );
        assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
    }
}

#[tokio::test(start_paused = true)]
async fn of_equal_step_windows_on_run_and_call_the_runs_is_latched_in_either_order() {
    for [outer, inner] in [[Scope::Run, Scope::Found], [Scope::Found, Scope::Run]] {
        for script in [
            Script::before_head().never(),
            Script::sse().wait(3.0).data(chat("a")).never(),
        ] {
            let run = Run::open();
            let upstream = Upstream::script(script);
            let service = ServiceBuilder::new()
                .layer(StepTimeoutLayer::new(WINDOW).scope(outer))
                .layer(StepTimeoutLayer::new(WINDOW).scope(inner))
                .service(upstream);

            let outcome = Outcome::of(service.oneshot(run.attach(request()))).await;

            assert_eq!(
                origin(&outcome.error.unwrap()),
                (NodeKind::Run, TerminalReason::StepTimeout)
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_runs_caller_deadline_beats_the_calls_ceiling_of_the_same_instant() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(
            HardCeilingLayer::optional(None)
                .timeout(Some(WINDOW))
                .scope(Scope::Run),
        )
        .layer(HardCeilingLayer::new(WINDOW))
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(run.attach(request()))).await;

    assert_eq!(
        origin(&outcome.error.unwrap()),
        (NodeKind::Run, TerminalReason::CallerDeadline)
    );
}

/// covers: A6
#[tokio::test(start_paused = true)]
async fn on_one_node_ceiling_step_and_deadline_come_in_that_order() {
    for reversed in [false, true] {
        for (ceiling, expected) in [
            (Some(WINDOW), TerminalReason::HardCeiling),
            (None, TerminalReason::StepTimeout),
        ] {
            let upstream = Upstream::script(Script::sse().never());
            let totals = HardCeilingLayer::optional(ceiling).timeout(Some(WINDOW));
            let step = StepTimeoutLayer::new(WINDOW);
            let read = if reversed {
                let service = ServiceBuilder::new()
                    .layer(step)
                    .layer(totals)
                    .service(upstream);
                service
                    .oneshot(request())
                    .await
                    .unwrap()
                    .into_body()
                    .read()
                    .await
            } else {
                let service = ServiceBuilder::new()
                    .layer(totals)
                    .layer(step)
                    .service(upstream);
                service
                    .oneshot(request())
                    .await
                    .unwrap()
                    .into_body()
                    .read()
                    .await
            };

            assert_eq!(read.reason(), Some(expected));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_inner_window_and_an_outer_ceiling_of_one_instant_are_the_outer_nodes_ceiling() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default()
        .layer(
            Place::Ceiling,
            HardCeilingLayer::new(WINDOW).scope(Scope::Run),
        )
        .layer(Place::Step, StepTimeoutLayer::new(WINDOW));

    let outcome = stack.build(&upstream).ask(run.attach(request())).await;

    assert_eq!(
        origin(&outcome.error.unwrap()),
        (NodeKind::Run, TerminalReason::HardCeiling)
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_look_latches_the_outermost_though_an_inner_deadline_passed_first() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(20)).scope(Scope::Run))
        .layer(HardCeilingLayer::new(secs(10)))
        .service(upstream);
    let mut body = service
        .oneshot(run.attach(request()))
        .await
        .unwrap()
        .into_body();
    assert!(poll_body(&mut body).is_pending());

    advance(secs(25)).await;
    let read = body.read().await;

    assert_eq!(
        origin(&read.end.unwrap_err()),
        (NodeKind::Run, TerminalReason::HardCeiling)
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_in_the_instant_in_which_both_windows_pass_is_the_outermosts() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().wait(10.0).fail("reset"));
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(WINDOW).scope(Scope::Run))
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(run.attach(request()))).await;

    assert_eq!(
        origin(&outcome.error.unwrap()),
        (NodeKind::Run, TerminalReason::StepTimeout)
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_in_the_instant_of_an_outer_window_is_not_settled_as_a_failure_further_in() {
    let upstream = Upstream::script(Script::sse().wait(10.0).fail("reset"));
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(WINDOW))
        .layer(RunLayer::new(RunRegistry::new()))
        .service(upstream.clone());

    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(
        upstream.run().run().terminal_reason(),
        Some(TerminalReason::StepTimeout)
    );
}

#[tokio::test(start_paused = true)]
async fn a_stored_reason_beats_a_ready_frame_and_a_passed_clock() {
    let upstream = Upstream::script(Script::sse().wait(5.0).data(chat("a")).data(DONE));
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(WINDOW))
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(upstream.clone());
    let mut body = service.oneshot(request()).await.unwrap().into_body();
    assert!(poll_body(&mut body).is_pending());
    advance(secs(9)).await;
    upstream.run().end(TerminalReason::Superseded);
    advance(secs(30)).await;

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::Superseded));
    assert_eq!(read.frames, 0);
}

#[tokio::test(start_paused = true)]
async fn a_frame_before_an_error_is_a_sign_of_life_to_the_runs_other_calls() {
    let run = Run::open();
    let body = async |script| {
        let layer = StepTimeoutLayer::new(WINDOW).scope(Scope::Run);
        let call = layer.layer(Upstream::script(script));
        let answer = call.oneshot(run.attach(request())).await;
        answer.unwrap().into_body()
    };
    let mut silent = body(Script::sse().never()).await;
    let mut failing = body(Script::sse().wait(5.0).data(chat("a")).fail("reset")).await;
    assert!(poll_body(&mut silent).is_pending());
    assert!(poll_body(&mut failing).is_pending());
    advance(WINDOW).await;

    assert!(matches!(poll_body(&mut failing), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(poll_body(&mut failing), Poll::Ready(Some(Err(_)))));

    assert_eq!(run.terminal_reason(), None);
    assert!(poll_body(&mut silent).is_pending());
}

#[tokio::test]
async fn a_frame_of_a_poll_that_ended_the_run_is_not_handed_on() {
    let run = Run::open();
    let ended = run.clone();
    let upstream = service_fn(move |_: Request<()>| {
        let run = ended.clone();
        let last = stream::once(async move {
            assert!(run.end(TerminalReason::Aborted));
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(DONE.as_bytes())))
        });
        let answer = Response::new(StreamBody::new(Box::pin(last)));
        async move { Ok::<_, BoxError>(answer) }
    });
    let call = StepTimeoutLayer::new(WINDOW).layer(upstream);
    let mut body = call
        .oneshot(run.attach(request()))
        .await
        .unwrap()
        .into_body();

    let Poll::Ready(Some(Err(error))) = poll_body(&mut body) else {
        panic!("the frame was handed on")
    };
    assert_eq!(origin(&error), (NodeKind::Run, TerminalReason::Aborted));
}

/// Polls what is inside by wakers of its own.
#[derive(Clone, Debug)]
struct Unordered<S>(S);

impl<S> Service<Request<()>> for Unordered<S>
where
    S: Service<Request<()>> + Clone + 'static,
    S::Future: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<S::Response, S::Error>>>>;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let mut calls = FuturesUnordered::new();
        calls.push(self.0.call(request));
        Box::pin(async move { calls.next().await.unwrap() })
    }
}

#[tokio::test(start_paused = true)]
async fn clocks_hold_on_both_sides_of_a_combinator_with_wakers_of_its_own() {
    for (outer, inner, expected) in [(10, 30, 10), (30, 10, 10), (10, 10, 10)] {
        let upstream = Upstream::script(Script::before_head().never());
        let inner = StepTimeoutLayer::new(secs(inner)).layer(upstream.clone());
        let service = StepTimeoutLayer::new(secs(outer)).layer(Unordered(inner));
        let start = Instant::now();

        let error = service.oneshot(request()).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
        assert_eq!(start.elapsed(), secs(expected));
        assert_eq!(upstream.dropped().at, start + secs(expected));
    }
}

/// covers: T25
#[tokio::test(start_paused = true)]
async fn an_end_from_outside_reaches_through_a_combinator_with_wakers_of_its_own() {
    let upstream = Upstream::script(Script::before_head().never());
    let inner = HardCeilingLayer::new(secs(100)).layer(upstream.clone());
    let service = HardCeilingLayer::new(secs(200)).layer(Unordered(inner));
    let start = Instant::now();

    later(3, {
        let upstream = upstream.clone();
        move || upstream.run().end(TerminalReason::Aborted)
    });
    let result = service.oneshot(request()).await;

    assert_eq!(
        reason_of(&result.unwrap_err()),
        Some(TerminalReason::Aborted)
    );
    assert_eq!(upstream.dropped().at, start + secs(3));
}

#[tokio::test(start_paused = true)]
async fn two_calls_in_one_task_have_clocks_of_their_own() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let start = Instant::now();
    let read = |seconds, request| {
        let service = StepTimeoutLayer::new(secs(seconds)).layer(upstream.clone());
        async move {
            let read = service
                .oneshot(request)
                .await
                .unwrap()
                .into_body()
                .read()
                .await;
            (read.reason(), start.elapsed())
        }
    };
    let calls = [
        read(20, run.attach(request())),
        read(10, run.attach(request())),
        read(15, run.attach(request())),
    ];

    let ends = futures_util::future::join_all(calls).await;

    let expected = [20, 10, 15].map(|at| (Some(TerminalReason::StepTimeout), secs(at)));
    assert_eq!(ends, expected);
}

#[tokio::test(start_paused = true)]
async fn a_calls_end_from_outside_wakes_a_driver_of_another_tree() {
    // A server's own run drives the task; the handler calls a model for a run
    // that it opened itself.
    let agent = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let client = HardCeilingLayer::new(secs(1000)).layer(upstream.clone());
    let inside = agent.clone();
    let server = StepTimeoutLayer::new(secs(500)).layer(service_fn(move |_: Request<()>| {
        client.clone().oneshot(inside.attach(request()))
    }));
    let start = Instant::now();
    let mut body = server.oneshot(request()).await.unwrap().into_body();

    later(3, {
        let agent = agent.clone();
        move || agent.end(TerminalReason::Aborted)
    });
    let _end = body.next().await;

    assert_eq!(
        upstream.dropped().at,
        start + secs(3),
        "upstream.clone() runs on for a run that is over"
    );
}

#[tokio::test(start_paused = true)]
async fn an_abort_by_id_reaches_a_call_whose_driver_has_another_run() {
    let registry = RunRegistry::new();
    let known = registry.open(tower_agent::Owner::anonymous(), "r-1".parse().unwrap());
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(500)))
        .layer(RunLayer::new(registry.clone()))
        .service(upstream.clone());
    let mut request = request();
    request
        .headers_mut()
        .insert("x-run-id", "r-1".parse().unwrap());
    let start = Instant::now();
    let mut body = service.oneshot(request).await.unwrap().into_body();
    assert_eq!(known.in_flight(), 1);

    let stop = later(3, {
        let registry = registry.clone();
        move || registry.abort(tower_agent::Owner::anonymous(), &"r-1".parse().unwrap())
    });
    let _end = body.next().await;
    let aborted = stop.await.unwrap();

    assert_eq!(aborted, AbortOutcome::Ended);
    assert_eq!(upstream.dropped().at, start + secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_another_run_is_dropped_when_that_run_ends() {
    let agent = Run::open();
    let inside = agent.clone();
    let server = StepTimeoutLayer::new(secs(500)).layer(service_fn(move |_: Request<()>| {
        let tool = inside.tool("slow").watch(std::future::pending::<()>());
        async move {
            let _ = tool.await;
            Ok::<_, BoxError>(Response::new(Script::json().data("x").body()))
        }
    }));
    let start = Instant::now();

    later(3, {
        let agent = agent.clone();
        move || agent.end(TerminalReason::Aborted)
    });
    let answer = server.oneshot(request()).await;

    assert!(answer.is_ok());
    assert_eq!(start.elapsed(), secs(3));
}

/// All layers but the outermost, in this order; `None` leaves it out.
fn stack(order: &[usize], registry: &RunRegistry, upstream: &Upstream) -> StackService {
    order.iter().rev().fold(
        StackService::new(upstream.clone()),
        |inner, layer| match layer {
            0 => StackService::new(StepTimeoutLayer::new(WINDOW).layer(inner)),
            1 => StackService::new(HardCeilingLayer::new(WINDOW * 6).layer(inner)),
            2 => StackService::new(ClientDisconnectLayer::new().layer(inner)),
            3 => StackService::new(PumpLayer::new().layer(inner)),
            _ => StackService::new(RunLayer::new(registry.clone()).layer(inner)),
        },
    )
}

const ORDERS: [[usize; 5]; 6] = [
    [4, 3, 2, 1, 0],
    [0, 1, 2, 3, 4],
    [3, 4, 0, 1, 2],
    [2, 0, 4, 1, 3],
    [1, 3, 0, 4, 2],
    [4, 0, 3, 1, 2],
];

#[tokio::test(start_paused = true)]
async fn all_layers_in_any_order_hand_an_answer_on() {
    for order in ORDERS {
        for twice in [false, true] {
            let order = if twice {
                [order, order].concat()
            } else {
                order.to_vec()
            };
            let registry = RunRegistry::new();
            let upstream = Upstream::script(Script::sse().repeat(4, 7.0, chat("a")).data(DONE));
            let service = TerminalResponseLayer::new().layer(stack(&order, &registry, &upstream));

            let answer = service.oneshot(request()).await.unwrap();
            let text = answer.into_body().read().await.whole();

            assert_eq!(text, chat("a").repeat(4) + DONE, "{order:?}");
            assert_eq!(
                upstream.run().run().terminal_reason(),
                Some(TerminalReason::Completed),
                "{order:?}"
            );
            assert_eq!(upstream.run().run().in_flight(), 0, "{order:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_layers_in_any_order_end_a_silent_stream_with_the_error_event() {
    for order in ORDERS {
        for twice in [false, true] {
            let order = if twice {
                [order, order].concat()
            } else {
                order.to_vec()
            };
            let registry = RunRegistry::new();
            let upstream =
                Upstream::script(Script::sse().data(chat("a")).data("data: {\"cho").never());
            let service = TerminalResponseLayer::new().layer(stack(&order, &registry, &upstream));
            let start = Instant::now();

            let answer = service.oneshot(request()).await.unwrap();
            let text = answer.into_body().read().await.whole();

            assert_eq!(start.elapsed(), WINDOW, "{order:?}");
            let error = text.strip_prefix(&chat("a")).unwrap();
            assert!(
                error.starts_with(
                    "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"step_timeout\""
                ),
                "{order:?}: {error}"
            );
            assert_eq!(error.matches("event: error").count(), 1);
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            assert_eq!(upstream.dropped().at, start + WINDOW, "{order:?}");
            assert_eq!(
                upstream.run().run().terminal_reason(),
                Some(TerminalReason::StepTimeout),
                "{order:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_layers_in_any_order_see_a_dropped_body() {
    for order in ORDERS {
        let registry = RunRegistry::new();
        let upstream = Upstream::script(Script::sse().data(chat("a")).never());
        let service = TerminalResponseLayer::new().layer(stack(&order, &registry, &upstream));
        let mut body = service.oneshot(request()).await.unwrap().into_body();
        body.token().await;

        drop(body);
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }

        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::ClientDisconnect),
            "{order:?}"
        );
        assert_eq!(
            upstream.dropped().reason,
            Some(TerminalReason::ClientDisconnect),
            "{order:?}"
        );
        assert_eq!(upstream.run().run().in_flight(), 0, "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_layer_twice_in_one_stack_measures_once() {
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(WINDOW))
        .layer(HardCeilingLayer::new(WINDOW))
        .layer(StepTimeoutLayer::new(WINDOW * 2))
        .layer(StepTimeoutLayer::new(WINDOW * 2))
        .service(upstream.clone());

    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
    assert!(upstream.run().terminated().unwrap().also.is_empty());
}

#[tokio::test(start_paused = true)]
async fn inside_an_axum_router_the_layers_are_a_service_builder_under_terminal_response() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let played = upstream.clone();
    let handler = move |request: axum::extract::Request| {
        let played = played.clone();
        async move {
            let answer: Response<UpstreamBody> = played.oneshot(request).await.unwrap();
            answer.map(axum::body::Body::new)
        }
    };
    let router = axum::Router::new()
        .route("/v1/chat/completions", axum::routing::post(handler))
        .layer(
            ServiceBuilder::new()
                .layer(TerminalResponseLayer::new())
                .layer(RunLayer::new(RunRegistry::new()))
                .layer(PumpLayer::new())
                .layer(ClientDisconnectLayer::new())
                .layer(HardCeilingLayer::new(WINDOW * 9))
                .layer(StepTimeoutLayer::new(WINDOW)),
        );
    let request = Request::post("/v1/chat/completions")
        .header("x-run-id", "r-7")
        .body(axum::body::Body::empty())
        .unwrap();
    let start = Instant::now();

    let answer = router.oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["x-run-id"], "r-7");
    let text = answer.into_body().read().await.whole();

    assert_eq!(start.elapsed(), WINDOW);
    assert!(
        text.contains("\"code\":\"step_timeout\"") && text.contains("\"run_id\":\"r-7\""),
        "{text}"
    );
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    assert_eq!(upstream.dropped().at, start + WINDOW);
}

#[tokio::test(start_paused = true)]
async fn a_node_in_the_request_is_used_and_not_settled_by_layers_that_did_not_open_it() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(DONE));
    let service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(upstream.clone());

    service
        .oneshot(request_of(&run))
        .await
        .unwrap()
        .into_body()
        .read()
        .await
        .whole();

    assert_eq!(upstream.run().terminal_reason(), None);
    let (request, call) = call_of(&run);
    drop(request);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn a_runs_window_that_a_ping_interrupts_in_the_instant_it_passes_beats_a_calls_ceiling() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().wait(10.0).data(PING).never());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(WINDOW).scope(Scope::Run))
        .layer(HardCeilingLayer::new(WINDOW))
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(run.attach(request()))).await;

    assert_eq!(
        origin(&outcome.error.unwrap()),
        (NodeKind::Run, TerminalReason::StepTimeout)
    );
}

#[tokio::test(start_paused = true)]
async fn silence_after_the_terminator_does_not_undo_an_answer_that_was_delivered() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE).never());
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(upstream.clone());

    let text = service
        .oneshot(request())
        .await
        .unwrap()
        .into_body()
        .read()
        .await
        .whole();

    assert_eq!(text, chat("a") + DONE);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn a_first_window_that_lapsed_with_the_first_content_is_not_seen_by_an_inner_check() {
    let script = Script::before_head()
        .wait(2.0)
        .head("application/json")
        .data("x");
    let upstream = Upstream::script(script.never());
    let service = ServiceBuilder::new()
        .layer(
            StepTimeoutLayer::new(secs(3))
                .first(secs(2))
                .resets_on(tower_agent::ResetOn::Step),
        )
        .layer(HardCeilingLayer::optional(None).timeout(Some(secs(3))))
        .service(upstream.clone());
    let answer = service.oneshot(request()).await.unwrap();
    tokio::time::sleep(secs(1)).await;

    let read = answer.into_body().read().await;

    // Two seconds of silence were counted, and the window is three by now.
    assert_eq!(read.reason(), Some(TerminalReason::CallerDeadline));
    assert!(upstream.is_dropped());
}

/// The head stopped the count. The content behind it must change the length at once: the layer that
/// opened the call checks the run at the next `Pending` before the layer of the window does.
#[tokio::test(start_paused = true)]
async fn a_first_window_that_lapsed_with_the_head_is_not_seen_by_an_inner_check() {
    for prelude in ["", PRELUDE] {
        let head = Script::before_head().wait(3.0).head("text/event-stream");
        let upstream = Upstream::script(head.data(prelude).data(chat("a")).never());
        let window = StepTimeoutLayer::new(secs(4)).first(secs(3));
        let service = ServiceBuilder::new()
            .layer(window.resets_on(tower_agent::ResetOn::Step))
            .layer(RunLayer::new(RunRegistry::new()))
            .layer(HardCeilingLayer::optional(None).timeout(Some(secs(3))))
            .service(upstream);
        let run = Run::open();

        let answer = service.oneshot(request_of(&run)).await.unwrap();
        let read = answer.into_body().read().await;

        assert_eq!(read.reason(), Some(TerminalReason::CallerDeadline));
        assert_eq!(run.terminal_reason(), None);
    }
}

/// The layer outside reads the answer, and the ceiling inside does not.
#[tokio::test(start_paused = true)]
async fn a_complete_answer_wins_over_a_ceiling_further_in() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE).never());
    let service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(secs(1)))
        .service(upstream.clone());

    let start = Instant::now();
    let outcome = Outcome::of(service.oneshot(request)).await;

    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(start.elapsed(), secs(1));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
}

/// The body of a whole answer may stay open for 2 s.
#[tokio::test(start_paused = true)]
async fn a_complete_answer_ends_although_its_body_stays_open() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE).never());
    let service = HardCeilingLayer::new(WINDOW).layer(upstream.clone());

    let start = Instant::now();
    let outcome = Outcome::of(service.oneshot(request())).await;

    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(start.elapsed(), secs(2));
    let reason = upstream.run().terminal_reason();
    assert_eq!(reason, Some(TerminalReason::Completed));
}

/// The outermost layer enforces the window: it drops all that is nested in it.
#[tokio::test(start_paused = true)]
async fn a_layer_between_is_dropped_at_a_limit_and_sees_no_error() {
    let results = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&results);
    let upstream = Upstream::script(Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .map_result(move |result: Result<_, BoxError>| {
            counts.fetch_add(1, Ordering::Relaxed);
            result
        })
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(Run::open().attach(request()))).await;

    let (_, reason) = origin(&outcome.error.unwrap());
    assert_eq!(reason, TerminalReason::StepTimeout);
    assert_eq!(results.load(Ordering::Relaxed), 0);
}

/// The layer outside has no deadline of its own, and enforces the one that the layer inside set.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_always_ready_ends_at_a_ceiling_further_in() {
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(WINDOW))
        .service(upstream.clone());
    let mut body = service.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    advance(WINDOW).await;

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::HardCeiling));
    assert!(read.frames <= 15, "{} frames", read.frames);
}

/// The program's layer asks twice; the second time it waits, and its inside is not called.
#[tokio::test(start_paused = true)]
async fn a_ceiling_of_the_run_holds_while_a_layer_between_waits_before_its_next_call() {
    let run = Run::open();
    let upstream = Upstream::script(Script::answer(500, "{}"));
    let inside = HardCeilingLayer::new(WINDOW)
        .scope(Scope::Run)
        .layer(upstream.clone());
    let between = service_fn(move |request: Request<_>| {
        let mut inside = inside.clone();
        async move {
            let answer = inside.call(request).await;
            tokio::time::sleep(4 * WINDOW).await;
            answer
        }
    });
    let service = StepTimeoutLayer::new(8 * WINDOW).layer(between);

    let start = Instant::now();
    let outcome = Outcome::of(service.oneshot(run.attach(request()))).await;

    assert_eq!(start.elapsed(), WINDOW);
    assert_eq!(
        origin(&outcome.error.unwrap()),
        (NodeKind::Run, TerminalReason::HardCeiling)
    );
}

/// A layer between that hands the frames on late does not prolong a window inside of it.
#[tokio::test(start_paused = true)]
async fn a_sign_of_life_counts_when_the_upstream_gives_it_not_when_a_layer_hands_it_on() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(chat("b")).never());
    let inside = ServiceBuilder::new()
        .map_response(read_ahead)
        .layer(StepTimeoutLayer::new(WINDOW).scope(Scope::Run))
        .service(upstream);
    let service = ClientDisconnectLayer::new().layer(inside);
    let start = Instant::now();
    let answer = service.oneshot(run.attach(request())).await.unwrap();
    let mut body = answer.into_body();
    body.token().await;
    tokio::time::sleep(WINDOW / 2).await;

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), WINDOW);
}

/// covers: C4
#[tokio::test(start_paused = true)]
async fn a_stored_end_beats_a_ready_frame_in_each_wrapper() {
    let registry = RunRegistry::new();
    let probe = || service_fn(|()| std::future::ready(Ok::<_, BoxError>(true)));
    type Wrap = Box<dyn Fn(StackService) -> StackService>;
    let wraps: [(&str, Wrap); 10] = [
        (
            "run",
            Box::new(move |inner| StackService::new(RunLayer::new(registry.clone()).layer(inner))),
        ),
        (
            "disconnect",
            Box::new(|inner| StackService::new(ClientDisconnectLayer::new().layer(inner))),
        ),
        (
            "ceiling",
            Box::new(|inner| StackService::new(HardCeilingLayer::new(secs(60)).layer(inner))),
        ),
        (
            "step",
            Box::new(|inner| StackService::new(StepTimeoutLayer::new(secs(60)).layer(inner))),
        ),
        (
            "turns",
            Box::new(|inner| StackService::new(TurnCapLayer::new(9).layer(inner))),
        ),
        (
            "tokens",
            Box::new(|inner| {
                let caps = TokenCaps::new().max_output_tokens(1000);
                StackService::new(TokenCapLayer::new(caps).layer(inner))
            }),
        ),
        (
            "loops",
            Box::new(|inner| StackService::new(LoopGuardLayer::new().layer(inner))),
        ),
        (
            "fallback",
            Box::new(|inner| StackService::new(ModelFallbackLayer::new([]).layer(inner))),
        ),
        (
            "retry",
            Box::new(|inner| {
                StackService::new(RetryBudgetLayer::new(RetryBudget::new()).layer(inner))
            }),
        ),
        (
            "gate",
            Box::new(move |inner| StackService::new(HealthGateLayer::new(probe()).layer(inner))),
        ),
    ];
    // What is ready after the end: a frame, the end of the body, an error.
    let begun = || Script::sse().data(chat("a"));
    let scripts = [
        ("frame", begun().data(chat("b")).data(DONE)),
        ("end", begun()),
        ("error", begun().fail("reset")),
    ];
    for ((name, wrap), (ready, script)) in wraps
        .iter()
        .flat_map(|wrap| scripts.iter().map(move |script| (wrap, script)))
    {
        let upstream = Upstream::script(script.clone());
        let service = wrap(StackService::new(upstream.clone()));
        let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}]}"#;
        let request = Request::post("/v1/chat/completions").body(ReplayBody::from(body));
        let answer = service.oneshot(request.unwrap()).await.unwrap();
        let run = answer.extensions().get::<Run>().cloned().unwrap();
        let mut body = answer.into_body();
        assert!(
            matches!(poll_body(&mut body), Poll::Ready(Some(Ok(_)))),
            "{name}"
        );
        let (frames, polls) = (upstream.frames(), upstream.polls());

        run.run().end(TerminalReason::Aborted);

        let Poll::Ready(Some(Err(error))) = poll_body(&mut body) else {
            panic!("{name}: the {ready} came after the end")
        };
        assert_eq!(
            reason_of(&error),
            Some(TerminalReason::Aborted),
            "{name} {ready}"
        );
        let polled = (upstream.frames(), upstream.polls());
        assert_eq!(
            polled,
            (frames, polls),
            "{name}: the upstream was asked for its {ready}"
        );
    }
}
