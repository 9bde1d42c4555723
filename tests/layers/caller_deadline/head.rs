//! Limits to the head, to a whole answer, and to everything.
//!
//! covers: A4

use super::*;
use crate::support::{DONE, Upstream, chat};

#[tokio::test(start_paused = true)]
async fn each_is_a_limit_to_the_head() {
    for (name, value) in [
        (NODE, "5"),
        (PYTHON, "5"),
        (GRPC, "5S"),
        (NODE, "5.0"),
        (GRPC, "5000m"),
    ] {
        let outcome = play(
            layer(),
            Script::before_head().never(),
            announcing(name, value),
        )
        .await;

        assert_ended_by_the_caller(&outcome, secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn fractions_of_a_second_are_kept() {
    let request = announcing(NODE, "0.25");

    let outcome = play(layer(), Script::before_head().never(), request).await;

    assert_ended_by_the_caller(&outcome, Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn a_limit_to_the_head_lapses_when_a_stream_begins() {
    for content_type in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
        let script = Script::before_head().wait(4.0).head(content_type);
        let script = script.repeat(10, 2.0, chat("a")).data(DONE);

        let outcome = play(layer(), script, announcing(NODE, "5")).await;

        assert_whole(&outcome, secs(24));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_here_can_read_has_begun_as_well() {
    let script = Script::sse().header("content-encoding", "gzip");

    let outcome = play(layer(), script.wait(20.0).data("x"), announcing(NODE, "5")).await;

    assert_whole(&outcome, secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_has_to_be_there_in_time() {
    let script = Script::before_head().wait(4.0).head("application/json");

    let outcome = play(
        layer(),
        script.clone().repeat(10, 0.5, "a"),
        announcing(NODE, "5"),
    )
    .await;
    assert_ended_by_the_caller(&outcome, secs(5));

    let outcome = play(layer(), script.wait(0.5).data("{}"), announcing(NODE, "5")).await;
    assert_whole(&outcome, Duration::from_millis(4500));
}

#[tokio::test(start_paused = true)]
async fn a_total_holds_to_the_end_of_a_stream() {
    let script = Script::sse().repeat(10, 1.0, chat("a"));

    let outcome = play(layer(), script, announcing(GRPC, "5S")).await;

    assert_ended_by_the_caller(&outcome, secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_always_ready_does_not_starve_a_total() {
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let service = layer().layer(upstream);
    let answer = service.oneshot(announcing(GRPC, "5S")).await.unwrap();
    let mut body = answer.into_body();
    body.token().await;
    tokio::time::advance(secs(5)).await;

    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::CallerDeadline));
    assert!(read.frames <= 15, "{} frames after it", read.frames);
}

#[tokio::test(start_paused = true)]
async fn of_several_the_earliest_wins() {
    let all = [
        [(NODE, "9"), (PYTHON, "7"), (GRPC, "8S")],
        [(NODE, "7"), (PYTHON, "9"), (GRPC, "8S")],
    ];
    for headers in all {
        let script = Script::before_head().never();

        let outcome = play(layer(), script, with(request(), &headers)).await;

        assert_ended_by_the_caller(&outcome, secs(7));
    }
    // To the head the first is due, afterwards the total.
    let script = Script::sse().repeat(20, 1.0, chat("a"));
    let headers = [(NODE, "5"), (PYTHON, "7"), (GRPC, "8S")];
    let outcome = play(layer(), script, with(request(), &headers)).await;
    assert_ended_by_the_caller(&outcome, secs(8));
}

#[tokio::test(start_paused = true)]
async fn the_head_in_the_very_instant_wins() {
    let script = Script::before_head().wait(5.0).head("text/event-stream");

    let outcome = play(layer(), script.data(DONE), announcing(NODE, "5")).await;

    assert_whole(&outcome, secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_error_in_the_very_instant_is_the_deadlines() {
    let script = Script::before_head().wait(5.0).fail("reset");

    let outcome = play(layer(), script, announcing(NODE, "5")).await;

    assert_ended_by_the_caller(&outcome, secs(5));
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn it_only_tightens() {
    let limits = HardCeilingLayer::new(secs(10))
        .timeout(Some(secs(8)))
        .caller_deadline(true);
    for (name, value) in [
        (NODE, "9"),
        (PYTHON, "9"),
        (GRPC, "9S"),
        (GRPC, "99999999H"),
    ] {
        for script in [Script::before_head().never(), Script::json().never()] {
            let outcome = play(limits, script, announcing(name, value)).await;

            assert_ended_by_the_caller(&outcome, secs(8));
        }
    }
    let outcome = play(limits, Script::before_head().never(), announcing(NODE, "3")).await;
    assert_ended_by_the_caller(&outcome, secs(3));
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn the_programs_limit_for_a_request_is_tightened_and_not_raised() {
    let ours = |timeout| tower_agent::Limits {
        timeout: Some(secs(timeout)),
        ..Default::default()
    };
    for (limit, announced, expected) in [(6, "9S", 6), (9, "6S", 6)] {
        let mut request = announcing(GRPC, announced);
        request.extensions_mut().insert(ours(limit));
        // The layer's own is replaced by the program's.
        let layer = layer().timeout(Some(secs(2)));

        let outcome = play(layer, Script::sse().never(), request).await;

        assert_ended_by_the_caller(&outcome, secs(expected));
    }
}
