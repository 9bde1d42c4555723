//! How long a `hold` holds an answer back for its speed.

use super::*;

/// When a call with this stream was handed on behind a hold of a minute, and the models that were asked.
async fn handed_on(layer: StepTimeoutLayer, script: Script) -> (Duration, Vec<String>) {
    handed_on_at("/v1/chat/completions", layer, script).await
}

async fn handed_on_at(
    path: &str,
    layer: StepTimeoutLayer,
    script: Script,
) -> (Duration, Vec<String>) {
    let (upstream, stack) = fallback(Some(secs(60)));
    upstream.play("a", script);
    let stack = stack.layer(Place::AttemptStep, layer).build(&upstream);
    let mut request = prompt("a");
    *request.uri_mut() = path.parse().unwrap();
    let start = Instant::now();
    stack.oneshot(request).await.unwrap();
    (start.elapsed(), upstream.models())
}

#[tokio::test(start_paused = true)]
async fn no_number_of_events_hands_on_a_stream_that_crawls() {
    // The floor asks for 640 tokens in its time, and half of them come, an event each.
    let layer = StepTimeoutLayer::optional(None).min_tokens_per_second(64.0, OVER);
    let at_half = tokens(640, 1.0 / 32.0).data(DONE);

    let (after, models) = handed_on(layer, at_half).await;

    assert_eq!(models, ["a", "b"], "handed on after {after:?}");
    assert!(after >= OVER && after < secs(11), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fast_stream_of_small_events_is_held_until_it_has_shown_its_speed() {
    // An eighth of what the floor asks for are 500 tokens.
    let layer = StepTimeoutLayer::optional(None).min_tokens_per_second(400.0, OVER);
    let script = tokens(4_000, 0.002).data(DONE);

    let (after, models) = handed_on(layer, script).await;

    assert_eq!((after, models), (secs(1), vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn many_bytes_hand_an_answer_on_before_it_has_shown_its_speed() {
    let layer = StepTimeoutLayer::optional(None).min_tokens_per_second(10_000.0, secs(30));
    let script = Script::sse()
        .data(PRELUDE)
        .repeat(300, 0.3, chat(&"a".repeat(4_000)));

    let (after, models) = handed_on(layer, script).await;

    assert_eq!(models, ["a"]);
    assert!(after > secs(19) && after < secs(20), "{after:?}");
}
