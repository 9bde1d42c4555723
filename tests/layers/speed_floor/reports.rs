//! Public reports of streams that crawl, and what the floor makes of them.

use super::*;

/// So many tokens a second, one event a second, for a minute and a half.
fn at(tokens: usize) -> Script {
    let text = chat(&"abcd".repeat(tokens));
    Script::sse()
        .data(PRELUDE)
        .data(text.clone())
        .repeat(90, 1.0, text)
        .data(DONE)
}

fn floored(tokens: f64, over: u64) -> StepTimeoutLayer {
    StepTimeoutLayer::optional(None).min_tokens_per_second(tokens, secs(over))
}

/// A fallback from `a`, which plays `script`, to `b`, which is healthy.
async fn falls_back(layer: StepTimeoutLayer, hold: u64, script: Script) -> (Upstream, Outcome) {
    let upstream = Upstream::script(healthy());
    upstream.play("a", script);
    let candidates = [Candidate::new("a"), Candidate::new("b")];
    let stack = Stack::default()
        .terminal()
        .layer(
            Place::Fallback,
            ModelFallbackLayer::new(candidates).hold(secs(hold)),
        )
        .layer(Place::AttemptStep, layer)
        .build(&upstream);
    let outcome = stack.ask(prompt("a")).await;
    (upstream, outcome)
}

/// A turn at about two tokens a second reset each watchdog of silence, and never failed.
///
/// `code-yeongyu/senpi#1739`
#[tokio::test(start_paused = true)]
async fn a_turn_at_two_tokens_a_second_ends() {
    let outcome = ask(floored(8.0, 30), at(2)).await;

    assert_eq!((outcome.reason.clone(), outcome.at), (SLOW, secs(30)));
}

/// Another try of a model that answers slowly is as slow: the next model is asked at once.
///
/// `code-yeongyu/senpi#1743`
#[tokio::test(start_paused = true)]
async fn the_next_model_is_asked_and_not_the_same_again() {
    let (upstream, outcome) = falls_back(floored(8.0, 20), 60, at(2)).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.models(), ["a", "b"]);
    assert_eq!(outcome.at, secs(20));
}

/// A fast first chunk, then 0.8 to 1.6 tokens a second, in deltas that come often. Healthy calls of the
/// same model had 143 and more.
///
/// `maximhq/bifrost#6472`
#[tokio::test(start_paused = true)]
async fn a_fast_first_chunk_hides_no_crawl() {
    let crawl = Script::sse()
        .data(PRELUDE)
        .data(chat(&"abcd".repeat(10)))
        .repeat(200, 0.3, chat("ab"))
        .data(DONE);
    let (upstream, outcome) = falls_back(floored(5.0, 5), 30, crawl).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.models(), ["a", "b"]);

    let healthy_call = Script::sse()
        .data(PRELUDE)
        .repeat(100, 0.1, chat(&"abcd".repeat(14)))
        .data(DONE);
    let (upstream, outcome) = falls_back(floored(5.0, 5), 30, healthy_call).await;
    outcome.whole();
    assert_eq!(
        (upstream.models(), outcome.at),
        (vec!["a".to_owned()], secs(10))
    );
}

/// A stream that succeeds slowly stayed with its host: once its tokens are out, it ends.
///
/// `can1357/oh-my-pi#12069`
#[tokio::test(start_paused = true)]
async fn behind_the_commit_it_is_an_end_and_the_tokens_stay() {
    let upstream = Upstream::script(healthy());
    upstream.play("a", at(3));
    let candidates = [Candidate::new("a"), Candidate::new("b")];
    let stack = Stack::default()
        .terminal()
        .layer(Place::Fallback, ModelFallbackLayer::new(candidates))
        .layer(Place::AttemptStep, floored(20.0, 8))
        .build(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(upstream.models(), ["a"]);
    assert!(outcome.text.contains("abcdabcdabcd"), "{}", outcome.text);
    assert!(outcome.text.contains("slow"), "{}", outcome.text);
    assert_eq!(outcome.at, secs(8));
}

/// After some words a stream said nothing for seconds, then a few more: that is silence, for which a step
/// window is there, and no speed.
///
/// `pipecat-ai/pipecat#5842`
#[tokio::test(start_paused = true)]
async fn words_with_long_gaps_are_silence_and_no_speed() {
    let dribbles = || {
        Script::sse()
            .data(PRELUDE)
            .data(chat("Sorry, did you mean which swim"))
            .repeat(8, 6.0, chat(" one"))
            .data(DONE)
    };
    let outcome = ask(floored(8.0, 10), dribbles()).await;
    outcome.whole();

    let window = StepTimeoutLayer::new(secs(5)).min_tokens_per_second(8.0, secs(10));
    let outcome = ask(window, dribbles()).await;
    assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(outcome.at, secs(5));
}
