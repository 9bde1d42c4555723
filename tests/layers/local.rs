//! Slow models that live, and dead ones, under the profile of local models.
//!
//! covers: A7

use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{Limits, Run, Scope, StepTimeoutLayer, TerminalReason, TerminalResponseLayer};

use crate::support::{
    DONE, Outcome, PING, PRELUDE, Place, ReadExt, STOP, Script, Stack, Upstream, call_of, chat,
    content_block, messages, reason_of, request, request_of, run_on, secs,
};

const PING_EVENT: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
const MESSAGE: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";

fn local() -> StepTimeoutLayer {
    StepTimeoutLayer::local()
}

/// Plays a script under a layer, within an hour.
async fn play(
    layer: StepTimeoutLayer,
    script: Script,
    request: http::Request<()>,
) -> (Outcome, Upstream) {
    let upstream = Upstream::script(script);
    let stack = Stack::default().layer(Place::Step, layer).build(&upstream);
    let outcome = timeout(secs(3600), stack.ask(request)).await.unwrap();
    (outcome, upstream)
}

/// Answers of slow models that are well, each with the seconds it takes.
fn slow() -> Vec<(&'static str, Script, u64)> {
    let unary = |seconds: f64| Script::before_head().wait(seconds);
    let stream = |gap| Script::sse().data(PRELUDE).repeat(3, gap, chat("a"));
    let pinged = |script: Script| {
        let minute = |script: Script| script.repeat(5, 10.0, PING).wait(10.0).data(chat("a"));
        minute(minute(minute(script))).wait(1.0).data(DONE)
    };
    let trickle = Script::json().repeat(32, 1.0, " ").data("{}");
    vec![
        ("28 s", unary(28.0).head("application/json").data("{}"), 28),
        ("32 s", unary(32.0).head("application/json").data("{}"), 32),
        ("60 s", unary(60.0).head("application/json").data("{}"), 60),
        (
            "a head, then 60 s",
            Script::json().wait(60.0).data("{}"),
            60,
        ),
        ("whitespace", trickle.clone(), 32),
        (
            "whitespace, then 60 s",
            Script::json().repeat(20, 1.0, " ").wait(60.0).data("{}"),
            80,
        ),
        ("28 s to a token", stream(28.0).data(DONE), 84),
        ("32 s to a token", stream(32.0).data(DONE), 96),
        ("60 s to a token", stream(60.0).data(DONE), 180),
        (
            "60 s to the head, 60 s to a token",
            Script::before_head()
                .wait(60.0)
                .head("text/event-stream")
                .repeat(3, 60.0, chat("a"))
                .data(DONE),
            240,
        ),
        (
            "60 s to a token, with comments",
            pinged(Script::sse().data(PRELUDE)),
            181,
        ),
        (
            "pings from the first minute's end on",
            pinged(Script::sse().data(PRELUDE).wait(60.0)),
            241,
        ),
    ]
}

/// covers: A10
#[tokio::test(start_paused = true)]
async fn a_slow_model_completes_unary_or_streaming_with_pings_or_without() {
    for (name, script, seconds) in slow() {
        let (outcome, upstream) = play(local(), script, request()).await;

        assert!(outcome.error.is_none(), "{name}: {:?}", outcome.error);
        assert_eq!(outcome.at, secs(seconds), "{name}");
        let reason = upstream.run().terminal_reason();
        assert_eq!(reason, Some(TerminalReason::Completed), "{name}");
    }
}

/// covers: A10
#[tokio::test(start_paused = true)]
async fn a_clock_of_thirty_seconds_would_have_killed_them() {
    let clock = StepTimeoutLayer::new(secs(30));
    for (name, script, _) in slow() {
        let quick = name.starts_with("28 s");
        let (outcome, _) = play(clock, script, request()).await;

        let killed = Some(TerminalReason::StepTimeout);
        let reason = outcome.error.as_ref().and_then(reason_of);
        assert_eq!(reason == killed, !quick, "{name}: {outcome:?}");
    }
}

/// covers: A10
#[tokio::test(start_paused = true)]
async fn the_same_model_dead_is_found_twice_the_interval_after_its_last_heartbeat() {
    let living = || Script::sse().data(PRELUDE).repeat(5, 10.0, PING);
    let cases = [
        ("in its first minute", living().never(), 50),
        (
            "after a token",
            living().wait(10.0).data(chat("a")).never(),
            60,
        ),
        (
            "after a later comment",
            living()
                .wait(10.0)
                .data(chat("a"))
                .wait(4.0)
                .data(PING)
                .never(),
            64,
        ),
        ("after one comment", Script::sse().data(PING).never(), 0),
        (
            "after a comment that came with a token",
            Script::sse()
                .wait(7.0)
                .data(PING.to_owned() + &chat("a"))
                .never(),
            7,
        ),
        (
            "after a comment in pieces",
            Script::sse().data(": pi").wait(30.0).data("ng\n\n").never(),
            30,
        ),
        (
            "after a ping that is an event",
            Script::sse()
                .data(PRELUDE)
                .wait(5.0)
                .data(PING_EVENT)
                .never(),
            5,
        ),
    ];
    for (name, script, last) in cases {
        let (outcome, upstream) = play(local(), script, request()).await;

        let end = outcome.terminated();
        assert_eq!(end.reason, TerminalReason::StepTimeout, "{name}");
        assert_eq!(outcome.at, secs(last + 20), "{name}");
        assert_eq!(upstream.dropped().reason, Some(TerminalReason::StepTimeout));
        let message = end.message();
        assert!(
            message.contains("its heartbeats stopped, for 20s nothing came (step_timeout)"),
            "{message}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_restart_the_clock_that_a_heartbeat_started() {
    let half = "data: {\"choices\":[{\"ind";
    let rest = "ex\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let script = Script::sse().data(PING).wait(19.0).data(half);
    let script = script.wait(19.0).data(rest).wait(19.0).data("\n").never();

    let (outcome, _) = play(local(), script, request()).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, secs(57 + 20));
}

/// covers: A10
#[tokio::test(start_paused = true)]
async fn the_ping_with_which_an_anthropic_stream_begins_promises_nothing() {
    let begun = || Script::sse().data(MESSAGE).data(PING_EVENT);
    let whole = begun().repeat(2, 60.0, content_block("a")).data(STOP);
    let pinging = begun().wait(10.0).data(PING_EVENT).never();
    let later = begun().data(content_block("a")).data(PING_EVENT).never();

    let (outcome, _) = play(local(), whole, messages()).await;
    outcome.whole();
    let (outcome, _) = play(local(), pinging, messages()).await;
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, secs(30), "a second one does");
    let (outcome, _) = play(local(), later, messages()).await;
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, secs(20), "and one after the first content");
}

#[tokio::test(start_paused = true)]
async fn the_interval_is_a_setting() {
    let script = || Script::sse().data(PING).wait(50.0).data(PING).never();
    let layer = local().heartbeat(secs(30));

    let (outcome, _) = play(layer, script(), request()).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, secs(50 + 60));
}

#[test]
#[should_panic(expected = "a heartbeat must take longer than zero")]
fn an_interval_of_zero_panics() {
    let _ = local().heartbeat(secs(0));
}

#[tokio::test(start_paused = true)]
async fn neither_a_first_window_nor_what_resets_one_makes_a_local_layer_have_one() {
    let layer = local().first(secs(30)).heartbeat(secs(10));
    let script = Script::before_head().wait(60.0).head("application/json");

    let (outcome, _) = play(layer, script.data("{}"), request()).await;

    outcome.whole();
    assert_eq!(outcome.at, secs(60));
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn the_programs_window_for_a_request_replaces_the_profile() {
    let mut request = request();
    request.extensions_mut().insert(Limits {
        step: Some(secs(30)),
        ..Limits::default()
    });

    let (outcome, _) = play(local(), Script::before_head().never(), request).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, secs(30));
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn a_pause_stops_the_clock_of_a_local_model_and_a_heartbeat_of_the_program_restarts_it() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(PING).never());
    let answer = local().layer(upstream).oneshot(request_of(&run)).await;
    let mut body = answer.unwrap().into_body();
    let start = Instant::now();
    let program = {
        let run = run.clone();
        tokio::spawn(async move {
            sleep(secs(10)).await;
            let pause = run.pause();
            sleep(secs(300)).await;
            drop(pause);
            sleep(secs(5)).await;
            run.heartbeat();
        })
    };

    let _ping = body.next().await;
    let error = body.next().await.unwrap().unwrap_err();

    program.await.unwrap();
    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(10 + 300 + 5 + 20));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_away_is_not_taken_for_a_dead_model() {
    let upstream = Upstream::script(Script::sse().data(PING).data(DONE));
    let answer = local().layer(upstream).oneshot(request()).await;
    let mut body = answer.unwrap().into_body();
    let _ping = body.next().await;
    sleep(secs(600)).await;

    assert!(body.next().await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn scope_run_finds_the_run_dead_when_none_of_its_calls_shows_life() {
    let run = Run::open();
    let layer = local().scope(Scope::Run);
    let start = Instant::now();
    let silent = Script::sse().data(PING).never();
    let living = Script::sse().repeat(4, 15.0, PING).never();
    let ((first, _), (second, _)) = tokio::join!(
        play(layer, silent, call_of(&run).0),
        play(layer, living, call_of(&run).0),
    );

    assert_eq!(first.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(second.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(60 + 20));
}

/// covers: T22
#[tokio::test(start_paused = true)]
async fn heartbeats_are_seen_past_a_layer_that_inserts_comments() {
    let script = Script::sse().data(PRELUDE).data(PING).never();
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new().keep_alive(Some(secs(6))))
        .layer(StepTimeoutLayer::local())
        .service(Upstream::script(script));
    let start = Instant::now();

    let answer = service.oneshot(request()).await.unwrap();
    let run = run_on(&answer);
    // A stream that is kept alive never ends of itself.
    let read = timeout(secs(60), answer.into_body().read()).await.unwrap();

    read.end.unwrap();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(20));
}
