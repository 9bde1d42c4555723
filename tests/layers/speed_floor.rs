//! A floor on the speed of a stream: one that is alive and crawls ends as `slow`.
//!
//! covers: H14

mod hold;
mod reports;

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, Cooldowns, FailureClass, ModelFallbackLayer, ReasonClass, RetryBudgetLayer, Run,
    RunEvent, RunNotice, Scope, StepTimeoutLayer, TerminalReason,
};

use crate::support::{
    DONE, FINISH, Outcome, PING, PRELUDE, Place, ReadExt, Script, Stack, Upstream, call_of, chat,
    content_block, healthy, healthy_text, messages, no_delay, prompt, request, secs,
};

const OVER: Duration = secs(10);
const SLOW: Option<TerminalReason> = Some(TerminalReason::Slow);

/// Four bytes count as one token.
fn token() -> String {
    chat("abcd")
}

/// At least 8 tokens a second over 10 s, and no other limit.
fn floor() -> StepTimeoutLayer {
    StepTimeoutLayer::optional(None).min_tokens_per_second(8.0, OVER)
}

/// Tokens every so many seconds.
fn tokens(times: usize, gap: f64) -> Script {
    Script::sse()
        .data(PRELUDE)
        .data(token())
        .repeat(times, gap, token())
}

/// Two tokens a second, for a minute.
fn crawl() -> Script {
    tokens(120, 0.5).data(DONE)
}

async fn ask(layer: StepTimeoutLayer, script: Script) -> Outcome {
    let upstream = Upstream::script(script);
    let stack = Stack::default().layer(Place::Step, layer).build(&upstream);
    stack.ask(request()).await
}

/// A fallback from `a`, which crawls, to `b`, which is fast; with a floor on each attempt.
fn fallback(hold: Option<Duration>) -> (Upstream, Stack) {
    let upstream = Upstream::script(healthy());
    upstream.play("a", crawl());
    let layer = ModelFallbackLayer::new([Candidate::new("a"), Candidate::new("b")]);
    let layer = match hold {
        Some(hold) => layer.hold(hold),
        None => layer,
    };
    let stack = Stack::default()
        .terminal()
        .layer(Place::Fallback, layer)
        .layer(Place::AttemptStep, floor());
    (upstream, stack)
}

#[tokio::test(start_paused = true)]
async fn a_stream_above_the_floor_completes() {
    let outcome = ask(floor(), tokens(300, 0.1).data(DONE)).await;

    outcome.whole();
    assert_eq!(outcome.at, secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_crawls_ends_as_slow_once_the_time_is_over() {
    let stacks = [
        Stack::default().layer(Place::Step, floor()),
        // Beside a step window, and behind layers that read the stream first.
        Stack::default()
            .layer(
                Place::Step,
                StepTimeoutLayer::new(secs(60)).min_tokens_per_second(8.0, OVER),
            )
            .attempt_step(30),
        Stack::default().layer(Place::Step, floor()).pump(),
    ];
    for stack in stacks {
        let upstream = Upstream::script(crawl());
        let outcome = stack.build(&upstream).ask(request()).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.reason, SLOW);
        assert_eq!(outcome.at, OVER);
        let end = outcome.terminated();
        assert_eq!((end.limit, end.exit_code()), (Some(OVER), 124));
        let message = end.message();
        let why = "for 10s it sent less than 8 tokens a second (slow)";
        assert!(message.contains(why), "{message}");
        assert!(upstream.is_dropped());
    }
    assert_eq!(TerminalReason::Slow.class(), ReasonClass::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_begins_to_crawl_ends_once_it_was_slow_on_average() {
    let script = tokens(1000, 0.02).repeat(120, 0.5, token());
    let outcome = ask(floor(), script).await;

    assert_eq!(outcome.reason, SLOW);
    let crawled = outcome.at - secs(20);
    assert!(crawled > secs(8) && crawled < secs(12), "{crawled:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_falls_back_while_its_answer_is_held() {
    let (upstream, stack) = fallback(Some(secs(60)));
    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(outcome.at, OVER);
    assert_eq!(outcome.tries, [(Some("a".to_owned()), FailureClass::Slow)]);
    assert_eq!(upstream.models(), ["a", "b"]);
    assert_eq!(upstream.reasons()[0], SLOW);
}

#[tokio::test(start_paused = true)]
async fn a_retry_layer_holds_and_repeats_as_well() {
    let upstream = Upstream::scripts([crawl(), healthy()]);
    let stack = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()).hold(secs(60)))
        .layer(floor())
        .service(upstream.clone());
    let outcome = Outcome::of(stack.oneshot(prompt("m"))).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_the_commit_the_stream_ends_in_an_error_event() {
    // Without a hold the first content is the commit; a hold may end before the stream is slow.
    for (hold, began) in [(None, 0), (Some(secs(5)), 5)] {
        let (upstream, stack) = fallback(hold);
        let start = Instant::now();
        let answer = stack.build(&upstream).oneshot(prompt("a")).await.unwrap();

        assert_eq!(start.elapsed(), secs(began));
        assert_eq!(answer.status(), 200);
        let text = answer.into_body().read().await.whole();
        assert_eq!(start.elapsed(), OVER);
        assert!(text.starts_with(PRELUDE) && text.contains(&token()));
        assert!(text.contains("\"code\":\"slow\""), "{text}");
        assert_eq!(upstream.calls(), 1, "no other attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_slow_attempt_of_a_held_answer_is_a_504() {
    let upstream = Upstream::script(crawl());
    let layer = ModelFallbackLayer::new([Candidate::new("a"), Candidate::new("b")]);
    let stack = Stack::default()
        .terminal()
        .layer(Place::Fallback, layer.hold(secs(60)))
        .layer(Place::AttemptStep, floor());
    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, 504);
    assert_eq!(outcome.header("x-terminal-reason"), Some("slow"));
    assert_eq!(outcome.at, OVER * 2);
}

#[tokio::test(start_paused = true)]
async fn a_fast_stream_is_held_for_a_few_tokens_only() {
    let (upstream, stack) = fallback(Some(secs(60)));
    upstream.play("a", tokens(100, 0.02).data(DONE));
    let start = Instant::now();
    let answer = stack.build(&upstream).oneshot(prompt("a")).await.unwrap();

    // An eighth of what the floor asks for in its time: 10 tokens.
    assert_eq!(start.elapsed(), Duration::from_millis(200));
    let text = answer.into_body().read().await.whole();
    assert_eq!(text, PRELUDE.to_owned() + &token().repeat(101) + DONE);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_short_answer_is_held_to_its_end() {
    for end in [DONE.to_owned(), FINISH.to_owned() + DONE] {
        let (upstream, stack) = fallback(Some(secs(60)));
        upstream.play("a", tokens(3, 0.5).data(end));
        let outcome = stack.build(&upstream).ask(prompt("a")).await;

        outcome.whole();
        assert_eq!(outcome.at, Duration::from_millis(1500));
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_floor_that_only_observes_holds_nothing_back() {
    let (upstream, stack) = fallback(Some(secs(60)));
    let stack = stack.layer(Place::AttemptStep, floor().observe());
    let start = Instant::now();
    let answer = stack.build(&upstream).oneshot(prompt("a")).await.unwrap();

    assert_eq!(start.elapsed(), secs(0));
    answer.into_body().read().await.whole();
    assert_eq!(start.elapsed(), secs(60));
}

#[tokio::test(start_paused = true)]
async fn an_error_behind_held_content_leads_to_another_attempt() {
    let (upstream, stack) = fallback(Some(secs(60)));
    upstream.play("a", tokens(4, 0.5).fail("reset"));
    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.models(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_crawled_rests() {
    let upstream = Upstream::script(healthy());
    upstream.play("a", crawl());
    let layer = ModelFallbackLayer::new([Candidate::new("a"), Candidate::new("b")]);
    let stack = Stack::default()
        .layer(Place::Fallback, layer.cooldowns(Cooldowns::new()))
        .layer(Place::AttemptStep, floor())
        .build(&upstream);

    assert_eq!(stack.ask(prompt("a")).await.reason, SLOW);
    assert_eq!(stack.ask(prompt("a")).await.whole(), healthy_text());
    assert_eq!(upstream.models(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_slow_reader_does_not_count() {
    let upstream = Upstream::script(tokens(60, 0.1).data(DONE));
    let stack = floor().layer(upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    let mut frames = 0;
    while let Some(frame) = body.next().await {
        frame.unwrap();
        frames += 1;
        sleep(secs(1)).await;
    }

    assert_eq!(frames, 63);
}

#[tokio::test(start_paused = true)]
async fn a_pause_does_not_count() {
    let run = Run::open();
    let upstream = Upstream::script(crawl());
    let call = Outcome::of(floor().layer(upstream).oneshot(call_of(&run).0));
    let paused = async {
        let _pause = run.pause();
        sleep(secs(20)).await;
    };
    let (outcome, ()) = tokio::join!(call, paused);

    assert_eq!(outcome.reason, SLOW);
    assert!(outcome.at >= secs(30) && outcome.at <= secs(31));
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_the_run_does_not_count() {
    let run = Run::open();
    let upstream = Upstream::script(crawl());
    let call = Outcome::of(floor().layer(upstream).oneshot(call_of(&run).0));
    let tool = run.tool("search").watch(sleep(secs(20)));
    let (outcome, tool) = tokio::join!(call, tool);

    tool.unwrap();
    assert_eq!(outcome.reason, SLOW);
    assert!(outcome.at >= secs(30) && outcome.at <= secs(31));
}

#[tokio::test(start_paused = true)]
async fn hidden_reasoning_does_not_count() {
    let signature = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
                     \"delta\":{\"type\":\"signature_delta\",\"signature\":\"c2lnbmVk\"}}\n\n";
    let empty = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
                 \"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"\"}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    for hidden in [signature, empty, PING] {
        // Some words, then reasoning of which no text is sent, and this five times.
        let script = (0..5).fold(Script::sse(), |script, _| {
            script
                .repeat(8, 0.05, content_block("abcd"))
                .repeat(20, 0.5, hidden)
        });
        let upstream = Upstream::script(script.data(stop));
        let stack = Stack::default()
            .layer(Place::Step, floor())
            .build(&upstream);
        let outcome = stack.ask(messages()).await;

        outcome.whole();
        assert_eq!(outcome.at, secs(52), "{hidden}");
    }
}

#[tokio::test(start_paused = true)]
async fn reasoning_that_is_sent_counts() {
    let thought =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"abcd\"}}]}\n\n";
    let script = Script::sse().data(thought).repeat(120, 0.5, thought);
    assert_eq!(ask(floor(), script).await.reason, SLOW);
}

#[tokio::test(start_paused = true)]
async fn a_gap_without_content_is_the_step_windows_affair() {
    // No eight content events stand in ten seconds.
    outcome_is_whole(tokens(30, 1.5).data(DONE)).await;

    let layer = StepTimeoutLayer::new(secs(20)).min_tokens_per_second(8.0, OVER);
    let script = tokens(4, 0.5).repeat(100, 0.5, PING);
    let outcome = ask(layer, script).await;
    assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(outcome.at, secs(22));
}

async fn outcome_is_whole(script: Script) {
    ask(floor(), script).await.whole();
}

#[tokio::test(start_paused = true)]
async fn tokens_that_the_upstream_states_replace_the_estimate() {
    let stated = |number: u32| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}],\
             \"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{number}}}}}\n\n"
        )
    };
    let script = |script: Script, number| script.wait(0.1).data(stated(number));
    let states = (1..300).fold(Script::sse(), script).data(DONE);
    // A quarter of a token each by its bytes, one by the upstream's own count.
    outcome_is_whole(states).await;
    let bare = Script::sse().repeat(300, 0.1, chat("a")).data(DONE);
    assert_eq!(ask(floor(), bare).await.reason, SLOW);
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_is_never_too_slow() {
    // The event after which the stream would be too slow also finishes the answer.
    let last = token() + FINISH;
    outcome_is_whole(tokens(19, 0.5).wait(0.5).data(last).wait(1.0).data(DONE)).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_stream_is_not_measured() {
    let script = Script::json().data("[").repeat(60, 0.5, "1,").data("2]");
    outcome_is_whole(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_that_passes_at_the_same_instant_wins() {
    let upstream = Upstream::script(crawl());
    let stack = Stack::default()
        .ceiling(10)
        .layer(Place::Step, floor())
        .build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn a_floor_on_the_run_ends_the_run() {
    let run = Run::open();
    let upstream = Upstream::script(crawl());
    let layer = floor().scope(Scope::Run);
    let outcome = Outcome::of(layer.layer(upstream).oneshot(call_of(&run).0)).await;

    assert_eq!(outcome.reason, SLOW);
    assert_eq!(run.terminal_reason(), SLOW);
}

#[tokio::test(start_paused = true)]
async fn a_floor_that_observes_tells_once_and_ends_nothing() {
    let run = Run::open();
    let mut events = run.subscribe();
    let upstream = Upstream::script(crawl());
    let layer = floor().observe();
    let outcome = Outcome::of(layer.layer(upstream).oneshot(call_of(&run).0)).await;
    outcome.whole();
    run.end(TerminalReason::Aborted);

    let mut told = Vec::new();
    while let Some(RunEvent::Notice { notice, .. }) = events.next().await {
        told.push(notice);
    }
    let reason = TerminalReason::Slow;
    let limit = Some(OVER);
    let would = RunNotice::WouldHaveEnded {
        reason: reason.clone(),
        limit,
    };
    let (after, took) = (OVER, secs(60));
    let wrongly = RunNotice::FalsePositive {
        reason,
        after,
        took,
    };
    assert_eq!(told, [would, wrongly]);
}

#[test]
fn a_floor_that_means_nothing_is_refused() {
    let layer = |tokens: f64, over| {
        let made = std::panic::catch_unwind(|| {
            let _layer = StepTimeoutLayer::new(secs(1)).min_tokens_per_second(tokens, over);
        });
        made.is_ok()
    };
    for tokens in [0.0, -1.0, f64::NAN, f64::INFINITY, 10_001.0] {
        assert!(!layer(tokens, OVER), "{tokens}");
    }
    assert!(!layer(8.0, Duration::ZERO));
    assert!(layer(0.5, OVER) && layer(StepTimeoutLayer::MAX_TOKENS_PER_SECOND, OVER));
}
