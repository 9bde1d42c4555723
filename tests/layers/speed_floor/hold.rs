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

/// A signature of hidden reasoning, which is content without text.
const SIGNATURE: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\
     \"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"c2lnbmVk\"}}\n\n";

#[tokio::test(start_paused = true)]
async fn a_stream_of_large_and_rare_pieces_is_handed_on_with_the_second_one() {
    // 50 tokens a second, in gaps that are too long to be measured.
    let script = Script::sse()
        .data(PRELUDE)
        .repeat(10, 2.0, chat(&"abcd".repeat(100)))
        .data(DONE);

    let (after, models) = handed_on(floor(), script).await;

    assert_eq!((after, models), (secs(4), vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_fast_piece_behind_a_long_gap_shows_the_speed_of_a_stream_that_seemed_slow() {
    // Each piece ends in a few bytes of its own, for which a short gap is measured.
    let script = (0..10).fold(Script::sse().data(PRELUDE).data(token()), |script, _| {
        script
            .wait(0.5)
            .data(chat("ab"))
            .wait(2.0)
            .data(chat(&"abcd".repeat(100)))
    });

    let (after, models) = handed_on(floor(), script.data(DONE)).await;

    assert_eq!(models, ["a"]);
    assert_eq!(after, Duration::from_millis(2_500));
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_speed_cannot_be_told_is_handed_on() {
    let rare = tokens(10, 2.0).data(DONE);
    let (after, models) = handed_on(floor(), rare).await;
    assert_eq!((after, models), (secs(2), vec!["a".to_owned()]));

    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let signed = Script::sse().repeat(100, 0.5, SIGNATURE).data(stop);
    let (after, models) = handed_on_at("/v1/messages", floor(), signed).await;
    assert_eq!((after, models), (secs(1), vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_slow_stream_beside_a_tool_is_handed_on() {
    let run = Run::open();
    let upstream = Upstream::script(healthy());
    upstream.play("a", crawl());
    let candidates = [Candidate::new("a"), Candidate::new("b")];
    let layer = ModelFallbackLayer::new(candidates).hold(secs(60));
    let stack = ServiceBuilder::new()
        .layer(layer)
        .layer(floor())
        .service(upstream.clone());
    let start = Instant::now();
    let call = async {
        stack.oneshot(run.attach(prompt("a"))).await.unwrap();
        start.elapsed()
    };
    let tool = run.tool("search").watch(sleep(secs(40)));
    let (after, tool) = tokio::join!(call, tool);

    tool.unwrap();
    assert_eq!(after, Duration::from_millis(500));
    assert_eq!(upstream.models(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn one_long_gap_hands_on_no_stream_that_crawls() {
    let crawls = tokens(8, 0.5)
        .wait(2.0)
        .data(token())
        .repeat(120, 0.5, token());

    let (after, models) = handed_on(floor(), crawls).await;

    assert_eq!(models, ["a", "b"], "handed on after {after:?}");
    assert_eq!(after, secs(12));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_falls_silent_while_it_is_held_is_no_answer() {
    let layer = StepTimeoutLayer::new(secs(5)).min_tokens_per_second(8.0, OVER);

    let (after, models) = handed_on(layer, tokens(1, 0.1).wait(100.0).data(DONE)).await;

    assert_eq!(models, ["a", "b"], "handed on after {after:?}");
}
