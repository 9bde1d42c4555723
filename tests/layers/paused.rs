//! What is not the upstream's silence: a person's approval, a queue, a backend that
//! restarts. Step windows stop for it, ceilings do not.
//!
//! covers: A11

use std::time::Duration;

use http::Request;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, Run, Scope, StepTimeoutLayer, TerminalReason, ToolError,
};

use crate::support::{
    Outcome, PING, ReadExt, Script, Upstream, call_of, reason_of, request_of, secs,
};

const WINDOW: Duration = secs(10);

/// A call in which a layer waits so many seconds before it asks the upstream, with a
/// pause or without one.
async fn call(seconds: u64, pauses: bool, ceiling: u64) -> Outcome {
    let upstream = Upstream::script(
        Script::before_head()
            .wait(9.0)
            .head("application/json")
            .data("{}"),
    );
    let held = service_fn(move |request: Request<()>| {
        let upstream = upstream.clone();
        async move {
            let run = request.extensions().get::<Run>().unwrap();
            let guard = pauses.then(|| run.pause());
            sleep(secs(seconds)).await;
            drop(guard);
            upstream.oneshot(request).await
        }
    });
    let stack = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(ceiling)))
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(held);
    Outcome::of(stack.oneshot(call_of(&Run::open()).0)).await
}

#[tokio::test(start_paused = true)]
async fn a_queue_or_a_backend_that_restarts_is_not_the_models_silence() {
    for (seconds, ceiling) in [(45, 600), (500, 600)] {
        let outcome = call(seconds, true, ceiling).await;
        assert_eq!(outcome.whole(), "{}");
        assert_eq!(outcome.at, secs(seconds + 9), "within its window");
    }

    let outcome = call(45, false, 600).await;
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, WINDOW, "unless it pauses");
}

#[tokio::test(start_paused = true)]
async fn the_ceiling_goes_on_while_a_queue_is_waited_in() {
    let outcome = call(45, true, 40).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
    assert_eq!(outcome.at, secs(40));
}

#[tokio::test(start_paused = true)]
async fn an_approval_stops_every_window_of_its_run_and_no_ceiling() {
    let run = Run::open();
    let start = Instant::now();
    let ceiling = HardCeilingLayer::new(secs(4000)).scope(Scope::Run);
    let window = |layer: StepTimeoutLayer| {
        let stack = ServiceBuilder::new().layer(ceiling).layer(layer);
        let stack = stack.service(Upstream::script(Script::before_head().never()));
        let request = call_of(&run).0;
        async move {
            let error = stack.oneshot(request).await.unwrap_err();
            (reason_of(&error), start.elapsed())
        }
    };
    let local = async {
        let upstream = Upstream::script(Script::sse().data(PING).never());
        let layer = StepTimeoutLayer::local();
        let answer = layer.layer(upstream).oneshot(call_of(&run).0).await;
        let read = answer.unwrap().into_body().read().await;
        (read.reason(), start.elapsed())
    };
    let asked = async {
        let approval = run.tool("ask").window(WINDOW).call(async {
            sleep(secs(4)).await;
            let guard = run.pause();
            sleep(secs(3600)).await;
            drop(guard);
            Ok::<_, BoxError>("yes")
        });
        approval.await.unwrap()
    };

    let (call, local, answer) = tokio::join!(window(StepTimeoutLayer::new(WINDOW)), local, asked);

    let silent = Some(TerminalReason::StepTimeout);
    assert_eq!(answer, "yes");
    assert_eq!(call, (silent.clone(), secs(3600) + WINDOW));
    assert_eq!(local, (silent, secs(3600 + 20)));

    let (reason, at) = window(StepTimeoutLayer::new(secs(9999))).await;
    assert_eq!(reason, Some(TerminalReason::HardCeiling));
    assert_eq!(at, secs(4000));
}

#[tokio::test(start_paused = true)]
async fn pauses_that_overlap_last_until_the_last_of_them_is_over() {
    let run = Run::open();
    let start = Instant::now();
    let upstream = Upstream::script(Script::before_head().never());
    let pause = |from: u64, until: u64| {
        let run = run.clone();
        tokio::spawn(async move {
            sleep(secs(from)).await;
            let guard = run.pause();
            sleep(secs(until - from)).await;
            drop(guard);
        })
    };
    let guards = [pause(2, 50), pause(30, 80), pause(85, 90)];

    let error = StepTimeoutLayer::new(WINDOW)
        .layer(upstream)
        .oneshot(request_of(&run))
        .await
        .unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    // 2 s before, 5 s between, and the rest of the window after.
    assert_eq!(start.elapsed(), secs(93));
    for guard in guards {
        guard.await.unwrap();
    }
}

/// covers: A13
#[tokio::test(start_paused = true)]
async fn a_long_tool_is_not_killed_by_the_models_window() {
    let run = Run::open();
    let start = Instant::now();
    let tool = run.tool("build").call(async {
        sleep(secs(300)).await;
        Ok::<_, BoxError>("built")
    });
    let model = async {
        let layer = StepTimeoutLayer::new(WINDOW);
        let upstream = Upstream::script(Script::before_head().never());
        let error = layer.layer(upstream).oneshot(call_of(&run).0).await;
        (reason_of(&error.unwrap_err()), start.elapsed())
    };
    let short = run.tool("ls").window(secs(5)).call(async {
        sleep(secs(6)).await;
        Ok::<_, BoxError>("")
    });

    let all = async { tokio::join!(tool, model, short) };
    let (built, model, short) = timeout(secs(3600), all).await.unwrap();

    assert_eq!(built.unwrap(), "built");
    assert_eq!(start.elapsed(), secs(300));
    assert_eq!(model, (Some(TerminalReason::StepTimeout), WINDOW));
    assert!(matches!(short, Err(ToolError::Terminated(end)) if end.limit == Some(secs(5))));
    assert_eq!(run.terminal_reason(), None);
}
