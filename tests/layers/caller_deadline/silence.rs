//! The silence after which a caller gives up.
//!
//! covers: A4

use tower::ServiceBuilder;
use tower_agent::StepTimeoutLayer;

use super::*;
use crate::support::{DONE, PING, Upstream, chat, poll_body};

#[tokio::test(start_paused = true)]
async fn a_silent_stream_ends_one_window_after_its_last_byte() {
    let script = Script::before_head().wait(4.0).head("text/event-stream");
    let script = script.wait(3.0).data(chat("a")).wait(4.999).data(chat("b"));

    let outcome = play(layer(), script.never(), announcing(PYTHON, "5")).await;

    assert_ended_by_the_caller(&outcome, Duration::from_millis(4000 + 3000 + 4999 + 5000));
}

/// covers: T27
#[tokio::test(start_paused = true)]
async fn it_is_no_total() {
    for content_type in ["text/event-stream", "application/json"] {
        let script = Script::of(content_type).repeat(100, 4.0, PING).data(DONE);

        let outcome = play(layer(), script, announcing(PYTHON, "5")).await;

        assert_whole(&outcome, secs(400));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_falls_silent_after_its_head_ends_too() {
    let script = Script::json().wait(1.0).data("{");

    let outcome = play(layer(), script.never(), announcing(PYTHON, "5")).await;

    assert_ended_by_the_caller(&outcome, secs(6));
}

#[tokio::test(start_paused = true)]
async fn keep_alives_of_the_upstream_are_bytes() {
    let script = Script::sse().repeat(10, 4.0, PING);

    let outcome = play(layer(), script.never(), announcing(PYTHON, "5")).await;

    assert_ended_by_the_caller(&outcome, secs(45));
}

/// covers: T27
#[tokio::test(start_paused = true)]
async fn the_same_number_under_both_names_is_one_read_timeout() {
    let script = Script::json().repeat(10, 4.0, "a").data("}");
    let headers = [(NODE, "5.0"), (PYTHON, "5")];

    let outcome = play(layer(), script, with(request(), &headers)).await;

    assert_whole(&outcome, secs(40));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_not_punished() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(chat("b")).never());
    let service = layer().layer(upstream);
    let answer = service.oneshot(announcing(PYTHON, "5")).await.unwrap();
    let mut body = answer.into_body();

    for text in ["a", "b"] {
        tokio::time::sleep(secs(60)).await;
        assert_eq!(body.token().await, chat(text));
    }
    tokio::time::sleep(secs(60)).await;
    let waiting = Instant::now();
    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::CallerDeadline));
    assert_eq!(waiting.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_pause_and_a_heartbeat_are_no_bytes_to_the_caller() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = layer().layer(upstream.clone());
    let answer = service.oneshot(announcing(PYTHON, "5")).await.unwrap();
    let (start, run) = (Instant::now(), upstream.run());
    let _pause = run.pause();
    let beats = crate::support::later(4, move || run.heartbeat());

    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::CallerDeadline));
    assert_eq!(start.elapsed(), secs(5));
    beats.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_frame_or_the_end_in_the_very_instant_wins() {
    let frame = Script::sse().data(chat("a")).wait(5.0).data(chat("b"));
    let end = Script::json().data("a").wait(5.0).data("b").wait(5.0);
    for script in [frame.wait(5.0).data(DONE), end] {
        let outcome = play(layer(), script, announcing(PYTHON, "5")).await;

        assert_whole(&outcome, secs(10));
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_in_the_very_instant_is_the_deadlines() {
    let script = Script::sse().data(chat("a")).wait(5.0).fail("reset");

    let outcome = play(layer(), script, announcing(PYTHON, "5")).await;

    assert_ended_by_the_caller(&outcome, secs(5));
    assert_eq!(outcome.status, 200);
    let end = outcome.terminated();
    assert_eq!(std::error::Error::source(end).unwrap().to_string(), "reset");
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_readers_own_time_is_the_error() {
    let script = Script::sse().wait(1.0).data(chat("a")).fail("reset");
    let upstream = Upstream::script(script);
    let service = layer().layer(upstream);
    let answer = service.oneshot(announcing(PYTHON, "5")).await.unwrap();
    let mut body = answer.into_body();
    body.token().await;
    tokio::time::sleep(secs(60)).await;

    let read = body.read().await;

    assert_eq!(read.reason(), None);
    assert_eq!(read.end.unwrap_err().to_string(), "reset");
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_when_the_answer_moves_to_another_task() {
    let script = Script::sse().data(chat("a")).wait(5.0).fail("reset");
    let upstream = Upstream::script(script);
    let service = layer().layer(upstream);
    let answer = service.oneshot(announcing(PYTHON, "5")).await.unwrap();
    let mut body = answer.into_body();
    body.token().await;
    assert!(poll_body(&mut body).is_pending());
    tokio::time::advance(secs(5)).await;

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::CallerDeadline));
}

/// covers: A6
#[tokio::test(start_paused = true)]
async fn ceiling_and_step_come_before_it() {
    let cases = [
        (5, 9, TerminalReason::HardCeiling),
        (9, 5, TerminalReason::StepTimeout),
        (5, 5, TerminalReason::HardCeiling),
        (9, 9, TerminalReason::CallerDeadline),
    ];
    for (ceiling, step, expected) in cases {
        // To the head, after it, and a total.
        for (header, script) in [
            ((NODE, "5"), Script::before_head().never()),
            ((PYTHON, "5"), Script::sse().never()),
            ((GRPC, "5S"), Script::sse().never()),
        ] {
            let upstream = Upstream::script(script);
            let service = ServiceBuilder::new()
                .layer(HardCeilingLayer::new(secs(ceiling)).caller_deadline(true))
                .layer(StepTimeoutLayer::new(secs(step)))
                .service(upstream);

            let outcome = Outcome::of(service.oneshot(with(request(), &[header]))).await;

            assert_eq!(outcome.terminated().reason, expected, "{header:?}");
            assert_eq!(outcome.at, secs(5));
        }
    }
}

/// covers: B1
#[tokio::test(start_paused = true)]
async fn the_message_says_whose_limit_it_was() {
    let message = async |script: Script, request| {
        let outcome = play(layer().timeout(Some(secs(90))), script, request).await;
        let end = outcome.terminated();
        (end.limit, end.message())
    };

    let (limit, head) = message(Script::before_head().never(), announcing(NODE, "5")).await;
    assert_eq!(limit, Some(secs(5)));
    assert!(
        head.contains("its caller's own deadline of 5s passed (timeout)"),
        "{head}"
    );
    let quiet = Script::sse()
        .data(chat("a"))
        .wait(3.0)
        .data(chat("b"))
        .never();
    let (limit, silent) = message(quiet, announcing(PYTHON, "7")).await;
    assert_eq!(limit, Some(secs(7)));
    assert!(
        silent.contains("nothing came for 7s, the longest its caller waits"),
        "{silent}"
    );
    let (_, ours) = message(Script::sse().never(), announcing(GRPC, "99S")).await;
    assert!(
        ours.contains("it used up the 1m 30s it was given (timeout)"),
        "{ours}"
    );
}
