//! covers: B5

use http::Response;
use tokio::time::{Instant, advance, sleep, timeout};
use tower::{Layer, ServiceExt};
use tower_agent::{
    ProgressNotices, ResetOn, Run, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason,
    TerminalResponseLayer, layers::terminal_response::TerminalResponseBody,
};

use super::{KEEP_ALIVE, LAYER, Noticed, comment, cut, each, frames, timed};
use crate::support::{
    DONE, ERROR, FINISH, PING, PRELUDE, Place, ReadExt, STOP, Script, Stack, Upstream,
    UpstreamBody, UpstreamFuture, call_of, chat, content_block, messages, plain, prompt, request,
    request_of, run_on, secs,
};

async fn ask<F>(
    layer: TerminalResponseLayer,
    script: Script,
    run: &Run,
    wrap: impl FnOnce(TerminalResponseBody<UpstreamFuture, UpstreamBody>) -> F,
) -> Response<F> {
    let upstream = Upstream::script(script);
    let answer = layer.layer(upstream).oneshot(request_of(run));
    answer.await.unwrap().map(wrap)
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive_every_fifteen_seconds() {
    let script = Script::sse()
        .data(PRELUDE)
        .wait(50.0)
        .data(chat("a"))
        .data(DONE);
    let run = Run::open();

    let answer = ask(LAYER, script, &run, |body| body).await;
    let (read, end) = timed(answer.into_body()).await;

    end.unwrap();
    let ka = KEEP_ALIVE;
    let a = chat("a");
    let all = [
        (0, PRELUDE),
        (15, ka),
        (30, ka),
        (45, ka),
        (50, &a),
        (50, DONE),
    ];
    assert_eq!(read, frames(all));
}

/// The API has a ping of its own, which its SDKs skip.
#[tokio::test(start_paused = true)]
async fn a_silent_messages_stream_gets_the_pings_of_its_dialect() {
    const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
    let script = Script::sse()
        .wait(20.0)
        .data(content_block("a"))
        .wait(20.0)
        .data(STOP);
    // The dialect of the second stream is known by its first event.
    for (request, first) in [(messages(), PING), (plain(), KEEP_ALIVE)] {
        let upstream = Upstream::script(script.clone());
        let answer = LAYER.layer(upstream).oneshot(request).await.unwrap();
        let (read, end) = timed(answer.into_body()).await;

        end.unwrap();
        let a = content_block("a");
        let all = [(15, first), (20, &a), (35, PING), (40, STOP)];
        assert_eq!(read, frames(all));
    }
}

#[tokio::test(start_paused = true)]
async fn keep_alives_have_no_maximum_and_can_be_off() {
    let script = || Script::sse().wait(15_001.0).data(DONE);
    let run = Run::open();

    let on = ask(LAYER, script(), &run, |body| body).await;
    let off = LAYER.keep_alive(None);
    let off = ask(off, script(), &run, |body| body).await;

    let (read, _) = timed(on.into_body()).await;
    assert_eq!(read.len(), 1000 + 1);
    let (read, _) = timed(off.into_body()).await;
    assert_eq!(read, frames([(15_001, DONE)]));
}

/// A usage may follow after a while, and until then a proxy must see bytes.
#[tokio::test(start_paused = true)]
async fn comments_go_on_behind_a_finished_answer_but_not_behind_its_end() {
    let start = [chat("a"), FINISH.to_owned()].concat();
    let run = Run::open();
    let script = Script::sse().data(&start).wait(40.0).data(DONE).wait(40.0);

    let answer = ask(LAYER, script, &run, |body| body).await;

    let (read, end) = timed(answer.into_body()).await;
    end.unwrap();
    let expected = [(0, &*start), (15, KEEP_ALIVE), (30, KEEP_ALIVE), (40, DONE)];
    assert_eq!(read, frames(expected));
}

/// covers: B4
#[tokio::test(start_paused = true)]
async fn notices_are_comments_and_events_at_exact_instants() {
    let script = Script::sse().data(PRELUDE).wait(155.0).data(DONE);
    let layer = LAYER.comments(true).keep_alive(Some(secs(40)));
    let run = Run::open();
    let noticed = Noticed::of(&run);

    let answer = ask(layer, script, &run, |body| body).await;
    let (read, end) = timed(answer.into_body()).await;
    sleep(secs(600)).await;
    run.end(TerminalReason::Aborted);

    end.unwrap();
    let [first, second, third] = [30, 90, 150].map(comment);
    let expected = [
        (0, PRELUDE),
        (30, &first),
        (70, KEEP_ALIVE),
        (90, &second),
        (130, KEEP_ALIVE),
        (150, &third),
        (155, DONE),
    ];
    assert_eq!(read, frames(expected));
    assert_eq!(noticed.all().await, each("llm_call", &[30, 90, 150]));
}

/// covers: B4
#[tokio::test(start_paused = true)]
async fn a_notice_names_the_candidate_that_is_asked() {
    let run = Run::open();
    let noticed = Noticed::of(&run);
    let upstream = Upstream::script(Script::before_head().never());
    let stack = Stack::default()
        .layer(Place::Terminal, LAYER)
        .candidates(["large"])
        .ceiling(50);

    stack.build(&upstream).ask(run.attach(prompt("any"))).await;
    run.end(TerminalReason::Aborted);

    assert_eq!(noticed.all().await, each("llm_call (large)", &[30]));
}

/// covers: B4
#[tokio::test(start_paused = true)]
async fn a_call_without_a_head_is_told_of_and_then_its_body() {
    let script = Script::json().data("{}").delayed(100);
    let script = script.wait(100.0).data("{}");
    let run = Run::open();
    let noticed = Noticed::of(&run);

    // The content at 100 s speaks for itself until 130 s.
    let layer = LAYER.comments(true);
    let answer = ask(layer, script, &run, |body| body).await;
    assert_eq!(answer.into_body().read().await.whole(), "{}{}");
    run.end(TerminalReason::Aborted);

    assert_eq!(noticed.all().await, each("llm_call", &[30, 90, 150]));
}

/// covers: B4
#[tokio::test(start_paused = true)]
async fn content_puts_notices_off_and_a_ping_does_not() {
    let at_most_two = ProgressNotices::new().at_most(2);
    for (text, told) in [(chat("a"), [50, 110]), (PING.to_owned(), [30, 90])] {
        let script = Script::sse().wait(20.0).data(text).wait(100.0).data(DONE);
        let run = Run::open();
        let noticed = Noticed::of(&run);

        let layer = LAYER.notices(at_most_two);
        let answer = ask(layer, script, &run, |body| body).await;
        answer.into_body().read().await.whole();
        run.end(TerminalReason::Aborted);

        assert_eq!(noticed.all().await, each("llm_call", &told));
    }
}

#[tokio::test(start_paused = true)]
async fn no_comment_stands_within_an_event() {
    let script = Script::sse()
        .data("data: {\"half\"")
        .wait(100.0)
        .data(":1}\n")
        .wait(100.0)
        .data("\n")
        .wait(20.0)
        .data(DONE);
    let layer = LAYER.comments(true);
    let run = Run::open();
    let noticed = Noticed::of(&run);

    let answer = ask(layer, script, &run, |body| body).await;
    let (read, end) = timed(answer.into_body()).await;
    run.end(TerminalReason::Aborted);

    end.unwrap();
    let expected = [
        (200, "data: {\"half\":1}\n\n"),
        (215, KEEP_ALIVE),
        (220, DONE),
    ];
    assert_eq!(read, frames(expected));
    // Observers are told all the same; the event at 200 s was content.
    assert_eq!(noticed.all().await, each("llm_call", &[30, 90, 150]));
}

#[tokio::test(start_paused = true)]
async fn no_comment_stands_between_a_cr_and_its_lf() {
    let script = Script::sse()
        .data("data: 1\r\n\r")
        .wait(100.0)
        .data("\n")
        .wait(20.0)
        .data(DONE);
    let layer = LAYER.comments(true);

    let answer = ask(layer, script, &Run::open(), |body| body).await;
    let (read, end) = timed(answer.into_body()).await;

    end.unwrap();
    let expected = [
        (0, "data: 1\r\n\r"),
        (100, "\n"),
        (115, KEEP_ALIVE),
        (120, DONE),
    ];
    assert_eq!(read, frames(expected));
}

/// covers: B4
#[tokio::test(start_paused = true)]
async fn nothing_comes_behind_the_terminator_or_the_error() {
    let error = format!("data: {ERROR}\n\n");
    for last in [DONE, &error] {
        let script = Script::sse().data(chat("a")).data(last).never();
        let layer = LAYER.comments(true);
        let run = Run::open();
        let noticed = Noticed::of(&run);

        let mut body = ask(layer, script, &run, |body| body).await.into_body();
        body.token().await;
        assert_eq!(body.token().await, last);
        let more = timeout(secs(3600), body.next()).await;
        assert!(matches!(more, Err(_) | Ok(None)), "{more:?}");
        run.end(TerminalReason::Aborted);

        assert_eq!(noticed.all().await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_stream_of_events_gets_no_comment() {
    let silent = |script: Script| script.data("a").wait(40.0).data("b");
    let scripts = [
        Script::json(),
        Script::sse().header("content-encoding", "gzip"),
        Script::sse().status(500),
    ];
    for script in scripts {
        let script = silent(script).header("content-length", "2").size(2);
        let layer = LAYER.comments(true);
        let run = Run::open();

        let answer = ask(layer, script, &run, |body| body).await;

        assert_eq!(answer.headers()["content-length"], "2");
        assert_eq!(http_body::Body::size_hint(answer.body()).exact(), Some(2));
        let (read, _) = timed(answer.into_body()).await;
        assert_eq!(read, frames([(0, "a"), (40, "b")]));
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_the_length_of_a_stream_that_may_grow() {
    let length = DONE.len() as u64;
    let script = Script::sse().wait(20.0).data(DONE);
    let script = script.header("content-length", "14").size(length);
    let run = Run::open();

    let answer = ask(LAYER, script, &run, |body| body).await;

    assert!(!answer.headers().contains_key("content-length"));
    assert_eq!(http_body::Body::size_hint(answer.body()).exact(), None);
    let text = answer.into_body().read().await.whole();
    assert_eq!(text, [KEEP_ALIVE, DONE].concat());
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_was_away_finds_one_comment_and_no_pile() {
    let script = Script::sse().data(PRELUDE).never();
    let layer = LAYER.comments(true);
    let run = Run::open();
    let mut body = ask(layer, script, &run, |body| body).await.into_body();
    body.token().await;
    // The silence is looked at once, and then nobody does for an hour.
    assert!(crate::support::poll_body(&mut body).is_pending());
    advance(secs(3600)).await;

    let back = Instant::now();
    assert_eq!(body.token().await, comment(3600));
    assert_eq!(back.elapsed(), secs(0));
    assert_eq!(body.token().await, KEEP_ALIVE);
    assert_eq!(back.elapsed(), secs(15));
}

#[tokio::test(start_paused = true)]
async fn comments_are_no_life_of_the_upstream() {
    let window = StepTimeoutLayer::new(secs(40)).resets_on(ResetOn::AnyByte);
    let script = || Script::sse().data(PRELUDE).never();
    let all = [(0, PRELUDE), (15, KEEP_ALIVE), (30, KEEP_ALIVE)];

    let (request_, call) = call_of(&Run::open());
    let service = LAYER.layer(window.layer(Upstream::script(script())));
    let answer = service.oneshot(request_).await.unwrap();
    let (read, end) = timed(answer.into_body()).await;
    end.unwrap();
    cut(read, all, (40, "step_timeout"));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));

    // Nor with a layer between that sees what the window sees.
    let service = RunLayer::new(RunRegistry::new()).layer(window.layer(Upstream::script(script())));
    let answer = LAYER.layer(service).oneshot(request()).await.unwrap();
    let run = run_on(&answer);
    let (read, end) = timed(answer.into_body()).await;
    end.unwrap();
    cut(read, all, (40, "step_timeout"));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::StepTimeout));
}

/// covers: B4
#[tokio::test(start_paused = true)]
async fn a_notice_that_is_due_as_the_call_ends_is_not_given() {
    let layer = LAYER.comments(true).keep_alive(Some(secs(10)));
    let run = Run::open();
    let noticed = Noticed::of(&run);
    let upstream = Upstream::script(Script::sse().never());
    let window = StepTimeoutLayer::new(secs(30));
    let service = layer.layer(window.layer(upstream));

    let answer = service.oneshot(call_of(&run).0).await.unwrap();
    let (read, end) = timed(answer.into_body()).await;
    run.end(TerminalReason::Aborted);

    end.unwrap();
    cut(
        read,
        [(10, KEEP_ALIVE), (20, KEEP_ALIVE)],
        (30, "step_timeout"),
    );
    assert_eq!(noticed.all().await, []);
}

#[tokio::test(start_paused = true)]
async fn the_tools_of_the_run_are_told_of_as_the_layer_says_unless_the_program_did() {
    let layer = LAYER.notices(ProgressNotices::new().after(secs(5)).at_most(1));
    for (asked, told) in [(None, 5), (Some(secs(7)), 7)] {
        let run = Run::open();
        if let Some(after) = asked {
            run.notices(ProgressNotices::new().after(after).at_most(1));
        }
        let upstream = Upstream::script(Script::sse().data(DONE));
        let asked = request_of(&run);
        let answer = layer.layer(upstream).oneshot(asked).await.unwrap();
        answer.into_body().read().await.whole();
        let noticed = Noticed::of(&run);

        run.tool("search").watch(sleep(secs(60))).await.unwrap();
        run.end(TerminalReason::Aborted);

        let told = each("tool_execution (search)", &[told]);
        assert_eq!(noticed.all().await, told);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_opened_further_in_is_learned_from_the_answer() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(PRELUDE).wait(40.0).data(DONE));
    let layer = LAYER.layer(RunLayer::new(registry.clone()).layer(upstream));
    let mut events = registry.subscribe();

    let answer = layer.oneshot(request()).await.unwrap();
    assert!(answer.extensions().get::<Run>().is_some());
    answer.into_body().read().await.whole();

    let mut told = Vec::new();
    while let Ok(Some(event)) = timeout(secs(1), events.next()).await {
        told.push(serde_json::to_value(event).unwrap());
    }
    let working = told
        .iter()
        .find(|event| event["notice"]["kind"] == "working");
    let notice = &working.unwrap()["notice"];
    let step = serde_json::json!({"kind": "llm_call", "description": null});
    assert_eq!(notice["step"], step);
    assert_eq!(notice["running_for_ms"], 30_000);
    let message = "Still working: llm_call has been running for 30 s";
    assert_eq!(notice["message"], message);
}
