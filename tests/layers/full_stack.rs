//! The layers as a server stacks them, and what its caller gets.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::timeout;
use tower_agent::{RunRegistry, TerminalReason, llm::failure::FailureClass};

use crate::support::{
    DONE, ERROR, PING, PRELUDE, Script, Stack, StackService, Upstream, chat, failure, healthy,
    healthy_text, no_delay, prompt, prompt_json, secs, with_header,
};

/// The whole stack around an upstream, with candidates `a` and `b`.
fn server(upstream: &Upstream) -> StackService {
    stack(&RunRegistry::new()).build(upstream)
}

fn stack(registry: &RunRegistry) -> Stack {
    let outside = Stack::default().terminal().run(registry).pump();
    let call = outside.disconnect().ceiling(1800).step(300);
    let attempts = call.candidates(["a", "b"]).budget(no_delay());
    attempts.attempt_ceiling(600).attempt_step(120)
}

/// A call of the run with this id.
fn call_of_run(id: &str) -> Request<Full<Bytes>> {
    with_header(prompt("a"), "x-run-id", id)
}

/// covers: T49
#[tokio::test(start_paused = true)]
async fn a_fallback_that_serves_is_byte_for_byte_the_upstreams() {
    let prelude = PRELUDE.replace("assistant", "first");
    let failed = Script::sse().data(prelude).data(PING).fail("reset");
    let served = Script::sse()
        .data(PRELUDE)
        .data(PING)
        .data(chat("a"))
        .data(DONE);
    let upstream = Upstream::scripts([failed, failure(529), served]);
    let stack = server(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.headers["x-served-model"], "b");
    assert_eq!(outcome.headers["x-attempt"], "3");
    assert!(outcome.header("x-terminal-reason").is_none());
    let run = outcome.run();
    assert_eq!(outcome.headers["x-run-id"], run.id().to_string().as_str());
    assert_eq!(outcome.whole(), [PRELUDE, PING, &chat("a"), DONE].concat());
    assert_eq!(upstream.models(), ["a", "a", "b"]);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_the_commit_is_the_error_frame() {
    let broken = Script::sse().data(PRELUDE).data(chat("a")).fail("reset");
    let upstream = Upstream::scripts([failure(500), broken]);
    let stack = server(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.status, 200);
    let run = outcome.run();
    let text = outcome.whole();
    let sent = [PRELUDE, &chat("a")].concat();
    let frame = text.strip_prefix(&*sent).unwrap();
    assert!(frame.starts_with("event: error\ndata: "), "{frame}");
    assert!(frame.contains("\"type\":\"upstream_failed\""), "{frame}");
    assert_eq!(frame.matches("event:").count(), 1);
    assert_eq!(upstream.models(), ["a", "a"]);
    let transport = TerminalReason::Failed(FailureClass::Transport);
    assert_eq!(run.terminal_reason(), Some(transport));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn silence_after_the_commit_is_the_error_frame_after_the_attempts_window() {
    let upstream = Upstream::scripts([Script::sse().data(chat("a")).never(), healthy()]);
    let stack = server(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    let text = outcome.whole();
    let frame = text.strip_prefix(&*chat("a")).unwrap();
    assert!(frame.contains("\"type\":\"step_timeout\""), "{frame}");
    assert_eq!(outcome.at, secs(120));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_all_failed_the_caller_gets_the_last_answer_without_our_headers() {
    let last = failure(503)
        .header("retry-after", "61")
        .header("x-request-id", "r");
    let upstream = Upstream::scripts([failure(500), failure(500), last]);
    let stack = server(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.status, 503);
    assert_eq!(outcome.headers["x-request-id"], "r");
    assert_eq!(outcome.headers["retry-after"], "61");
    assert!(outcome.header("x-terminal-reason").is_none());
    assert!(outcome.header("x-should-retry").is_none());
    assert_eq!(outcome.whole(), ERROR);
    assert_eq!(upstream.models(), ["a", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn when_all_broke_the_caller_gets_a_502_without_our_headers() {
    let upstream = Upstream::script(Script::before_head().fail("reset"));
    let stack = server(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.status, 502);
    assert!(outcome.header("x-terminal-reason").is_none());
    assert!(outcome.header("x-should-retry").is_none());
    assert_eq!(upstream.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn when_all_were_silent_the_caller_gets_a_504_with_the_reason() {
    let upstream = Upstream::script(Script::before_head().never());
    let stack = server(&upstream);

    let outcome = stack.ask(prompt_json("a")).await;

    assert_eq!(outcome.status, 504);
    assert_eq!(outcome.headers["x-terminal-reason"], "step_timeout");
    assert_eq!(outcome.headers["x-should-retry"], "false");
    assert_eq!(upstream.models(), ["a", "b"]);
    assert_eq!(outcome.at, secs(240));
}

/// covers: D2
#[tokio::test(start_paused = true)]
async fn a_run_that_failed_the_same_way_four_times_is_answered_422_from_then_on() {
    let upstream = Upstream::script(failure(500));
    let stack = server(&upstream);

    for _ in 0..4 {
        let outcome = stack.ask(call_of_run("r-1")).await;
        assert_eq!(outcome.status, 500);
        assert!(outcome.header("x-terminal-reason").is_none());
        assert_eq!(outcome.whole(), ERROR);
    }
    for _ in 0..2 {
        let outcome = stack.ask(call_of_run("r-1")).await;
        assert_eq!(outcome.status, 422);
        assert_eq!(
            outcome.headers["x-terminal-reason"],
            "retry_budget_exceeded"
        );
        assert_eq!(outcome.headers["x-should-retry"], "false");
        assert_eq!(outcome.headers["x-run-id"], "r-1");
    }

    assert_eq!(upstream.calls(), 16);
    let outcome = stack.ask(call_of_run("r-2")).await;
    assert_eq!(outcome.status, 500, "another run is another budget");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_sent_is_a_400_and_one_that_is_too_large_a_413() {
    let upstream = Upstream::script(healthy());
    let stack = server(&upstream);

    let request = prompt("a").map(|_| Full::from("not json"));
    assert_eq!(stack.ask(request).await.status, 400);
    let request = prompt("a").map(|_| Full::from(vec![b' '; (32 << 20) + 1]));
    assert_eq!(stack.ask(request).await.status, 413);

    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_stops_attempts_and_candidates() {
    for (script, leaves) in [
        (Script::before_head().never(), 5),
        (Script::sse().data(PRELUDE).never(), 5),
        (failure(409).header("retry-after", "30"), 5),
        (Script::sse().data(chat("a")).never(), 5),
    ] {
        let upstream = Upstream::scripts([script, healthy()]);
        let stack = server(&upstream);

        let left = timeout(secs(leaves), stack.ask(call_of_run("r-1"))).await;
        // With a pump it takes one turn of the scheduler.
        tokio::time::sleep(secs(1)).await;

        assert!(left.is_err());
        assert_eq!(upstream.calls(), 1);
        let seen = upstream.requests();
        assert_eq!(seen[0].run().run().in_flight(), 0);
        assert!(seen[0].run().terminal_reason().is_some());
        tokio::time::sleep(secs(1_000)).await;
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_by_id_reaches_a_call_that_waits_for_its_repeat() {
    let in_conflict = failure(409).header("retry-after", "30");
    let upstream = Upstream::scripts([in_conflict, healthy()]);
    let registry = RunRegistry::new();
    let stack = stack(&registry).build(&upstream);

    let asked = stack.ask(call_of_run("r-1"));
    let aborted = async {
        tokio::time::sleep(secs(3)).await;
        let run = registry.list()[0].run.clone();
        registry.find(&run)[0].end(TerminalReason::Aborted)
    };
    let (outcome, aborted) = tokio::join!(asked, aborted);

    assert!(aborted);
    assert_eq!(outcome.status, 499);
    assert_eq!(outcome.headers["x-terminal-reason"], "aborted");
    assert_eq!(outcome.at, secs(3));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bad_request_is_the_callers_own_and_asked_once() {
    let upstream = Upstream::scripts([Script::error_code(400, "invalid_image"), healthy()]);
    let stack = server(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.status, 400);
    assert_eq!(upstream.calls(), 1);
    let healthy = stack.ask(prompt("a")).await;
    assert_eq!(healthy.whole(), healthy_text());
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_announced_as_empty_are_no_success() {
    let upstream = Upstream::script(Script::sse().header("content-length", "0"));
    let stack = server(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.status, 502);
    assert_eq!(upstream.calls(), 4);
}
