use std::time::Duration;

use http_body::Body;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{HardCeilingLayer, Limits, NodeKind, Run, Scope, TerminalReason};

use crate::support::{
    DONE, FINISH, Outcome, Place, ReadExt, Script, Stack, Upstream, chat, plain, poll_body,
    reason_of, request, secs,
};

const LIMIT: Duration = secs(30);

fn layer() -> HardCeilingLayer {
    HardCeilingLayer::new(LIMIT)
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn the_ceiling_ends_a_call_before_its_head() {
    let upstream = Upstream::script(Script::before_head().never());
    let start = Instant::now();

    let stack = Stack::default().ceiling(30).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(start.elapsed(), LIMIT);
    assert_eq!(upstream.dropped().at, start + LIMIT);
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::HardCeiling));
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn the_ceiling_ends_a_body_and_progress_does_not_extend_it() {
    let upstream = Upstream::script(Script::sse().repeat(100, 1.0, chat("a")));
    let start = Instant::now();

    let stack = Stack::default().ceiling(30).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
    assert_eq!(start.elapsed(), LIMIT);
    assert_eq!(upstream.dropped().at, start + LIMIT);
    assert!((29..=30).contains(&outcome.frames), "{}", outcome.frames);
}

/// covers: A3, T18
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_always_ready_ends_within_sixteen_frames() {
    // Wherever the frames since the last look at the clock stand.
    for before in 100..116 {
        let upstream = Upstream::script(Script::sse().flood(chat("a")));
        let stack = Stack::default().ceiling(30).build(&upstream);
        let mut body = stack.oneshot(request()).await.unwrap().into_body();
        for _ in 0..before {
            body.token().await;
        }
        advance(LIMIT).await;

        let read = body.read().await;

        assert_eq!(read.reason(), Some(TerminalReason::HardCeiling));
        assert!(
            read.frames <= 15,
            "{} frames after the ceiling",
            read.frames
        );
        assert!(upstream.is_dropped());
    }
}

#[tokio::test(start_paused = true)]
async fn a_ready_stream_of_an_answer_that_is_no_event_stream_ends_as_well() {
    let upstream = Upstream::script(Script::json().flood("x"));
    let stack = Stack::default().ceiling(30).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    advance(LIMIT).await;

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::HardCeiling));
    assert!(read.frames <= 15);
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn pauses_do_not_stop_it() {
    let upstream = Upstream::script(Script::sse().never());
    let start = Instant::now();
    let stack = Stack::default().ceiling(30).build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    let _pause = upstream.run().pause();

    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::HardCeiling));
    assert_eq!(start.elapsed(), LIMIT);
}

/// covers: A4
#[tokio::test(start_paused = true)]
async fn a_timeout_has_a_reason_of_its_own() {
    let upstream = Upstream::script(Script::sse().never());

    let stack = Stack::default()
        .layer(Place::Ceiling, layer().timeout(Some(secs(20))))
        .build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::CallerDeadline);
    assert_eq!(outcome.at, secs(20));
}

/// covers: A4
#[tokio::test(start_paused = true)]
async fn a_timeout_works_without_a_ceiling() {
    let upstream = Upstream::script(Script::sse().never());

    let service = HardCeilingLayer::optional(None)
        .timeout(Some(secs(20)))
        .layer(upstream);
    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::CallerDeadline);
    assert_eq!(outcome.at, secs(20));
}

/// covers: A6
#[tokio::test(start_paused = true)]
async fn the_ceiling_comes_before_a_timeout_of_the_same_instant() {
    let upstream = Upstream::script(Script::sse().never());

    let stack = Stack::default()
        .layer(Place::Ceiling, layer().timeout(Some(LIMIT)))
        .build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn the_scope_of_a_run_counts_over_several_calls() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().wait(20.0).data(DONE));
    let stack = Stack::default()
        .layer(Place::Ceiling, layer().scope(Scope::Run))
        .build(&upstream);
    let start = Instant::now();

    let first = stack.ask(run.attach(request())).await;
    let second = stack.ask(run.attach(request())).await;

    assert_eq!(first.whole(), DONE);
    assert_eq!(second.status, 200);
    assert_eq!(second.terminated().reason, TerminalReason::HardCeiling);
    assert_eq!(start.elapsed(), LIMIT);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn the_program_moves_a_runs_ceiling_once_and_a_later_call_does_not_move_it_back() {
    let run = Run::open();
    let upstream = Upstream::scripts([Script::sse().wait(40.0).data(DONE), Script::sse().never()]);
    let service = layer()
        .scope(Scope::Run)
        .timeout(Some(secs(35)))
        .layer(upstream);
    let ask = || tokio::spawn(Outcome::of(service.clone().oneshot(run.attach(request()))));
    let start = Instant::now();
    assert!(!run.extend_once(LIMIT), "there is no deadline yet");
    let first = ask();
    sleep(secs(20)).await;

    assert!(!run.extend_once(secs(0)), "that moves nothing");
    assert!(run.extend_once(secs(60)));
    assert!(!run.extend_once(secs(60)), "it was moved");
    first.await.unwrap().whole();
    let second = ask().await.unwrap();

    assert_eq!(second.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(start.elapsed(), LIMIT + secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_that_has_passed_is_not_moved() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let service = layer().scope(Scope::Run).layer(upstream);
    let _unread = service.oneshot(run.attach(request())).await.unwrap();
    advance(LIMIT).await;

    assert!(!run.extend_once(LIMIT));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_that_a_later_call_sets_on_its_run_ends_the_earlier_call_in_time() {
    let run = Run::open();
    let upstream = Upstream::scripts([Script::sse().never(), Script::sse().data(DONE)]);
    let service = HardCeilingLayer::new(secs(1000))
        .scope(Scope::Run)
        .layer(upstream);
    let earlier = run.attach(request());
    let earlier = tokio::spawn(Outcome::of(service.clone().oneshot(earlier)));
    sleep(secs(1)).await;

    let mut later = run.attach(request());
    later.extensions_mut().insert(Limits {
        ceiling: Some(secs(5)),
        ..Limits::default()
    });
    Outcome::of(service.oneshot(later)).await.whole();
    let earlier = earlier.await.unwrap();

    assert_eq!(earlier.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(earlier.at, secs(5));
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn a_runs_ceiling_counts_from_its_opening_and_not_from_its_first_call() {
    let run = Run::open();
    sleep(secs(20)).await;
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default()
        .layer(Place::Ceiling, layer().scope(Scope::Run))
        .build(&upstream);

    let outcome = stack.ask(run.attach(request())).await;

    assert_eq!(outcome.at, secs(10));
    let end = outcome.terminated();
    assert_eq!(
        (end.kind, end.elapsed, end.limit),
        (NodeKind::Run, LIMIT, Some(LIMIT))
    );
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn nothing_starts_under_a_run_whose_ceiling_passed_between_two_calls() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(DONE));
    let stack = Stack::default()
        .layer(Place::Ceiling, layer().scope(Scope::Run))
        .build(&upstream);
    stack.ask(run.attach(request())).await.whole();
    sleep(LIMIT).await;

    let outcome = stack.ask(run.attach(request())).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 1);
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn a_calls_ceiling_counts_from_its_own_opening_and_leaves_the_run() {
    let run = Run::open();
    sleep(secs(100)).await;
    let upstream = Upstream::script(Script::sse().never());

    let stack = Stack::default().ceiling(30).build(&upstream);
    let outcome = stack.ask(run.attach(request())).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.at, LIMIT);
    let end = outcome.terminated();
    assert_eq!(
        (end.kind, end.elapsed, end.limit),
        (NodeKind::Call, LIMIT, Some(LIMIT))
    );
    assert_eq!(run.terminal_reason(), None);
}

/// covers: A3
#[tokio::test(start_paused = true)]
async fn of_two_layers_the_tighter_holds() {
    for limits in [[30, 50], [50, 30]] {
        let upstream = Upstream::script(Script::sse().never());
        let service = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(secs(limits[0])))
            .layer(HardCeilingLayer::new(secs(limits[1])))
            .service(upstream);

        let outcome = Outcome::of(service.oneshot(request())).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
        assert_eq!(outcome.at, LIMIT);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_in_the_very_instant_is_the_ceilings_and_becomes_its_source() {
    for script in [
        Script::before_head().wait(30.0).fail("reset"),
        Script::sse().wait(30.0).fail("reset"),
    ] {
        let upstream = Upstream::script(script);

        let stack = Stack::default().ceiling(30).build(&upstream);
        let outcome = stack.ask(request()).await;

        let end = outcome.terminated();
        assert_eq!(end.reason, TerminalReason::HardCeiling);
        assert_eq!(std::error::Error::source(end).unwrap().to_string(), "reset");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_one_tick_before_the_ceiling_is_the_error() {
    let upstream = Upstream::script(Script::sse().wait(29.999).fail("reset"));

    let stack = Stack::default().ceiling(30).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(reason_of(outcome.error.as_ref().unwrap()), None);
    assert_eq!(outcome.error.unwrap().to_string(), "reset");
    assert_eq!(
        upstream.run().terminal_reason().unwrap().as_str(),
        "upstream_failed"
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_body_in_the_very_instant_wins() {
    let upstream = Upstream::script(Script::sse().data(FINISH).wait(30.0));

    let stack = Stack::default().ceiling(30).build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.at, LIMIT);
    assert_eq!(outcome.whole(), FINISH);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn the_longest_durations_there_are_do_not_overflow() {
    let upstream = Upstream::script(Script::sse().wait(1e6).data(DONE));
    let service = HardCeilingLayer::new(Duration::MAX)
        .timeout(Some(Duration::MAX))
        .layer(upstream);

    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.whole(), DONE);
}

/// covers: A4, A5
#[tokio::test(start_paused = true)]
async fn the_programs_limits_for_a_request_replace_both_clocks() {
    let limits = [
        (
            Limits {
                ceiling: Some(secs(90)),
                ..Limits::default()
            },
            40,
            TerminalReason::CallerDeadline,
        ),
        (
            Limits {
                ceiling: Some(secs(90)),
                timeout: Some(secs(95)),
                ..Limits::default()
            },
            90,
            TerminalReason::HardCeiling,
        ),
        (
            Limits {
                timeout: Some(secs(5)),
                ..Limits::default()
            },
            5,
            TerminalReason::CallerDeadline,
        ),
        (
            // Zero switches one clock off, and the other holds.
            Limits {
                ceiling: Some(Duration::ZERO),
                ..Limits::default()
            },
            40,
            TerminalReason::CallerDeadline,
        ),
        (
            Limits {
                ceiling: Some(secs(90)),
                timeout: Some(Duration::ZERO),
                ..Limits::default()
            },
            90,
            TerminalReason::HardCeiling,
        ),
    ];
    for (limits, expected, reason) in limits {
        let upstream = Upstream::script(Script::sse().never());
        let mut request = request();
        request.extensions_mut().insert(limits);

        let stack = Stack::default()
            .layer(Place::Ceiling, layer().timeout(Some(secs(40))))
            .build(&upstream);
        let outcome = stack.ask(request).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.terminated().reason, reason);
        assert_eq!(outcome.at, secs(expected));
    }
}

#[test]
#[should_panic(expected = "a ceiling must be longer than zero")]
fn a_ceiling_of_zero_panics() {
    let _ = HardCeilingLayer::new(Duration::ZERO);
}

#[test]
#[should_panic(expected = "a timeout must be longer than zero")]
fn a_timeout_of_zero_panics() {
    let _ = layer().timeout(Some(Duration::ZERO));
}

/// covers: T79
#[tokio::test(start_paused = true)]
async fn an_inert_layer_passes_everything_on_unchanged() {
    let script = Script::json().size(3).knows_its_end().wait(1e5).data("abc");
    let upstream = Upstream::script(script);
    let answer = HardCeilingLayer::optional(None)
        .layer(upstream.clone())
        .oneshot(plain())
        .await
        .unwrap();
    let mut body = answer.into_body();

    assert_eq!(body.size_hint().exact(), Some(3));
    assert_eq!(body.token().await, "abc");
    assert!(body.is_end_stream());
    assert!(upstream.runs().is_empty());
}

/// covers: T68
#[tokio::test(start_paused = true)]
async fn size_hint_end_and_trailers_are_forwarded() {
    let upstream = Upstream::script(Script::json().size(2).knows_its_end().data("{}"));
    let stack = Stack::default().ceiling(30).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    assert_eq!(body.size_hint().exact(), Some(2));
    body.token().await;
    assert!(body.is_end_stream());

    let upstream = Upstream::script(Script::json().data("{}").trailers());
    let stack = Stack::default().ceiling(30).build(&upstream);
    let outcome = stack.ask(request()).await;
    assert_eq!(outcome.trailers.as_ref().unwrap()["x-sum"], "42");
    assert_eq!(outcome.whole(), "{}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_back_after_the_ceiling_gets_it() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let stack = Stack::default().ceiling(30).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    sleep(LIMIT * 2).await;
    assert!(!upstream.is_dropped(), "nobody polled");

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::HardCeiling));
    assert!(upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_its_node_and_timer_back() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().ceiling(30).build(&upstream);
    let mut body = stack
        .oneshot(run.attach(request()))
        .await
        .unwrap()
        .into_body();
    assert!(poll_body(&mut body).is_pending());
    let call = upstream.run();
    assert_eq!(run.in_flight(), 1);

    drop(body);

    assert_eq!(run.in_flight(), 0);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_never_polled_settles_its_call() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());

    drop(layer().layer(upstream.clone()).call(run.attach(request())));

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Aborted)
    );
    assert_eq!(run.in_flight(), 0);
}
