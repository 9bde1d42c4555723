//! How a whole answer ends whose upstream leaves the body open.

use http::Request;
use http_body_util::Full;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_agent::{AgentStack, RetryBudget, Run, TerminalReason};

use crate::support::{
    DONE, FINISH, Outcome, PING, PRELUDE, ReadExt, STOP, Script, Stack, USAGE, Upstream, attach,
    chat, content_block, later, prompt, secs,
};

/// The step window of the stacks here, in seconds.
const WINDOW: u64 = 30;

/// A chat request for a stream with its usage.
fn prompt_with_usage() -> Request<Full<bytes::Bytes>> {
    let body = r#"{"model":"a","stream":true,"stream_options":{"include_usage":true}}"#;
    prompt("a").map(|_| Full::from(body))
}

fn messages(model: &str) -> Request<Full<bytes::Bytes>> {
    let body = format!(r#"{{"model":"{model}","stream":true,"messages":[]}}"#);
    Request::post("/v1/messages")
        .body(Full::from(body))
        .unwrap()
}

const STOPPED: &str = "event: message_delta\ndata: {\"type\":\"message_delta\",\
    \"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n";

/// The stacks that make attempts: with a retry, and with a fallback.
fn stacks() -> [(&'static str, Stack); 2] {
    let stack = || Stack::default().terminal().step(WINDOW);
    [
        ("retry", stack().retry(1)),
        ("fallback", stack().candidates(["a"])),
    ]
}

/// Asks each stack, in which the upstream plays `script`.
async fn ask(script: Script, request: fn() -> Request<Full<bytes::Bytes>>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (name, stack) in stacks() {
        let upstream = Upstream::script(script.clone());
        let outcome = stack.build(&upstream).ask(request()).await;
        assert!(outcome.error.is_none(), "{name}: {:?}", outcome.error);
        assert!(!outcome.text.contains("error"), "{name}: {}", outcome.text);
        assert_eq!(outcome.reason, Some(TerminalReason::Completed), "{name}");
        assert_eq!(
            upstream.reasons(),
            [Some(TerminalReason::Completed)],
            "{name}"
        );
        assert!(upstream.is_dropped(), "{name}: the upstream is released");
        assert_eq!(upstream.calls(), 1, "{name}");
        outcomes.push(outcome);
    }
    outcomes
}

/// The text that the caller got and when it ended, the same in each stack.
async fn ended(script: Script, request: fn() -> Request<Full<bytes::Bytes>>) -> (String, f64) {
    let outcomes = ask(script, request).await;
    let ends: Vec<_> = outcomes
        .into_iter()
        .map(|it| (it.text, it.at.as_secs_f64()))
        .collect();
    assert_eq!(ends[0], ends[1]);
    ends[0].clone()
}

fn said() -> Script {
    Script::sse().data(PRELUDE).data(chat("a"))
}

fn text_of(events: &[&str]) -> String {
    [PRELUDE, &chat("a"), &events.concat()].concat()
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_2_s_behind_its_terminator() {
    let script = said().wait(7.0).data(FINISH).data(DONE).never();
    let expected = (text_of(&[FINISH, DONE]), 9.0);
    assert_eq!(ended(script.clone(), || prompt("a")).await, expected);
    assert_eq!(ended(script, prompt_with_usage).await, expected);

    let script = Script::sse().data(content_block("a")).data(STOP).never();
    let (text, at) = ended(script, || messages("a")).await;
    assert_eq!((text, at), (content_block("a") + STOP, 2.0));
}

#[tokio::test(start_paused = true)]
async fn a_finished_answer_with_its_usage_ends_after_2_s_with_a_terminator() {
    for request in [prompt_with_usage, || prompt("a")] {
        let script = said().data(FINISH).wait(1.0).data(USAGE).never();
        assert_eq!(
            ended(script, request).await,
            (text_of(&[FINISH, USAGE, DONE]), 3.0)
        );
    }
    let script = Script::sse().data(content_block("a")).data(STOPPED).never();
    let expected = content_block("a") + STOPPED + STOP;
    assert_eq!(ended(script, || messages("a")).await, (expected, 2.0));
}

#[tokio::test(start_paused = true)]
async fn a_finished_answer_without_usage_ends_after_2_s_if_none_was_asked_for() {
    let script = said().data(FINISH).never();
    assert_eq!(
        ended(script, || prompt("a")).await,
        (text_of(&[FINISH, DONE]), 2.0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_finished_answer_waits_the_window_for_the_usage_that_was_asked_for() {
    let script = said().wait(5.0).data(FINISH).never();
    let (text, at) = ended(script, prompt_with_usage).await;
    assert_eq!(text, text_of(&[FINISH, DONE]));
    // The window runs from the latest progress, the token.
    assert_eq!(at, WINDOW as f64);
    // Usage that comes within the window ends the wait.
    let script = said().data(FINISH).wait(20.0).data(USAGE).never();
    let expected = (text_of(&[FINISH, USAGE, DONE]), 22.0);
    assert_eq!(ended(script, prompt_with_usage).await, expected);
}

/// Some upstreams state a usage in every event, also before the other choices.
#[tokio::test(start_paused = true)]
async fn a_finished_choice_with_usage_waits_the_window_for_the_others() {
    let prompt_for = |n: u32| {
        let body = format!(r#"{{"model":"a","stream":true,"n":{n}}}"#);
        prompt("a").map(|_| Full::from(body))
    };
    let of_two = |text: &str| text.replace("\"index\":0", "\"index\":1");
    let second = of_two(&chat("b")) + &of_two(FINISH);
    for (count, expected, at) in [
        (1, text_of(&[FINISH, USAGE, DONE]), 2.0),
        (2, text_of(&[FINISH, USAGE, &second, DONE]), 9.0),
    ] {
        let script = said()
            .data(FINISH)
            .data(USAGE)
            .wait(9.0)
            .data(&second)
            .data(DONE);
        for (name, stack) in stacks() {
            let upstream = Upstream::script(script.clone());
            let outcome = stack.build(&upstream).ask(prompt_for(count)).await;
            assert_eq!(outcome.text, expected, "{name}: {count}");
            assert_eq!(outcome.at.as_secs_f64(), at, "{name}: {count}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_behind_the_terminator_do_not_begin_the_wait_anew() {
    let late = chat("late");
    let script = said().data(FINISH).data(DONE).repeat(40, 0.9, &late);
    let expected = text_of(&[FINISH, DONE]);
    assert_eq!(ended(script, || prompt("a")).await, (expected, 2.0));
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_comes_meanwhile_begins_the_wait_anew() {
    let late = chat("late");
    let script = said().data(FINISH).repeat(5, 1.5, &late).never();
    let expected = text_of(&[FINISH, &late.repeat(5), DONE]);
    assert_eq!(
        ended(script, || prompt("a")).await,
        (expected, 5.0 * 1.5 + 2.0)
    );
}

#[tokio::test(start_paused = true)]
async fn comments_and_pings_do_not_begin_the_wait_anew() {
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    for life in [PING, ": c\n", "data: {}\n\n", ping, "data:\n\n"] {
        let script = said().data(FINISH).repeat(40, 0.9, life);
        let (_, at) = ended(script, || prompt("a")).await;
        assert_eq!(at, 2.0, "{life:?}");
        let script = said().data(FINISH).data(DONE).repeat(40, 0.9, life);
        let (_, at) = ended(script, || prompt("a")).await;
        assert_eq!(at, 2.0, "{life:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_ends_with_the_body() {
    let script = said().data(FINISH).wait(1.0);
    for (_, stack) in stacks() {
        let outcome = stack
            .build(&Upstream::script(script.clone()))
            .ask(prompt("a"))
            .await;
        assert_eq!(outcome.at, secs(1));
        assert_eq!(outcome.whole(), text_of(&[FINISH, DONE]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_the_terminator_is_one_that_left() {
    for (name, stack) in stacks() {
        let upstream = Upstream::script(said().data(FINISH).never());
        let (request, call) = attach(&Run::open(), prompt("a"));
        let service = stack.disconnect().build(&upstream);
        let mut body = service.oneshot(request).await.unwrap().into_body();
        for _ in 0..3 {
            body.token().await;
        }
        drop(body);
        assert_eq!(
            call.terminal_reason(),
            Some(TerminalReason::ClientDisconnect),
            "{name}"
        );
        assert_eq!(
            upstream.dropped().reason,
            Some(TerminalReason::ClientDisconnect),
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_with_the_terminator_has_the_answer() {
    for (name, stack) in stacks() {
        let upstream = Upstream::script(said().data(FINISH).data(DONE).never());
        let (request, call) = attach(&Run::open(), prompt("a"));
        let service = stack.disconnect().build(&upstream);
        let mut body = service.oneshot(request).await.unwrap().into_body();
        for _ in 0..4 {
            body.token().await;
        }
        drop(body);
        assert_eq!(
            call.terminal_reason(),
            Some(TerminalReason::Completed),
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_in_the_wait_of_a_whole_answer_is_no_error_for_the_caller() {
    for events in [&[FINISH][..], &[FINISH, DONE], &[FINISH, USAGE]] {
        for (name, stack) in stacks() {
            let upstream = Upstream::script(said().data(events.concat()).never());
            let run = Run::open();
            let (request, call) = attach(&run, prompt("a"));
            let start = Instant::now();
            later(1, move || run.end(TerminalReason::Aborted));
            let outcome = stack.build(&upstream).ask(request).await;

            assert_eq!(start.elapsed(), secs(1), "{name}: {events:?}");
            let mut expected = text_of(events);
            if !expected.ends_with(DONE) {
                expected.push_str(DONE);
            }
            assert_eq!(outcome.whole(), expected, "{name}");
            assert_eq!(
                call.terminal_reason(),
                Some(TerminalReason::Aborted),
                "{name}"
            );
            assert!(upstream.is_dropped(), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_error_behind_the_finish_is_a_clean_end() {
    for (name, stack) in stacks() {
        for (script, request, expected) in [
            (
                said().data(FINISH).fail("reset"),
                prompt("a"),
                text_of(&[FINISH, DONE]),
            ),
            (
                said().data(FINISH).data(DONE).fail("reset"),
                prompt("a"),
                text_of(&[FINISH, DONE]),
            ),
            (
                said()
                    .data(FINISH)
                    .data("data: {\"choices\":[],")
                    .fail("reset"),
                prompt_with_usage(),
                text_of(&[FINISH, DONE]),
            ),
            (
                Script::sse()
                    .data(content_block("a"))
                    .data(STOPPED)
                    .fail("reset"),
                messages("a"),
                content_block("a") + STOPPED + STOP,
            ),
        ] {
            let upstream = Upstream::script(script);
            let outcome = stack.build(&upstream).ask(request).await;
            assert_eq!(outcome.whole(), expected, "{name}");
            assert_eq!(outcome.reason, Some(TerminalReason::Completed), "{name}");
            assert_eq!(
                upstream.reasons(),
                [Some(TerminalReason::Completed)],
                "{name}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_without_its_stop_reason_is_cut() {
    let null = STOPPED.replace("\"end_turn\"", "null");
    for (name, stack) in stacks() {
        for (script, seconds) in [
            (Script::sse().data(content_block("a")).data(&null), 0),
            (
                Script::sse()
                    .data(content_block("a"))
                    .data(&null)
                    .fail("reset"),
                0,
            ),
            (
                Script::sse().data(content_block("a")).data(&null).never(),
                WINDOW,
            ),
        ] {
            let upstream = Upstream::script(script);
            let outcome = stack.build(&upstream).ask(messages("a")).await;
            assert_eq!(outcome.at, secs(seconds), "{name}");
            assert!(
                outcome.text.contains("event: error\n"),
                "{name}: {}",
                outcome.text
            );
            assert!(!outcome.text.contains("message_stop"), "{name}");
            assert_ne!(outcome.reason, Some(TerminalReason::Completed), "{name}");
        }
    }
}

/// A fallback without candidates reads no request, so what the retry further in has read holds.
#[tokio::test(start_paused = true)]
async fn what_a_layer_further_in_has_read_of_the_request_holds() {
    let upstream = Upstream::script(said().data(FINISH).never());
    let stack = Stack::default()
        .terminal()
        .step(WINDOW)
        .candidates([""; 0])
        .retry(1);
    let outcome = stack.build(&upstream).ask(prompt("a")).await;
    assert_eq!(outcome.text, text_of(&[FINISH, DONE]));
    assert_eq!(outcome.at, secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_stack_without_candidates_reads_the_request() {
    let events = [PRELUDE, &chat("a"), FINISH].concat();
    let upstream = Upstream::script(Script::of("text/plain").data(events).never());
    let stack = AgentStack::client()
        .step(secs(WINDOW))
        .retry(RetryBudget::new())
        .service(upstream.clone());
    let start = Instant::now();
    let answer = stack.oneshot(prompt("a")).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let text = answer.into_body().read().await.whole();
    assert_eq!(text, text_of(&[FINISH]));
    assert_eq!(start.elapsed(), secs(2));
}
