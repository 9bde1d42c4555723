//! The tokens of answers that are no streams.
//!
//! covers: H8

use http::Response;
use tower::util::MapResponseLayer;
use tower_agent::{Candidate, Run, TokenCaps, run::Price};

use super::{capped, output, spent, usage};
use crate::support::{LogCapture, Place, Script, Upstream, prompt_json, request, request_of};

/// An answer whose text has this many bytes, and whose upstream states nothing.
fn text(bytes: usize) -> String {
    let text = "x".repeat(bytes);
    format!(r#"{{"choices":[{{"message":{{"content":"{text}"}}}}]}}"#)
}

/// The same, with the number of its tokens.
fn stated(bytes: usize, tokens: u64) -> String {
    let usage = format!(r#","usage":{{"prompt_tokens":9,"completion_tokens":{tokens}}}}}"#);
    let mut text = text(bytes);
    text.pop();
    text + &usage
}

/// In frames, as an answer arrives.
fn in_frames(body: &str) -> Script {
    let frames = body.as_bytes().chunks(10_000);
    frames.fold(Script::json(), |script, frame| script.data(frame))
}

/// A request may carry the run itself, or a call of it.
#[tokio::test(start_paused = true)]
async fn each_answer_of_a_run_counts() {
    let upstream = Upstream::script(Script::answer(200, stated(9, 20)));
    let service = capped(output(50)).build(&upstream);
    let run = Run::open();

    for used in [20, 40, 60] {
        service.ask(request_of(&run)).await.whole();
        assert_eq!(spent(&run).output_tokens, used);
        assert_eq!(run.usage().unwrap().output_tokens, used);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_although_a_failed_attempt_of_its_call_stated_usage() {
    let failed = Script::sse()
        .data(usage(7, 3))
        .data("data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\"}}\n\n");
    let upstream = Upstream::scripts([failed, Script::answer(200, text(40))]);
    let service = capped(output(1000)).retry(2).build(&upstream);
    let run = Run::open();

    service.ask(run.attach(prompt_json("a"))).await.whole();

    let spent = spent(&run);
    assert_eq!((spent.output_tokens, spent.estimated_tokens), (13, 10));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_stream_has_the_price_of_its_candidate() {
    let large = || Candidate::new("large").price(Price::per_million(0.0, 10.0));
    let caps = TokenCaps::new().max_cost(50.0);
    for (body, cost) in [(stated(9, 100_000), 1.0)] {
        let upstream = Upstream::script(in_frames(&body));
        let service = capped(caps).fallback([large()]).retry(1).build(&upstream);
        let run = Run::open();

        service.ask(run.attach(prompt_json("large"))).await.whole();

        assert!((spent(&run).cost - cost).abs() < 1e-9, "{:?}", spent(&run));
    }
}

/// The layer that decodes it is the first that can read it.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_layer_of_the_program_decodes_has_the_price_of_its_candidate() {
    let large = Candidate::new("large").price(Price::per_million(0.0, 10.0));
    let script = Script::answer(200, stated(9, 100_000)).header("content-encoding", "x-none");
    let decode = MapResponseLayer::new(|mut answer: Response<_>| {
        answer.headers_mut().remove("content-encoding");
        answer
    });
    let stack = capped(TokenCaps::new().max_cost(50.0)).fallback([large]);
    let stack = stack.retry(1).layer(Place::LoopGuard, decode);
    let run = Run::open();

    let service = stack.build(&Upstream::script(script));
    service.ask(run.attach(prompt_json("large"))).await.whole();

    assert!((spent(&run).cost - 1.0).abs() < 1e-9, "{:?}", spent(&run));
    assert_eq!(spent(&run).output_tokens, 100_000);
}

#[tokio::test(start_paused = true)]
async fn the_line_of_a_call_that_this_layer_settles_has_its_tokens() {
    let upstream = Upstream::script(Script::answer(200, stated(9, 20)));
    let service = capped(output(50)).build(&upstream);
    let heard = LogCapture::start();

    service.ask(request()).await.whole();

    let line = &heard.events("call ended")[0];
    assert_eq!(
        (&*line["input_tokens"], &*line["output_tokens"]),
        ("9", "20")
    );
}
