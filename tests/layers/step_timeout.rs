use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use http::Request;
use http_body::Body;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    Limits, NodeKind, Owner, ResetOn, Run, RunLayer, RunRegistry, Scope, Step, StepKind,
    StepTimeoutLayer, TerminalReason, Terminated, llm::dialect::Truncated,
};

use crate::support::{
    DONE, FINISH, Outcome, PING, PRELUDE, Place, ReadExt, STOP, Script, Stack, Upstream, WakeCount,
    chat, content_block, later, messages, plain, poll_body, prompt, reason_of, request, request_of,
    secs, with_header,
};

const WINDOW: Duration = secs(10);

fn layer() -> StepTimeoutLayer {
    StepTimeoutLayer::new(WINDOW)
}

/// covers: A1, A14
#[tokio::test(start_paused = true)]
async fn silence_before_the_head_ends_the_call_one_window_after_it_began() {
    let upstream = Upstream::script(Script::before_head().never());
    let start = Instant::now();

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), WINDOW);
    let dropped = upstream.dropped();
    assert_eq!(dropped.at, start + WINDOW);
    assert_eq!(dropped.reason, Some(TerminalReason::StepTimeout));
}

/// covers: T20
#[tokio::test(start_paused = true)]
async fn the_window_starts_at_the_first_pending_not_at_the_call() {
    let upstream = Upstream::script(Script::before_head().never());
    let call = layer().layer(upstream).call(request());
    sleep(WINDOW * 5).await;
    let start = Instant::now();

    let error = call.await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), WINDOW);
}

/// covers: A1, A14
#[tokio::test(start_paused = true)]
async fn silence_in_the_body_ends_the_call_and_drops_upstream_in_the_same_poll() {
    let upstream = Upstream::script(Script::sse().wait(3.0).data(chat("a")).never());
    let start = Instant::now();
    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    let quiet = Instant::now();

    let error = body.next().await.unwrap().unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(quiet - start, secs(3));
    assert_eq!(quiet.elapsed(), WINDOW);
    assert_eq!(upstream.dropped().at, quiet + WINDOW);
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.dropped().polls, upstream.polls());
    assert!(body.next().await.is_none());
    assert!(body.is_end_stream());
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn a_slow_but_living_stream_of_ten_windows_completes() {
    let script = Script::sse()
        .repeat(12, 9.9, chat("a"))
        .wait(9.9)
        .data(DONE);
    let upstream = Upstream::script(script);
    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.whole(), chat("a").repeat(12) + DONE);
    assert!(outcome.at > WINDOW * 10);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

/// covers: A7
#[tokio::test(start_paused = true)]
async fn a_first_window_of_its_own_bounds_the_wait_for_the_first_token() {
    let slow = Stack::default().layer(Place::Step, layer().first(secs(40)));
    let late = Upstream::script(
        Script::before_head()
            .wait(30.0)
            .head("text/event-stream")
            .never(),
    );
    let never = Upstream::script(Script::before_head().never());

    let late = slow.build(&late).ask(request()).await;
    let never = slow.build(&never).ask(request()).await;

    assert_eq!(late.status, 200);
    assert_eq!(late.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(late.at, secs(40), "a head is life, and no content");
    assert_eq!(never.status, Outcome::NO_ANSWER);
    assert_eq!(never.at, secs(40));
    assert_eq!(never.reason, Some(TerminalReason::StepTimeout));
}

/// covers: A2
#[tokio::test(start_paused = true)]
async fn after_the_first_token_the_step_window_counts() {
    let script = Script::sse()
        .wait(35.0)
        .data(PRELUDE)
        .data(chat("a"))
        .never();
    let upstream = Upstream::script(script);
    let stack = Stack::default()
        .layer(Place::Step, layer().first(secs(40)))
        .build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    let start = Instant::now();

    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(35) + WINDOW);
}

/// covers: A2
#[tokio::test(start_paused = true)]
async fn the_first_window_is_the_whole_wait_of_an_answer_that_does_not_stream() {
    let script = Script::before_head()
        .wait(39.0)
        .head("application/json")
        .data("{}");
    let upstream = Upstream::script(script);

    let stack = Stack::default()
        .layer(Place::Step, layer().first(secs(40)))
        .build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.whole(), "{}");
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

/// covers: A8
#[tokio::test(start_paused = true)]
async fn a_stream_of_comments_and_pings_alone_is_ended_after_one_window() {
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    for (request, life) in [(request(), PING), (messages(), ping)] {
        let upstream = Upstream::script(Script::sse().repeat(30, 1.0, life));

        let stack = Stack::default().step(10).build(&upstream);
        let outcome = stack.ask(request).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
        assert_eq!(outcome.at, WINDOW);
    }
}

#[tokio::test(start_paused = true)]
async fn the_prelude_is_no_progress() {
    let upstream = Upstream::script(Script::sse().wait(6.0).data(PRELUDE).never());

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, WINDOW);
    assert_eq!(outcome.text, PRELUDE);
}

/// covers: A8
#[tokio::test(start_paused = true)]
async fn pings_around_a_token_move_nothing() {
    let script = Script::sse()
        .wait(4.0)
        .data(PING)
        .wait(4.0)
        .data(chat("a"))
        .wait(4.0)
        .data(PING)
        .wait(4.0)
        .data(PING)
        .never();
    let upstream = Upstream::script(script);

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, secs(8) + WINDOW);
}

/// covers: A7
#[tokio::test(start_paused = true)]
async fn what_resets_the_window_is_a_setting() {
    let cases = [
        (ResetOn::AnyByte, secs(6 + 4 + 6) + WINDOW),
        (ResetOn::Content, secs(6 + 4) + WINDOW),
        (ResetOn::Step, WINDOW),
    ];
    for (resets_on, expected) in cases {
        let script = Script::sse().wait(6.0).data(PING).wait(4.0).data(chat("a"));
        let script = if resets_on == ResetOn::Step {
            script.never()
        } else {
            script.wait(6.0).data(PING).never()
        };
        let upstream = Upstream::script(script);

        let stack = Stack::default()
            .layer(Place::Step, layer().resets_on(resets_on))
            .build(&upstream);
        let outcome = stack.ask(request()).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
        assert_eq!(outcome.at, expected, "{resets_on:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_of_an_answer_that_is_no_event_stream_are_progress() {
    // White space before the answer is no part of it; behind its first byte it is.
    for (bytes, last) in [("1", 40), (" ", 0), ("{ ", 40), ("\n", 0)] {
        let upstream = Upstream::script(Script::json().repeat(5, 8.0, bytes).never());

        let stack = Stack::default().step(10).build(&upstream);
        let outcome = stack.ask(request()).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
        assert_eq!(outcome.at, secs(last) + WINDOW, "{bytes:?}");
    }
}

/// covers: T19
#[tokio::test(start_paused = true)]
async fn a_reader_that_is_away_for_ten_windows_is_not_punished() {
    for frame in [chat("a"), PING.to_owned()] {
        let script = Script::sse()
            .wait(4.0)
            .data(&frame)
            .wait(5.0)
            .data(chat("b"))
            .data(DONE);
        let upstream = Upstream::script(script);
        let stack = Stack::default().step(10).build(&upstream);
        let mut body = stack.oneshot(request()).await.unwrap().into_body();

        assert_eq!(body.token().await, frame);
        sleep(WINDOW * 10).await;
        let rest = body.read().await;

        assert_eq!(rest.whole(), chat("b") + DONE);
        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::Completed)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_readers_time_is_taken_out_after_a_ping_and_not_more() {
    let upstream = Upstream::script(Script::sse().wait(4.0).data(PING).never());
    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    sleep(WINDOW * 3).await;
    let start = Instant::now();

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(
        start.elapsed(),
        secs(6),
        "four were counted before the ping"
    );
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_ready_beats_a_window_that_passed_unpolled() {
    let upstream = Upstream::script(Script::sse().wait(9.0).data(chat("a")).data(DONE));
    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    assert!(poll_body(&mut body).is_pending());

    advance(WINDOW * 2).await;
    let read = body.read().await;

    assert_eq!(read.whole(), chat("a") + DONE);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_ready_beats_a_window_that_passed_unpolled() {
    let upstream = Upstream::script(Script::before_head().wait(9.0).head("application/json"));
    let mut call = layer().layer(upstream).call(request());
    let polled =
        poll_fn(|cx| Poll::Ready(std::future::Future::poll(Pin::new(&mut call), cx))).await;
    assert!(polled.is_pending());

    advance(WINDOW * 2).await;

    assert!(call.await.is_ok());
}

/// A process that was stopped wakes this task before it has read what came meanwhile.
#[tokio::test(start_paused = true)]
async fn what_comes_right_after_a_late_look_beats_the_window() {
    let upstream = Upstream::script(Script::sse().wait(20.1).data(chat("a")).data(DONE));
    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    assert!(poll_body(&mut body).is_pending());

    advance(WINDOW * 2).await;
    assert!(poll_body(&mut body).is_pending());
    let read = body.read().await;

    assert_eq!(read.whole(), chat("a") + DONE);
}

#[tokio::test(start_paused = true)]
async fn silence_after_a_late_look_ends_the_call_soon_also_with_pings() {
    for pinged in [Script::sse().never(), Script::sse().repeat(9, 2.22, PING)] {
        let upstream = Upstream::script(pinged.repeat(99, 0.02, PING).never());
        let stack = Stack::default().step(10).build(&upstream);
        let mut body = stack.oneshot(request()).await.unwrap().into_body();
        let start = Instant::now();
        assert!(poll_body(&mut body).is_pending());

        advance(WINDOW * 2).await;
        let read = body.read().await;

        assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
        assert_eq!(start.elapsed(), WINDOW * 2 + Duration::from_millis(200));
    }
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn a_pause_stops_the_window_at_the_run_and_at_the_call() {
    for level in [NodeKind::Run, NodeKind::Call] {
        let run = Run::open();
        let upstream = Upstream::script(Script::sse().wait(4.0).data(PING).never());
        let stack = Stack::default().step(10).build(&upstream);
        let answer = stack.oneshot(run.attach(request())).await.unwrap();
        let start = Instant::now();
        let node = if level == NodeKind::Run {
            run.clone()
        } else {
            upstream.run()
        };
        tokio::spawn(async move {
            sleep(secs(5)).await;
            let guard = node.pause();
            sleep(WINDOW * 6).await;
            drop(guard);
        });

        let read = answer.into_body().read().await;

        assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
        assert_eq!(start.elapsed(), WINDOW * 6 + WINDOW, "{level:?}");
    }
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn a_pause_below_the_run_stops_the_runs_window_too_and_does_not_spin() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default()
        .layer(Place::Step, layer().scope(Scope::Run))
        .build(&upstream);
    let mut body = stack
        .oneshot(run.attach(request()))
        .await
        .unwrap()
        .into_body();
    let child = run.child();
    let guard = child.pause();
    let wakes = WakeCount::default();
    let waker = wakes.waker();
    let mut poll = || Pin::new(&mut body).poll_frame(&mut std::task::Context::from_waker(&waker));

    for _ in 0..50 {
        assert!(poll().is_pending());
        advance(secs(1)).await;
    }
    let before = wakes.count();
    assert!(poll().is_pending());
    assert_eq!(wakes.count(), before, "nothing to do while it is paused");
    drop(guard);
    assert!(poll().is_pending(), "the pause is taken out");
    advance(WINDOW).await;

    let ended = poll();
    assert!(
        matches!(&ended, Poll::Ready(Some(Err(error))) if reason_of(error) == Some(TerminalReason::StepTimeout))
    );
    assert!(upstream.is_dropped());
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn steps_and_state_changes_restart_the_window_and_heartbeats_do_not() {
    type Sign = fn(&Run);
    let signs: [(Sign, bool); 3] = [
        (|run| run.state_change("tool done"), true),
        (|run| run.step(Step::new(StepKind::ToolComplete)), true),
        (Run::heartbeat, false),
    ];
    for (sign, resets) in signs {
        let upstream = Upstream::script(Script::sse().never());
        let stack = Stack::default().step(10).build(&upstream);
        let answer = stack.oneshot(request()).await.unwrap();
        let start = Instant::now();
        later(7, move || sign(&upstream.run()));

        let read = answer.into_body().read().await;

        assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
        let expected = if resets { secs(7) + WINDOW } else { WINDOW };
        assert_eq!(start.elapsed(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_change_on_the_run_does_not_restart_a_calls_window() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().step(10).build(&upstream);
    let answer = stack.oneshot(run.attach(request())).await.unwrap();
    let start = Instant::now();

    later(7, {
        let run = run.clone();
        move || run.state_change("elsewhere")
    });
    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), WINDOW);
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_a_window_alive_that_any_byte_resets() {
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default()
        .layer(Place::Step, layer().resets_on(ResetOn::AnyByte))
        .build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    let start = Instant::now();

    tokio::spawn(async move {
        for _ in 0..5 {
            sleep(secs(8)).await;
            upstream.run().heartbeat();
        }
    });
    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(40) + WINDOW);
}

#[tokio::test(start_paused = true)]
async fn progress_between_a_ping_and_the_next_wait_restarts_the_window() {
    let upstream = Upstream::script(Script::sse().wait(8.0).data(PING).never());
    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    upstream
        .run()
        .state_change("in the very instant of the ping");
    sleep(secs(5)).await;
    let start = Instant::now();

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), WINDOW, "none of it was silence");
}

/// The layer that classifies the events acts on a run of its own, so its notes never reach the
/// node of this window.
#[tokio::test(start_paused = true)]
async fn content_right_behind_a_comment_restarts_the_window_of_another_run() {
    let round = |script: Script, _| script.wait(6.0).data(PING).data(chat("a"));
    let upstream = Upstream::script((0..3).fold(Script::sse(), round).data(DONE));
    let inner = layer().layer(upstream);
    let rebuilt = service_fn(move |_: Request<()>| inner.clone().oneshot(request()));

    let outcome = Outcome::of(layer().layer(rebuilt).oneshot(request())).await;

    assert_eq!(
        (outcome.reason, outcome.at),
        (Some(TerminalReason::Completed), secs(18))
    );
}

#[tokio::test(start_paused = true)]
async fn content_right_behind_a_comment_restarts_the_window_of_a_run_that_the_id_replaces() {
    let round = |script: Script, _| script.wait(6.0).data(PING).data(chat("a"));
    let upstream = Upstream::script((0..3).fold(Script::sse(), round).data(DONE));
    let registry = RunRegistry::new();
    let _has_the_id = registry.open(Owner::anonymous(), "r".parse().unwrap());
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(RunLayer::new(registry))
        .layer(layer())
        .service(upstream);

    let request = with_header(request(), "x-run-id", "r");
    let outcome = Outcome::of(service.oneshot(request)).await;

    assert_eq!(
        (outcome.reason, outcome.at),
        (Some(TerminalReason::Completed), secs(18))
    );
}

#[tokio::test(start_paused = true)]
async fn scope_run_ends_the_run_and_all_its_calls() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let other = Upstream::script(Script::sse().never());
    let watched = layer().scope(Scope::Run).layer(upstream.clone());
    let unhurried = StepTimeoutLayer::new(WINDOW * 10).layer(other.clone());
    let first = watched.oneshot(run.attach(request())).await.unwrap();
    let second = unhurried.oneshot(run.attach(request())).await.unwrap();
    let start = Instant::now();

    let second = tokio::spawn(second.into_body().read());
    let first = first.into_body().read().await;
    let second = second.await.unwrap();

    assert_eq!(start.elapsed(), WINDOW);
    assert_eq!(first.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(second.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::StepTimeout));
    let error = first.end.unwrap_err();
    assert_eq!(Terminated::find(&*error).unwrap().kind, NodeKind::Run);
    assert_eq!(other.dropped().at, upstream.dropped().at);
}

#[tokio::test(start_paused = true)]
async fn a_calls_window_leaves_its_run_alive() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(run.attach(request())).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn progress_of_one_call_restarts_the_runs_window_of_another() {
    let run = Run::open();
    let silent = Upstream::script(Script::sse().never());
    let busy = Upstream::script(Script::sse().repeat(4, 6.0, chat("a")).data(DONE));
    let watched = Stack::default().layer(Place::Step, layer().scope(Scope::Run));
    let [silent, busy] = [silent, busy].map(|it| watched.build(&it));
    let silent = silent.oneshot(run.attach(request())).await.unwrap();
    let busy = busy.oneshot(run.attach(request())).await.unwrap();
    let start = Instant::now();

    let busy = tokio::spawn(busy.into_body().read());
    let silent = silent.into_body().read().await;
    let busy = busy.await.unwrap();

    assert_eq!(busy.whole(), chat("a").repeat(4) + DONE);
    assert_eq!(silent.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(24) + WINDOW);
}

#[tokio::test(start_paused = true)]
async fn of_two_step_layers_the_shorter_window_fires() {
    for windows in [[10, 30], [30, 10]] {
        let upstream = Upstream::script(Script::sse().never());
        let service = ServiceBuilder::new()
            .layer(StepTimeoutLayer::new(secs(windows[0])))
            .layer(StepTimeoutLayer::new(secs(windows[1])))
            .service(upstream.clone());
        let start = Instant::now();

        let outcome = Outcome::of(service.oneshot(request())).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
        assert_eq!(start.elapsed(), WINDOW);
        assert_eq!(upstream.dropped().at, start + WINDOW);
        assert_eq!(outcome.terminated().limit, Some(WINDOW));
    }
}

/// covers: A2, T79
/// covers: A2
#[tokio::test(start_paused = true)]
async fn a_first_window_alone_limits_the_wait_for_the_first_content() {
    let layer = StepTimeoutLayer::optional(None).first(WINDOW);
    let late = Script::sse().data(PRELUDE).data(chat("a")).wait(1000.0);
    let late = Upstream::script(late.data(chat("b")).data(DONE));
    let served = Outcome::of(layer.layer(late).oneshot(prompt("a"))).await;
    assert_eq!(served.frames, 4);

    let never = Upstream::script(Script::sse().data(PRELUDE).never());
    let cut = Outcome::of(layer.layer(never).oneshot(prompt("a"))).await;
    assert_eq!(cut.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(cut.at, WINDOW);
}

#[tokio::test(start_paused = true)]
async fn an_inert_layer_passes_everything_on_unchanged() {
    let inert = StepTimeoutLayer::optional(None).scope(Scope::Run);
    let script = Script::json()
        .size(3)
        .knows_its_end()
        .wait(1000.0)
        .data("abc");
    let upstream = Upstream::script(script);
    let answer = inert
        .layer(upstream.clone())
        .oneshot(plain())
        .await
        .unwrap();
    let mut body = answer.into_body();
    assert_eq!(body.size_hint().exact(), Some(3));
    assert!(!body.is_end_stream());
    assert_eq!(body.token().await, "abc");
    assert!(body.is_end_stream());
    assert_eq!(upstream.runs().len(), 0, "it opens no run");

    let upstream = Upstream::script(Script::sse().data("x").trailers());
    let service = inert.layer(upstream.clone());
    let outcome = Outcome::of(service.oneshot(request())).await;
    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.trailers.unwrap()["x-sum"], "42");
    assert!(outcome.error.is_none());

    let upstream = Upstream::script(Script::sse().fail("reset"));
    let service = inert.layer(upstream.clone());
    let outcome = Outcome::of(service.oneshot(request())).await;
    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.error.unwrap().to_string(), "reset");
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn the_programs_limits_for_a_request_replace_the_windows() {
    let cases = [
        (
            Limits {
                step: Some(secs(3)),
                ..Limits::default()
            },
            3,
            3,
        ),
        (
            Limits {
                first: Some(secs(50)),
                ..Limits::default()
            },
            50,
            10,
        ),
        (
            Limits {
                step: Some(secs(60)),
                first: Some(secs(5)),
                ..Limits::default()
            },
            5,
            60,
        ),
    ];
    for (limits, first, step) in cases {
        let mut request = request();
        request.extensions_mut().insert(limits);
        let silent = Upstream::script(Script::sse().never());
        let token = Upstream::script(Script::sse().data(chat("a")).never());
        let stack = Stack::default().step(10);

        let silent = stack.build(&silent).ask(request.clone()).await;
        let token = stack.build(&token).ask(request).await;

        assert_eq!(silent.status, 200);
        assert_eq!(silent.terminated().reason, TerminalReason::StepTimeout);
        assert_eq!(silent.at, secs(first));
        assert_eq!(token.status, 200);
        assert_eq!(token.terminated().reason, TerminalReason::StepTimeout);
        assert_eq!(token.at, secs(step));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_fused_after_its_error_and_upstream_is_gone() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).fail("reset"));

    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    let error = body.next().await.unwrap().unwrap_err();

    assert_eq!(error.to_string(), "reset");
    assert!(body.next().await.is_none());
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert_eq!(
        upstream.run().terminal_reason().unwrap().as_str(),
        "upstream_failed"
    );
}

/// covers: T68
#[tokio::test(start_paused = true)]
async fn size_hint_end_and_trailers_are_forwarded() {
    let script = Script::json().size(2).knows_its_end().data("{").data("}");
    let upstream = Upstream::script(script);
    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    assert_eq!(body.size_hint().exact(), Some(2));
    body.token().await;
    assert_eq!(body.size_hint().exact(), Some(1));
    assert!(!body.is_end_stream());
    body.token().await;
    assert!(body.is_end_stream());

    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE).trailers());
    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request()).await;
    assert_eq!(outcome.trailers.as_ref().unwrap()["x-sum"], "42");
    outcome.whole();
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_split_anywhere_is_progress_when_it_is_whole() {
    let event = chat("h\u{e9}llo");
    for at in 1..event.len() {
        let (head, tail) = event.as_bytes().split_at(at);
        let script = Script::sse()
            .wait(8.0)
            .data(head)
            .wait(1.0)
            .data(tail)
            .never();
        let upstream = Upstream::script(script);
        let stack = Stack::default().step(10).build(&upstream);
        let answer = stack.oneshot(request()).await.unwrap();
        let start = Instant::now();

        let read = answer.into_body().read().await;

        assert_eq!(
            read.reason(),
            Some(TerminalReason::StepTimeout),
            "split at {at}"
        );
        assert_eq!(start.elapsed(), secs(9) + WINDOW, "split at {at}");
        assert_eq!(read.text, event);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_its_terminator_ends_with_an_error_in_every_way_it_can_end() {
    let cut = Script::sse().data(chat("a"));
    let cases = [cut.clone(), cut.clone().trailers(), cut.knows_its_end()];
    for script in cases {
        let upstream = Upstream::script(script);

        let stack = Stack::default().step(10).build(&upstream);
        let outcome = stack.ask(request()).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.text, chat("a"));
        assert!(outcome.trailers.is_none());
        assert!(outcome.error.unwrap().is::<Truncated>());
        let reason = upstream.run().terminal_reason().unwrap();
        assert_eq!(reason.as_str(), "upstream_failed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_that_says_it_ended_is_not_end_stream_before_the_error() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).knows_its_end());
    let stack = Stack::default().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;

    assert!(!body.is_end_stream(), "the error comes yet");
    assert!(body.next().await.unwrap().is_err());
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_chat_stream_with_a_finish_reason_and_a_clean_end_is_whole() {
    for end in [
        Script::sse().data(chat("a")).data(FINISH),
        Script::sse().data(chat("a")).data(FINISH).trailers(),
    ] {
        let upstream = Upstream::script(end);

        let stack = Stack::default().step(10).build(&upstream);
        let outcome = stack.ask(request()).await;

        assert_eq!(outcome.whole(), chat("a") + FINISH);
        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::Completed)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_anthropic_stream_is_whole_with_message_stop_only() {
    let whole = Upstream::script(Script::sse().data(content_block("a")).data(STOP));
    let cut = Upstream::script(Script::sse().data(content_block("a")));

    let stack = Stack::default().step(10);
    let whole = stack.build(&whole).ask(messages()).await;
    let cut = stack.build(&cut).ask(messages()).await;

    assert_eq!(whole.whole(), content_block("a") + STOP);
    assert_eq!(cut.status, 200);
    assert!(cut.error.unwrap().is::<Truncated>());
}

#[test]
#[should_panic(expected = "a step window must be longer than zero")]
fn a_window_of_zero_panics() {
    let _ = StepTimeoutLayer::new(Duration::ZERO);
}

#[test]
#[should_panic(expected = "a first window must be longer than zero")]
fn a_first_window_of_zero_panics() {
    let _ = layer().first(Duration::ZERO);
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn a_huge_window_never_fires_and_does_not_overflow() {
    let upstream = Upstream::script(Script::sse().wait(1e6).data(chat("a")).data(DONE));

    let answer = StepTimeoutLayer::new(Duration::MAX)
        .layer(upstream)
        .oneshot(request())
        .await
        .unwrap();

    assert_eq!(answer.into_body().read().await.whole(), chat("a") + DONE);
}

/// covers: T23
#[tokio::test(start_paused = true)]
async fn thousands_of_ready_frames_use_up_the_budget_and_the_window_still_fires() {
    let script = (0..5000)
        .fold(Script::sse(), |script, _| script.data(PING))
        .never();
    let upstream = Upstream::script(script);
    let start = Instant::now();

    let stack = Stack::default().step(10).build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    let mut body = answer.into_body();
    let read = tokio::spawn(async move {
        // A channel beside it spends the task's budget with every frame.
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        loop {
            match body.next().await {
                Some(Ok(frame)) => sender.send(frame).unwrap(),
                other => return other,
            }
            receiver.recv().await;
        }
    });
    let end = tokio::time::timeout(secs(60), read).await.unwrap().unwrap();

    let error = end.unwrap().unwrap_err();
    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), WINDOW);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_an_ended_node_is_not_sent() {
    let run = Run::open();
    run.end(TerminalReason::Aborted);
    let upstream = Upstream::script(Script::sse().data(DONE));

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request_of(&run)).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::Aborted));
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_ended_elsewhere_drops_upstream_at_once() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let stack = Stack::default().step(10).build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    let start = Instant::now();

    later(2, {
        let upstream = upstream.clone();
        move || upstream.run().end(TerminalReason::Shutdown)
    });
    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::Shutdown));
    assert_eq!(upstream.dropped().at, start + secs(2));
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::Shutdown));
}

#[tokio::test(start_paused = true)]
async fn an_error_in_the_very_instant_the_window_passes_is_the_windows() {
    let upstream = Upstream::script(Script::sse().wait(10.0).fail("reset"));

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.at, WINDOW);
    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    let error = outcome.error.unwrap();
    assert_eq!(
        Terminated::find(&*error).map(|end| std::error::Error::source(end).unwrap().to_string()),
        Some("reset".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn an_end_in_the_very_instant_the_window_passes_is_an_end() {
    let upstream = Upstream::script(Script::sse().data(FINISH).wait(10.0));

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.whole(), FINISH);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_away_between_head_and_body_is_not_punished() {
    let script = Script::before_head()
        .wait(4.0)
        .head("text/event-stream")
        .wait(5.0)
        .data(chat("a"));
    let upstream = Upstream::script(script.data(DONE));
    let stack = Stack::default().step(10).build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();

    sleep(WINDOW * 10).await;
    let read = answer.into_body().read().await;

    assert_eq!(read.whole(), chat("a") + DONE);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_the_head_still_counts_when_the_reader_comes_back() {
    let upstream = Upstream::script(
        Script::before_head()
            .wait(4.0)
            .head("text/event-stream")
            .never(),
    );
    let stack = Stack::default().step(10).build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    sleep(WINDOW * 10).await;
    let start = Instant::now();

    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(6));
}
