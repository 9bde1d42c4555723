//! Streams of events: held to the first content.

use http::{HeaderValue, Response, header};
use http_body::Body;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, RetryBudgetLayer, Run, StepTimeoutLayer, TerminalReason,
    llm::{dialect::Truncated, failure::FailureClass},
};

use crate::commit::hold_stacks;
use crate::support::{
    DONE, FINISH, PING, PRELUDE, ReadExt, STOP, Script, USAGE, Upstream, attach, chat,
    content_block, healthy, healthy_text, no_delay, prompt, secs,
};

/// A stream's own error event.
const BUSY: &str = "data: {\"error\":{\"message\":\"busy\",\"type\":\"overloaded_error\"}}\n\n";

/// covers: T49
#[tokio::test(start_paused = true)]
async fn nothing_of_a_failed_attempt_reaches_the_caller() {
    let prelude = PRELUDE.replace("assistant", "first");
    for failed in [
        Script::sse().data(&prelude).data(PING).fail("reset"),
        Script::sse().data(PING).data(&prelude).data(BUSY),
        Script::sse().data(&prelude).data(PING),
        Script::sse().data(&prelude).trailers(),
        Script::sse(),
        Script::sse().knows_its_end(),
        Script::sse().size(0).knows_its_end(),
        Script::sse().header("content-length", "0"),
        Script::sse().data(&prelude).knows_its_end(),
        Script::sse().data(&prelude).size(prelude.len() as u64),
        Script::sse().data(&BUSY[..20]).data(&BUSY[20..]),
    ] {
        for (upstream, service) in hold_stacks([failed.clone(), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(outcome.headers["x-attempt"], "2");
            assert_eq!(outcome.whole(), healthy_text());
            assert!(outcome.trailers.is_none());
            assert_eq!(upstream.calls(), 2, "{failed:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_the_answer_that_serves_are_those_of_the_upstream() {
    let events = [
        PRELUDE,
        PING,
        &chat("a"),
        PING,
        &chat("b"),
        FINISH,
        USAGE,
        DONE,
    ]
    .concat();
    let whole = Script::sse().data(&events).trailers();
    let by_byte = events.as_bytes().iter();
    let by_byte = by_byte.fold(Script::sse(), |script, byte| script.data([*byte]));
    let slow = Script::sse()
        .data(PRELUDE)
        .wait(5.0)
        .data(&events[PRELUDE.len()..]);
    for script in [whole, by_byte.trailers(), slow.trailers()] {
        for (upstream, service) in hold_stacks([script.clone()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(outcome.whole(), events);
            assert_eq!(outcome.trailers.unwrap()["x-sum"], "42");
            assert_eq!(upstream.calls(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_handed_on_with_its_first_content() {
    let script = Script::before_head()
        .wait(1.0)
        .head("text/event-stream")
        .wait(1.0)
        .data(PRELUDE)
        .wait(1.0)
        .data(PING)
        .wait(1.0)
        .data(chat("a"))
        .wait(1.0)
        .data(DONE);
    for (_, service) in hold_stacks([script]) {
        let start = Instant::now();

        let mut body = service.oneshot(prompt("m")).await.unwrap().into_body();

        assert_eq!(start.elapsed(), secs(4));
        for expected in [PRELUDE, PING, &chat("a")] {
            assert_eq!(body.token().await, expected);
        }
        assert_eq!(start.elapsed(), secs(4), "what is held does not wait");
        assert_eq!(body.token().await, DONE);
        assert_eq!(start.elapsed(), secs(5));
    }
}

/// covers: F10
#[tokio::test(start_paused = true)]
async fn a_failure_right_behind_the_first_content_is_the_callers() {
    for script in [
        Script::sse().data(chat("a") + BUSY),
        Script::sse().data(chat("a")).data(BUSY),
    ] {
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(outcome.whole(), chat("a") + BUSY);
            assert_eq!(upstream.calls(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_without_content_is_an_answer_if_it_is_a_terminator() {
    for events in [
        [PRELUDE, FINISH, DONE].concat(),
        [PRELUDE, FINISH].concat(),
        [PRELUDE, PING, DONE].concat(),
    ] {
        for knows in [false, true] {
            let script = Script::sse().data(&events);
            let script = if knows {
                script.knows_its_end()
            } else {
                script
            };
            for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
                let run = Run::open();
                let (request, call) = attach(&run, prompt("m"));

                let outcome = service.ask(request).await;

                assert_eq!(outcome.whole(), events);
                assert_eq!(upstream.calls(), 1, "{events}");
                assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
                assert_eq!(run.in_flight(), 0);
            }
        }
    }
}

/// covers: H15
#[tokio::test(start_paused = true)]
async fn a_terminator_alone_is_no_answer_unless_nothing_follows() {
    for events in [DONE.to_owned(), [PING, DONE].concat()] {
        let script = Script::sse().data(&events);
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert!(outcome.whole().contains("content"), "{events}");
            assert_eq!(upstream.calls(), 2, "{events}");
        }
        let upstream = Upstream::script(script);
        let layer = ModelFallbackLayer::new([Candidate::new("a")]);
        let service = layer.layer(upstream.clone());
        let answer = service.oneshot(prompt("a")).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.into_body().read().await.whole(), events);
    }
}

/// The official SDKs read such a stream as one without an event, and some as a whole answer.
#[tokio::test(start_paused = true)]
async fn json_without_a_field_is_no_answer_of_a_stream() {
    let json = r#"{"choices":[{"message":{"content":"x"}}]}"#;
    for body in [
        json.to_owned(),
        format!("{json}\n\n"),
        [PING, json].concat(),
    ] {
        let script = Script::sse().data(&body);
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(outcome.whole(), healthy_text(), "{body}");
            assert_eq!(upstream.calls(), 2, "{body}");
        }
        for (_, service) in hold_stacks([script.clone(), script]) {
            let outcome = service.ask(prompt("m")).await;

            let error = outcome.error.unwrap();
            let error: &(dyn std::error::Error + 'static) = &*error;
            let mut chain = std::iter::successors(Some(error), |error| error.source());
            assert!(chain.any(|error| error.is::<Truncated>()), "{error}");
        }
    }
    // Before an answer it is not one.
    let script = Script::sse()
        .data(format!("{json}\n\n"))
        .data(healthy_text());
    for (upstream, service) in hold_stacks([script, healthy()]) {
        let outcome = service.ask(prompt("m")).await;

        assert!(outcome.whole().ends_with(&healthy_text()));
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminator_is_not_waited_behind() {
    let open = Script::sse().data(PRELUDE).data(DONE).never();
    for (_, service) in hold_stacks([open]) {
        let start = Instant::now();

        let answer = service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(start.elapsed(), secs(0));
        assert_eq!(answer.into_body().token().await, PRELUDE);
    }
}

#[tokio::test(start_paused = true)]
async fn an_anthropic_stream_is_held_to_its_first_content_too() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let busy = "event: error\ndata: {\"type\":\"error\",\
        \"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let text = [start, ping, &content_block("a"), STOP].concat();
    for failed in [
        Script::sse().data(start).data(ping).data(busy),
        Script::sse().data(start).data(ping),
        Script::sse().data(start).fail("reset"),
    ] {
        for (upstream, service) in hold_stacks([failed, Script::sse().data(&text)]) {
            let mut request = prompt("m");
            *request.uri_mut() = http::Uri::from_static("/v1/messages");

            let outcome = service.ask(request).await;

            assert_eq!(outcome.whole(), text);
            assert_eq!(upstream.calls(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_cut_after_the_commit_is_the_callers() {
    let cut = Script::sse().data(PRELUDE).data(chat("a"));
    for script in [cut.clone(), cut.knows_its_end()] {
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let run = Run::open();
            let (request, call) = attach(&run, prompt("m"));

            let outcome = service.ask(request).await;

            assert_eq!(outcome.text, [PRELUDE, &chat("a")].concat());
            assert!(
                outcome
                    .error
                    .unwrap()
                    .is::<tower_agent::llm::dialect::Truncated>()
            );
            assert_eq!(upstream.calls(), 1);
            let transport = TerminalReason::Failed(FailureClass::Transport);
            assert_eq!(call.terminal_reason(), Some(transport));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_stream_does_not_say_that_it_has_ended() {
    for (_, service) in hold_stacks([healthy().knows_its_end()]) {
        let mut body = service.oneshot(prompt("m")).await.unwrap().into_body();

        for expected in [PRELUDE, &chat("a"), DONE] {
            assert!(!body.is_end_stream());
            assert_eq!(body.token().await, expected);
        }
        assert!(body.is_end_stream());
        assert!(body.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_are_split_anywhere_are_held_as_well() {
    let events = [PRELUDE, &chat("\u{20ac}"), DONE].concat();
    let first = Script::sse().data(PRELUDE);
    for at in PRELUDE.len()..events.len() {
        let (head, tail) = events.as_bytes().split_at(at);
        let script = Script::sse().data(head).wait(1.0).data(tail);
        for (upstream, service) in hold_stacks([first.clone(), script.clone()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(outcome.whole(), events);
            assert_eq!(upstream.calls(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_last_attempt_is_held_and_judged_as_the_first_is() {
    let upstream = Upstream::script(Script::sse().data(PRELUDE).data(BUSY));
    let layer = RetryBudgetLayer::new(no_delay().max_attempts_per_candidate(1));

    let answer = layer.layer(upstream.clone()).oneshot(prompt("m"));
    let answer = answer.await.unwrap();

    let failure = answer
        .extensions()
        .get::<tower_agent::llm::failure::Failure>();
    assert_eq!(failure.unwrap().class, FailureClass::Overloaded);
    // Nothing was handed on: the caller gets the error as a plain answer, with its status.
    assert_eq!(answer.status().as_u16(), 529);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let text = answer.into_body().read().await.whole();
    let busy = BUSY.strip_prefix("data: ").unwrap().trim_end();
    assert_eq!(text, busy);
    assert_eq!(upstream.calls(), 1);
}

/// As a layer does that compresses what it is given.
fn compressed<B>(mut answer: Response<B>) -> Response<B> {
    let gzip = HeaderValue::from_static("gzip");
    answer.headers_mut().insert(header::CONTENT_ENCODING, gzip);
    answer
}

/// As a layer does that makes something else of a stream.
fn flattened<B>(mut answer: Response<B>) -> Response<B> {
    let text = HeaderValue::from_static("text/plain");
    answer.headers_mut().insert(header::CONTENT_TYPE, text);
    answer
}

fn slow() -> Script {
    let prelude = Script::sse().data(PRELUDE).wait(10.0);
    prelude.data(chat("a")).wait(10.0).data(DONE)
}

/// covers: T52
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_compressed_on_the_way_commits_at_its_first_byte() {
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .map_response(compressed)
        .layer(StepTimeoutLayer::new(secs(60)))
        .service(Upstream::script(slow()));
    let start = Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(0));
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
}

/// covers: T52
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_made_a_text_on_the_way_is_held_to_its_end() {
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .map_response(flattened)
        .layer(StepTimeoutLayer::new(secs(60)))
        .service(Upstream::script(slow()));
    let start = Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(20));
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
}
