//! A caller who left, and an attempt that is read to its end all the same.
//!
//! covers: C2

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{
    sync::Notify,
    time::{Instant, advance, sleep, timeout},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, PumpLayer, RetryBudgetLayer, Run, RunLayer,
    RunRegistry, Scope, StepTimeoutLayer, TerminalReason, ToolError,
};

use super::turns;
use crate::support::{
    DONE, FINISH, Outcome, PRELUDE, Place, ReadExt, Script, Stack, StackService, Summaries, USAGE,
    Upstream, chat, failure, healthy, later, no_delay, poll_once, prompt, request, secs,
    with_header,
};

const LIMIT: Duration = secs(30);
const LEFT: TerminalReason = TerminalReason::ClientDisconnect;

const fn pump() -> PumpLayer {
    PumpLayer::new().drain(Some(LIMIT))
}

/// Five tokens in as many seconds, then what they cost.
fn stream() -> Script {
    tail(Script::sse().data(PRELUDE).repeat(5, 1.0, chat("a")))
}

fn tail(script: Script) -> Script {
    script.data(FINISH).data(USAGE).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_reader_left_is_read_to_its_end_for_its_usage() {
    for frames in 0..3_u64 {
        let told = Summaries::default();
        let upstream = Upstream::script(stream());
        let start = Instant::now();
        let service = told.layer().layer(pump().layer(upstream.clone()));
        let mut body = service.oneshot(request()).await.unwrap().into_body();
        for _ in 0..frames {
            body.token().await;
        }

        drop(body);
        turns().await;
        assert!(told.is_empty() && !upstream.is_dropped());
        assert_eq!(upstream.run().terminal_reason(), None);
        sleep(LIMIT).await;

        assert!(!upstream.is_dropped(), "it came to its end");
        assert_eq!(told.tokens(), Some((7, 2)));
        let summary = told.one();
        assert_eq!((summary.reason, summary.elapsed), (LEFT, secs(5)));
        assert_eq!(summary.stop_reason.as_deref(), Some("stop"));
        assert_eq!(upstream.run().run().terminal_reason(), Some(LEFT));
        assert_eq!(upstream.run().in_flight(), 0);
        assert_eq!(start.elapsed(), LIMIT + secs(frames.saturating_sub(1)));
        let tasks = tokio::runtime::Handle::current().metrics();
        assert_eq!(tasks.num_alive_tasks(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_the_reason_is_stored_and_upstream_dropped() {
    let silent = Script::sse().data(chat("a")).never();
    let endless = Script::sse().repeat(100, 1.0, chat("a"));
    for script in [silent, endless, Script::before_head().never()] {
        let told = Summaries::default();
        let upstream = Upstream::script(script);
        let mut call = told
            .layer()
            .layer(pump().layer(upstream.clone()))
            .call(request());
        let answer = futures_util::FutureExt::now_or_never(&mut call);
        turns().await;
        let left = Instant::now();

        drop((answer, call));
        sleep(LIMIT - Duration::from_millis(1)).await;
        assert!(!upstream.is_dropped() && told.is_empty());
        sleep(secs(1)).await;

        assert_eq!(upstream.dropped().at, left + LIMIT);
        assert_eq!(upstream.dropped().reason, Some(LEFT));
        let summary = told.one();
        assert_eq!((summary.reason, summary.elapsed), (LEFT, LIMIT));
    }
}

/// covers: T11
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_always_ready_does_not_starve_the_limit() {
    let told = Summaries::default();
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let service = told.layer().layer(pump().layer(upstream.clone()));
    drop(service.oneshot(request()).await.unwrap());
    turns().await;
    assert!(!upstream.is_dropped());

    // Nobody is idle, so that time moves by hand alone.
    advance(LIMIT).await;
    turns().await;

    assert_eq!(upstream.dropped().reason, Some(LEFT));
    assert_eq!(told.one().reason, LEFT);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_before_the_head_is_drained_for_too() {
    let told = Summaries::default();
    let script = Script::before_head().wait(3.0).head("text/event-stream");
    let upstream = Upstream::script(tail(script.data(PRELUDE).repeat(2, 1.0, chat("a"))));
    let mut call = told
        .layer()
        .layer(pump().layer(upstream.clone()))
        .call(request());
    assert!(poll_once(&mut call).is_pending());
    turns().await;

    drop(call);
    sleep(LIMIT).await;

    assert!(!upstream.is_dropped());
    assert_eq!(told.tokens(), Some((7, 2)));
    assert_eq!((told.one().reason, told.one().elapsed), (LEFT, secs(5)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_had_not_begun_begins_no_more() {
    let told = Summaries::default();
    let upstream = Upstream::script(healthy());
    let mut service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(pump())
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());

    drop(service.call(prompt("m")));
    turns().await;

    assert_eq!(upstream.calls(), 0);
    assert_eq!((told.one().reason, told.one().elapsed), (LEFT, secs(0)));

    let told = Summaries::default();
    let upstream = Upstream::script(stream());
    drop(
        told.layer()
            .layer(pump().layer(upstream.clone()))
            .call(request()),
    );
    turns().await;
    assert_eq!((upstream.polls(), told.one().elapsed), (0, secs(0)));
}

/// The layers of a server, with two candidates that are tried twice each.
/// Two candidates below a pump that drains.
fn stack(summaries: &Summaries, upstream: &Upstream) -> StackService {
    let runs = Stack::default().layer(Place::Run, summaries.layer());
    let calls = runs.layer(Place::Pump, pump()).disconnect();
    let attempts = calls.candidates(["a", "b"]).budget(no_delay());
    attempts.attempt_step(10).build(upstream)
}

/// covers: T10
#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_while_it_drains_is_the_last() {
    let failures = [
        Script::before_head()
            .wait(2.0)
            .head("application/json")
            .status(503),
        Script::before_head().wait(2.0).fail("reset"),
        Script::sse().data(PRELUDE).wait(2.0).fail("reset"),
        Script::sse().data(PRELUDE).wait(2.0),
        // Its own silence.
        Script::sse().data(PRELUDE).never(),
    ];
    for script in failures {
        let told = Summaries::default();
        let upstream = Upstream::scripts([script.clone(), healthy()]);
        let mut call = stack(&told, &upstream).call(prompt("a"));
        assert!(poll_once(&mut call).is_pending());
        turns().await;
        assert_eq!(upstream.calls(), 1);

        drop(call);
        sleep(secs(1)).await;
        assert!(told.is_empty(), "it reads on");
        sleep(LIMIT * 2).await;

        assert_eq!(upstream.calls(), 1, "{script:?}");
        let summary = told.one();
        assert_eq!((summary.reason, summary.attempts), (LEFT, 1));
        assert!(summary.elapsed < LIMIT, "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_held_reads_on_past_its_commit() {
    let told = Summaries::default();
    let script = Script::sse().data(PRELUDE).wait(3.0);
    let upstream = Upstream::script(tail(script.repeat(3, 1.0, chat("a"))));
    let mut call = stack(&told, &upstream).call(prompt("a"));
    assert!(poll_once(&mut call).is_pending());
    turns().await;

    drop(call);
    sleep(LIMIT).await;

    assert_eq!(told.tokens(), Some((7, 2)));
    let summary = told.one();
    assert_eq!((summary.reason, summary.elapsed), (LEFT, secs(6)));
    assert_eq!(summary.candidate.as_deref(), Some("a"));
    assert_eq!(upstream.reasons(), [Some(TerminalReason::Completed)]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_hold_ends_while_it_drains_reads_on() {
    let told = Summaries::default();
    let script = Script::sse().data(PRELUDE).wait(4.0);
    let upstream = Upstream::script(tail(script.data(chat("a"))));
    let mut service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(pump())
        .layer(RetryBudgetLayer::new(no_delay()).hold(secs(2)))
        .service(upstream);
    let mut call = service.call(prompt("m"));
    assert!(poll_once(&mut call).is_pending());
    turns().await;

    drop(call);
    sleep(LIMIT).await;

    assert_eq!((told.tokens(), told.one().elapsed), (Some((7, 2)), secs(4)));
}

/// covers: T9
#[tokio::test(start_paused = true)]
async fn a_failure_that_nobody_waits_for_asks_no_hook() {
    let told = Summaries::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let budget = no_delay().before_attempt({
        let asked = Arc::clone(&asked);
        move |_| asked.fetch_add(1, Ordering::SeqCst) < usize::MAX
    });
    let upstream = Upstream::scripts([Script::before_head().wait(2.0).fail("reset"), healthy()]);
    let mut service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(pump())
        .layer(RetryBudgetLayer::new(budget))
        .service(upstream.clone());
    let mut call = service.call(prompt("m"));
    assert!(poll_once(&mut call).is_pending());
    turns().await;

    drop(call);
    sleep(LIMIT).await;

    assert_eq!((upstream.calls(), asked.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(told.one().elapsed, secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_in_a_backoff_leaves_nothing_to_learn() {
    let told = Summaries::default();
    let upstream = Upstream::scripts([failure(409).header("retry-after", "20"), healthy()]);
    let mut call = stack(&told, &upstream).call(prompt("a"));
    assert!(poll_once(&mut call).is_pending());
    turns().await;
    sleep(secs(1)).await;
    assert_eq!(upstream.calls(), 1);

    drop(call);
    turns().await;

    let summary = told.one();
    assert_eq!((summary.reason, summary.elapsed), (LEFT, secs(1)));
    sleep(LIMIT).await;
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_while_nobody_is_ready_leaves_nothing_to_learn() {
    // The first try fails, and the service is not ready for a second.
    let told = Summaries::default();
    let gate = Arc::new(tokio::sync::Semaphore::new(1));
    let slow = Script::before_head().wait(1.0).head("application/json");
    let upstream = Upstream::script(slow.status(500));
    let mut service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(pump())
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(
            Arc::clone(&gate),
        ))
        .service(upstream.clone());
    let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await;
    let mut call = Box::pin(ready.unwrap().call(prompt("m")));
    let taken = tokio::spawn({
        let gate = Arc::clone(&gate);
        async move { gate.acquire_owned().await.unwrap() }
    });
    assert!(timeout(secs(2), &mut call).await.is_err());
    assert_eq!(upstream.calls(), 1);
    let _taken = taken.await.unwrap();

    drop(call);
    turns().await;

    assert_eq!((told.one().reason, told.one().elapsed), (LEFT, secs(2)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_delivered_is_complete_and_not_drained() {
    let told = Summaries::default();
    let upstream = Upstream::script(Script::sse().data(USAGE).data(DONE).never());
    let service = told.layer().layer(pump().layer(upstream.clone()));
    let mut body = service.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    body.token().await;

    drop(body);
    turns().await;

    assert_eq!(told.one().reason, TerminalReason::Completed);
    assert_eq!(told.tokens(), Some((7, 2)));
    assert!(upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_rest_is_ready_is_over_with_its_reader() {
    let told = Summaries::default();
    let upstream = Upstream::script(Script::sse().data(chat("a")).fail("reset"));
    let service = told.layer().layer(pump().layer(upstream));
    let body = service.oneshot(request()).await.unwrap().into_body();
    sleep(secs(1)).await;

    drop(body);
    turns().await;

    assert_eq!((told.one().reason, told.one().elapsed), (LEFT, secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stayed_away_does_not_hold_the_drain_up() {
    let told = Summaries::default();
    let script = tail(Script::sse().repeat(50, 0.1, chat("a")));
    let upstream = Upstream::script(script);
    let service = told.layer().layer(pump().layer(upstream.clone()));
    let body = service.oneshot(request()).await.unwrap().into_body();
    sleep(secs(60)).await;
    assert!(upstream.frames() < 10);

    drop(body);
    sleep(secs(10)).await;

    assert_eq!(told.tokens(), Some((7, 2)));
    assert_eq!(told.one().reason, LEFT);
}

#[tokio::test(start_paused = true)]
async fn deadlines_hold_while_it_drains_and_win() {
    for scope in [Scope::Found, Scope::Run] {
        let told = Summaries::default();
        let upstream = Upstream::script(Script::sse().data(chat("a")).never());
        let service = ServiceBuilder::new()
            .layer(told.layer())
            .layer(pump())
            .layer(HardCeilingLayer::new(LIMIT).scope(scope))
            .service(upstream.clone());
        let start = Instant::now();
        let body = service.oneshot(request()).await.unwrap().into_body();

        // Both pass at the same time.
        drop(body);
        sleep(LIMIT * 2).await;

        assert_eq!(told.one().reason, TerminalReason::HardCeiling);
        assert_eq!(upstream.dropped().at, start + LIMIT);
    }
    let told = Summaries::default();
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(pump())
        .layer(StepTimeoutLayer::new(secs(10)))
        .service(upstream.clone());
    let start = Instant::now();
    drop(service.oneshot(request()).await.unwrap());
    sleep(LIMIT * 2).await;
    assert_eq!(told.one().reason, TerminalReason::StepTimeout);
    assert_eq!(upstream.dropped().at, start + secs(10));
}

#[tokio::test(start_paused = true)]
async fn an_end_from_outside_ends_the_drain_in_one_turn() {
    let told = Summaries::default();
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let layer = RunLayer::new(registry.clone()).on_end(told.hook());
    let service = layer.layer(pump().layer(upstream.clone()));
    drop(service.oneshot(request()).await.unwrap());
    sleep(secs(1)).await;
    assert!(!upstream.is_dropped());

    assert_eq!(registry.shutdown(), 1);
    turns().await;

    assert_eq!(upstream.dropped().reason, Some(TerminalReason::Shutdown));
    assert_eq!(told.one().reason, TerminalReason::Shutdown);
    assert_eq!(upstream.run().in_flight(), 0);
}

/// Nobody is left who would say what the one call of the run came to.
#[tokio::test(start_paused = true)]
async fn a_drain_that_the_program_ends_well_ends_its_run() {
    let told = Summaries::default();
    let upstream = Upstream::script(stream());
    let service = told.layer().layer(pump().layer(upstream.clone()));
    let body = service.oneshot(request()).await.unwrap().into_body();
    drop(body);
    turns().await;
    let call = upstream.run();
    assert_eq!(call.run().terminal_reason(), None);

    assert!(call.end(TerminalReason::Completed));
    turns().await;

    let completed = Some(TerminalReason::Completed);
    assert_eq!(call.run().terminal_reason(), completed);
    assert_eq!(call.run().in_flight(), 0);
    assert_eq!(told.one().reason, TerminalReason::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_layer_for_disconnects_further_out_cancels_and_further_in_does_not() {
    let told = Summaries::default();
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(ClientDisconnectLayer::new())
        .layer(pump())
        .service(upstream.clone());
    drop(service.oneshot(request()).await.unwrap());
    turns().await;
    assert!(upstream.is_dropped());
    assert_eq!(told.one().reason, LEFT);

    for scope in [Scope::Found, Scope::Run] {
        let told = Summaries::default();
        let upstream = Upstream::script(stream());
        let service = ServiceBuilder::new()
            .layer(told.layer())
            .layer(pump())
            .layer(ClientDisconnectLayer::new().scope(scope))
            .service(upstream.clone());
        drop(service.oneshot(request()).await.unwrap());
        sleep(LIMIT).await;
        assert!(!upstream.is_dropped());
        assert_eq!((told.one().reason, told.tokens()), (LEFT, Some((7, 2))));
    }
}

#[tokio::test(start_paused = true)]
async fn two_pumps_drain_as_one() {
    let told = Summaries::default();
    let upstream = Upstream::script(stream());
    let service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(pump())
        .layer(pump())
        .service(upstream.clone());
    let mut body = service.oneshot(request()).await.unwrap().into_body();
    body.token().await;

    drop(body);
    sleep(LIMIT).await;

    assert!(!upstream.is_dropped());
    assert_eq!((told.one().reason, told.tokens()), (LEFT, Some((7, 2))));
    let tasks = tokio::runtime::Handle::current().metrics();
    assert_eq!(tasks.num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pump_that_opened_the_run_drains_and_settles_it() {
    let upstream = Upstream::script(stream());
    let answer = pump()
        .layer(upstream.clone())
        .oneshot(request())
        .await
        .unwrap();
    drop(answer);
    let run = upstream.run();
    let settled = tokio::spawn(run.settled());
    turns().await;
    assert!(!settled.is_finished());
    assert_eq!(run.terminal_reason(), None);

    let start = Instant::now();
    assert_eq!(settled.await.unwrap(), LEFT);

    assert_eq!(start.elapsed(), secs(5));
    assert_eq!(run.usage().unwrap().output_tokens, 2);
}

#[tokio::test(start_paused = true)]
async fn the_run_of_an_id_outlives_a_drain() {
    let told = Summaries::default();
    let registry = RunRegistry::new();
    let upstream = Upstream::script(stream());
    let service = RunLayer::new(registry.clone())
        .on_end(told.hook())
        .layer(pump().layer(upstream));
    let named = || with_header(request(), "x-run-id", "r-1");
    drop(service.clone().oneshot(named()).await.unwrap());
    sleep(secs(1)).await;

    // Another call of it is not refused meanwhile.
    Outcome::of(service.oneshot(named())).await.whole();
    sleep(LIMIT).await;

    let mut reasons: Vec<_> = told.all().into_iter().map(|it| it.reason).collect();
    reasons.sort_by_key(|reason| reason.as_str().to_owned());
    assert_eq!(reasons, [LEFT, TerminalReason::Completed]);
    let run = &registry.list()[0];
    assert_eq!((run.reason.clone(), run.in_flight), (None, 0));
    assert_eq!(run.usage.unwrap().input_tokens, 14);
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_would_start_is_refused_and_what_it_started_goes_on() {
    let told = Summaries::default();
    let leave = Arc::new(Notify::new());
    let seen = Arc::new(std::sync::Mutex::new(None));
    let model = Upstream::script(stream());
    let handler = {
        let (leave, seen, model) = (Arc::clone(&leave), Arc::clone(&seen), model.clone());
        tower::service_fn(move |request: Request<()>| {
            let (leave, seen, model) = (Arc::clone(&leave), Arc::clone(&seen), model.clone());
            let run = request.extensions().get::<Run>().unwrap().clone();
            async move {
                let model = StepTimeoutLayer::new(secs(60)).layer(model);
                let under_way = run.tool("slow").watch(sleep(secs(4)));
                leave.notified().await;
                assert!(run.check().is_err());
                let tool = run.tool("late").call(async { Ok::<_, BoxError>(()) }).await;
                let late = model.oneshot(run.attach(super::request())).await;
                let late = tower_agent::TerminalReason::find(&*late.unwrap_err()).cloned();
                let under_way = under_way.await.is_ok();
                *seen.lock().unwrap() = Some((tool.unwrap_err(), late, under_way));
                Ok::<_, BoxError>(Response::new(Full::new(Bytes::from("x"))))
            }
        })
    };
    let mut call = told.layer().layer(pump().layer(handler)).call(request());
    assert!(poll_once(&mut call).is_pending());
    turns().await;

    drop(call);
    turns().await;
    leave.notify_one();
    sleep(LIMIT).await;

    let (tool, late, under_way) = seen.lock().unwrap().take().unwrap();
    assert!(matches!(tool, ToolError::Terminated(end) if end.reason == LEFT));
    assert_eq!((late, model.calls(), under_way), (Some(LEFT), 0, true));
    assert_eq!((told.one().reason, told.one().elapsed), (LEFT, secs(4)));
}

#[tokio::test(start_paused = true)]
async fn below_a_layer_that_tries_again_nothing_is_tried_again() {
    let upstream = Upstream::scripts([
        Script::sse().data(PRELUDE).wait(2.0).fail("reset"),
        healthy(),
    ]);
    let mut service = RetryBudgetLayer::new(no_delay()).layer(pump().layer(upstream.clone()));
    let mut call = service.call(prompt("m"));
    assert!(poll_once(&mut call).is_pending());
    turns().await;

    drop(call);
    sleep(LIMIT).await;

    assert_eq!(upstream.calls(), 1);
    assert_eq!(upstream.requests()[0].run().run().in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_it_drains_ends_it() {
    std::panic::set_hook(Box::new(|_| {}));
    let told = Summaries::default();
    let upstream = Upstream::script(Script::sse().data(chat("a")).wait(2.0).panic());
    let service = told.layer().layer(pump().layer(upstream));
    drop(service.oneshot(request()).await.unwrap());

    sleep(secs(3)).await;
    let _ = std::panic::take_hook();

    assert_eq!((told.one().reason, told.one().elapsed), (LEFT, secs(2)));
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_nothing_is_drained() {
    let upstream = Upstream::script(stream());
    let service = PumpLayer::new().drain(None).layer(upstream.clone());
    drop(service.oneshot(request()).await.unwrap());
    assert_eq!(upstream.run().terminal_reason(), Some(LEFT));
    turns().await;
    assert!(upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_while_a_held_attempt_drains_is_told_once() {
    let told = Summaries::default();
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(PRELUDE).data(USAGE).never());
    let mut service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).on_end(told.hook()))
        .layer(pump())
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream);
    let mut call = service.call(prompt("m"));
    assert!(poll_once(&mut call).is_pending());
    turns().await;
    drop(call);
    later(3, move || registry.shutdown()).await.unwrap();
    turns().await;

    assert_eq!(told.one().reason, TerminalReason::Shutdown);
    assert_eq!((told.tokens(), told.one().elapsed), (Some((7, 2)), secs(3)));
}

#[test]
#[should_panic(expected = "a drain must be longer than zero")]
fn a_drain_of_no_time_panics() {
    let _ = PumpLayer::new().drain(Some(Duration::ZERO));
}

/// A server that stops lets what it has admitted end, also if that has not begun.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_admitted_before_the_registry_drains_is_answered() {
    for drain in [None, Some(LIMIT)] {
        let registry = RunRegistry::new();
        let upstream = Upstream::script(stream());
        let mut service = ServiceBuilder::new()
            .layer(RunLayer::new(registry.clone()))
            .layer(PumpLayer::new().drain(drain))
            .service(upstream.clone());
        let call = service.call(request());
        assert_eq!(upstream.polls(), 0);
        let mut drained = Box::pin(registry.drain(LIMIT));
        assert!(poll_once(&mut drained).is_pending());

        let text = call.await.unwrap().into_body().read().await.whole();

        assert_eq!(text.matches("data:").count(), 9);
        assert_eq!(drained.await, 0, "none was cut");
    }
}
