//! Answers that are no stream: held to their end, and judged as a whole.

use http::{Method, Uri};
use http_body::Body;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    RetryBudgetLayer, Run, StepTimeoutLayer, TerminalReason,
    llm::failure::{Classifier, FailureClass, IncompleteJson},
};

use crate::commit::{hold_stacks, hold_stacks_for};
use crate::support::{
    DONE, ERROR, PRELUDE, ReadExt, Script, Stack, Upstream, attach, chat, failure, healthy,
    healthy_text, no_delay, prompt, prompt_as, prompt_json, run_on, secs,
};

const KIB: usize = 1024;
const ANSWER: &str = r#"{"choices":[{"message":{"content":"\"error\""}}]}"#;

#[tokio::test(start_paused = true)]
async fn an_answer_is_held_to_its_end() {
    let (head, tail) = ANSWER.split_at(9);
    for script in [
        Script::json().data(head).wait(3.0).data(tail),
        Script::json().data(head).wait(3.0).data(tail).trailers(),
        Script::json()
            .data(head)
            .wait(3.0)
            .data(tail)
            .knows_its_end(),
    ] {
        for (upstream, service) in hold_stacks([script.clone()]) {
            let start = Instant::now();

            let answer = service.oneshot(prompt_json("m")).await.unwrap();

            assert_eq!(start.elapsed(), secs(3));
            assert_eq!(answer.into_body().read().await.whole(), ANSWER);
            assert_eq!(upstream.calls(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_of_a_held_answer_are_handed_on() {
    for (_, service) in hold_stacks([Script::json().data("{}").trailers()]) {
        let outcome = service.ask(prompt_json("m")).await;

        assert_eq!(outcome.text, "{}");
        assert_eq!(outcome.trailers.unwrap()["x-sum"], "42");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_is_another_try() {
    let broken = Script::json().data(&ANSWER[..9]).wait(3.0).fail("reset");
    for (upstream, service) in hold_stacks([broken, Script::json().data(ANSWER)]) {
        let outcome = service.ask(prompt_json("m")).await;

        assert_eq!(outcome.whole(), ANSWER);
        assert_eq!(upstream.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_and_fifty_six_kib_of_an_answer_are_a_commit() {
    let kib = " ".repeat(KIB);
    for (frames, calls) in [(256, 2), (257, 1)] {
        let script = Script::json().repeat(frames, 0.0, &kib).fail("reset");
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let outcome = service.ask(prompt_json("m")).await;

            assert_eq!(upstream.calls(), calls);
            if calls == 1 {
                assert_eq!(outcome.text.len(), frames * KIB);
                assert_eq!(outcome.error.unwrap().to_string(), "reset");
            } else {
                assert_eq!(outcome.whole(), healthy_text());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_a_commit_of_an_answer_too() {
    let slow = Script::json().data("{").wait(30.0).fail("reset");
    for (upstream, service) in hold_stacks_for([slow, healthy()], Some(secs(5))) {
        let start = Instant::now();

        let answer = service.oneshot(prompt_json("m")).await.unwrap();

        assert_eq!(start.elapsed(), secs(5));
        let read = answer.into_body().read().await;
        assert_eq!(read.text, "{");
        assert_eq!(read.end.unwrap_err().to_string(), "reset");
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn size_and_end_are_those_of_the_answer_as_it_is_read() {
    let script = Script::json().data("{\"a\"").data(":1}").size(7);
    for (_, service) in hold_stacks([script.knows_its_end()]) {
        let answer = service.oneshot(prompt_json("m")).await.unwrap();
        let mut body = answer.into_body();

        assert_eq!(body.size_hint().exact(), Some(7));
        assert!(!body.is_end_stream());
        assert_eq!(body.token().await, "{\"a\":1}");
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(body.is_end_stream());
        assert!(body.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_is_only_partly_held_is_the_sum() {
    let gzip = Script::json().header("content-encoding", "gzip");
    for (_, service) in hold_stacks([gzip.data("1234").data("567").size(7)]) {
        let mut body = service.oneshot(prompt_json("m")).await.unwrap().into_body();

        assert_eq!(body.size_hint().exact(), Some(7));
        assert_eq!(body.token().await, "1234");
        assert_eq!(body.size_hint().exact(), Some(3));
        assert!(!body.is_end_stream());
    }
}

#[tokio::test(start_paused = true)]
async fn a_compressed_answer_is_committed_by_its_first_byte() {
    for script in [Script::json(), Script::sse()] {
        let gzip = script.header("content-encoding", "gzip");
        let broken = gzip.clone().wait(1.0).data([31, 139]).fail("reset");
        for (upstream, service) in hold_stacks([broken, healthy()]) {
            let start = Instant::now();

            let answer = service.oneshot(prompt("m")).await.unwrap();

            assert_eq!(start.elapsed(), secs(1));
            let mut body = answer.into_body();
            let first = http_body_util::BodyExt::frame(&mut body).await;
            assert_eq!(first.unwrap().unwrap().into_data().unwrap(), [31, 139][..]);
            let error = body.next().await.unwrap().unwrap_err();
            assert_eq!(error.to_string(), "reset");
            assert_eq!(upstream.calls(), 1);
        }
        for (upstream, service) in hold_stacks([gzip.fail("reset"), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(outcome.whole(), healthy_text());
            assert_eq!(upstream.calls(), 2);
        }
    }
}

/// covers: T50
#[tokio::test(start_paused = true)]
async fn an_error_under_a_good_status_is_a_failure() {
    let page = Script::of("text/html").data("<html><p>busy</html>");
    let message = r#"{"type":"error","error":{"type":"overloaded_error","message":"no"}}"#;
    for script in [
        Script::answer(200, ERROR),
        page,
        Script::answer(200, message),
    ] {
        for (upstream, service) in hold_stacks([script.clone(), Script::json().data(ANSWER)]) {
            let outcome = service.ask(prompt_json("m")).await;

            assert_eq!(outcome.whole(), ANSWER);
            assert_eq!(upstream.calls(), 2, "{script:?}");
        }
    }
}

/// covers: T50
#[tokio::test(start_paused = true)]
async fn an_error_under_a_good_status_that_is_the_last_is_handed_on_and_a_failure() {
    for (upstream, service) in hold_stacks([Script::answer(200, ERROR)]) {
        let run = Run::open();
        let (request, call) = attach(&run, prompt_json("m"));

        let outcome = service.ask(request).await;

        assert_eq!(outcome.status, 502);
        assert_eq!(outcome.whole(), ERROR);
        assert_eq!(upstream.calls(), 2);
        let failed = TerminalReason::Failed(FailureClass::Server);
        assert_eq!(call.terminal_reason(), Some(failed));
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: T50
#[tokio::test(start_paused = true)]
async fn an_error_under_a_good_status_is_counted_on_the_run() {
    let upstream = Upstream::script(Script::answer(200, ERROR));
    let stack = Stack::default().budget(no_delay()).build(&upstream);
    let run = Run::open();

    for _ in 0..4 {
        assert_eq!(run.terminal_reason(), None);
        let request = run.attach(prompt_json("m"));
        stack.ask(request).await.whole();
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
    assert_eq!(upstream.calls(), 8);
}

#[tokio::test(start_paused = true)]
async fn answers_without_a_body_and_redirects_are_handed_on_at_once() {
    for status in [204, 301, 304, 307] {
        for script in [Script::json().status(status), Script::sse().status(status)] {
            for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
                let run = Run::open();
                let (request, call) = attach(&run, prompt_json("m"));

                let outcome = service.ask(request).await;

                assert_eq!(outcome.status, status);
                assert_eq!(outcome.whole(), "");
                assert_eq!(upstream.calls(), 1);
                assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
                assert_eq!(run.in_flight(), 0);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_head_request_has_no_body_to_wait_for() {
    for script in [Script::sse(), Script::json()] {
        for (upstream, service) in hold_stacks([script.clone(), failure(500)]) {
            let mut request = prompt_json("m");
            *request.method_mut() = Method::HEAD;
            *request.uri_mut() = Uri::from_static("/v1/models");
            let run = Run::open();
            let (request, call) = attach(&run, request);

            let answer = service.oneshot(request).await.unwrap();

            assert_eq!(answer.status(), 200);
            drop(answer);
            assert_eq!(upstream.calls(), 1, "{script:?}");
            assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_stream_may_be_asked_for_as_a_stream_and_the_reverse() {
    let stream = [PRELUDE, &chat("a"), DONE].concat();
    for (script, asked, text) in [
        (Script::json().data(ANSWER), true, ANSWER),
        (healthy(), false, &*stream),
    ] {
        for (upstream, service) in hold_stacks([script.clone()]) {
            let outcome = service.ask(prompt_as("m", asked)).await;

            assert_eq!(outcome.whole(), text);
            assert_eq!(upstream.calls(), 1);
        }
    }
}

/// An upstream that breaks may still end its answer cleanly.
/// covers: T69
#[tokio::test(start_paused = true)]
async fn json_that_is_broken_is_another_try_also_for_who_asked_for_a_stream() {
    let half = &ANSWER[..9];
    for asked in [false, true] {
        for (upstream, service) in
            hold_stacks([Script::json().data(half), Script::json().data(ANSWER)])
        {
            let outcome = service.ask(prompt_as("m", asked)).await;

            assert_eq!(outcome.whole(), ANSWER);
            assert_eq!(upstream.calls(), 2);
        }
        for (upstream, service) in hold_stacks([Script::json().data(half)]) {
            let run = Run::open();
            let (request, call) = attach(&run, prompt_as("m", asked));

            let error = service.oneshot(request).await.unwrap_err();

            assert!(error.source().unwrap().is::<IncompleteJson>(), "{error}");
            assert_eq!(upstream.calls(), 2, "it was tried again");
            assert_eq!(upstream.reasons(), [cut(), cut()]);
            assert_eq!(call.terminal_reason(), cut());
            assert_eq!(run.in_flight(), 0);
        }
    }
}

fn cut() -> Option<TerminalReason> {
    Some(TerminalReason::Failed(FailureClass::Transport))
}

/// What the program's rules make of it decides on the next try, and not whether half
/// an answer is handed on.
#[tokio::test(start_paused = true)]
async fn a_rule_judges_json_that_is_broken_and_hands_none_of_it_on() {
    let classifier = Classifier::new().rule(|_| Some(FailureClass::Quota));
    let upstream = Upstream::scripts([Script::json().data("{")]);
    let service = RetryBudgetLayer::new(no_delay()).classifier(classifier);
    let service = service.layer(upstream.clone());

    let error = service.oneshot(prompt_json("m")).await.unwrap_err();

    assert!(error.source().unwrap().is::<IncompleteJson>(), "{error}");
    assert_eq!(upstream.calls(), 1);
    let quota = TerminalReason::Failed(FailureClass::Quota);
    assert_eq!(upstream.reasons(), [Some(quota)]);
}

/// Its head is out by then: the end is an error, and comes before a server that
/// counts bytes has them all.
/// covers: T69
#[tokio::test(start_paused = true)]
async fn broken_json_that_is_too_long_to_be_held_does_not_end_cleanly() {
    let long = "x".repeat(KIB);
    let script = || Script::json().data("{\"a\":\"").repeat(300, 0.0, &long);
    let bytes = 6 + 300 * KIB as u64;
    let whole = || script().data("\"}");
    let half = || script().data("\",");
    for (script, is_whole) in [
        (half(), false),
        (half().trailers(), false),
        (half().size(bytes + 2), false),
        (half().size(bytes + 2).knows_its_end(), false),
        (whole(), true),
        (whole().trailers(), true),
        (whole().size(bytes + 2), true),
        (whole().size(bytes + 2).knows_its_end(), true),
    ] {
        for (upstream, service) in hold_stacks([script.clone()]) {
            let run = Run::open();
            let (request, call) = attach(&run, prompt_json("m"));

            let answer = service.oneshot(request).await.unwrap();

            assert_eq!(answer.status(), 200);
            let announced = answer.body().size_hint().exact();
            let read = answer.into_body().read().await;
            assert_eq!(upstream.calls(), 1);
            if is_whole {
                assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
                assert_eq!(read.whole().len() as u64, bytes + 2);
                continue;
            }
            let error = read.end.unwrap_err();
            assert!(error.is::<IncompleteJson>(), "{error}");
            assert!(announced.is_none_or(|all| (read.text.len() as u64) < all));
            assert!(read.trailers.is_none());
            assert_eq!(upstream.reasons(), [cut()]);
            assert_eq!(call.terminal_reason(), cut());
            assert_eq!(run.in_flight(), 0);
        }
    }
}

/// The same where time, and not its length, was the commit; also for what ends
/// within that was held.
/// covers: T69
#[tokio::test(start_paused = true)]
async fn broken_json_behind_a_hold_does_not_end_cleanly() {
    for script in [
        Script::json().data("[1,").wait(30.0).data("2"),
        Script::json().data("[1,").wait(30.0),
        Script::json().wait(30.0).data("{"),
    ] {
        for (_, service) in hold_stacks_for([script.clone()], Some(secs(5))) {
            let outcome = service.ask(prompt_json("m")).await;

            let error = outcome.error.unwrap();
            assert!(error.is::<IncompleteJson>(), "{error}");
        }
    }
    let script = Script::json().data("[1,").wait(30.0).data("2]\n");
    for (_, service) in hold_stacks_for([script], Some(secs(5))) {
        let outcome = service.ask(prompt_json("m")).await;
        assert_eq!(outcome.whole(), "[1,2]\n");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_held_are_progress_of_the_call() {
    let slow = Script::of("text/plain").repeat(6, 9.0, "1");
    for (upstream, service) in hold_stacks([slow]) {
        let service = ServiceBuilder::new()
            .layer(StepTimeoutLayer::new(secs(10)))
            .service(service);
        let start = Instant::now();

        let answer = service.oneshot(prompt_json("m")).await.unwrap();

        assert_eq!(start.elapsed(), secs(54));
        assert_eq!(answer.into_body().read().await.whole(), "111111");
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_behind_all_that_was_announced_is_missed_by_nobody() {
    let announced = Script::json().header("content-length", "2").size(2);
    let announced = announced.data("{}");
    for script in [announced.clone().data("").never(), announced.trailers()] {
        for (_, service) in hold_stacks_for([script], Some(secs(1))) {
            let answer = service.oneshot(prompt("m")).await.unwrap();
            let run = run_on(&answer);
            let mut body = answer.into_body();

            assert_eq!(body.token().await, "{}");
            drop(body);

            assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
        }
    }
}
