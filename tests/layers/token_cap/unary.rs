//! The tokens of answers that are no streams.
//!
//! covers: H8

use http::Response;
use tower::util::MapResponseLayer;
use tower_agent::{Candidate, Run, TokenCaps, run::Price};

use super::{capped, output, spent, usage};
use crate::support::{
    LogCapture, Place, Script, Upstream, prompt, prompt_json, request, request_of,
};

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

#[tokio::test(start_paused = true)]
async fn a_long_answer_counts_as_its_upstream_states_it() {
    for stack in [capped(output(1000)), capped(output(1000)).retry(2)] {
        let upstream = Upstream::script(in_frames(&stated(300_000, 120)));
        let run = Run::open();

        let service = stack.build(&upstream);
        service.ask(run.attach(prompt_json("a"))).await.whole();

        let spent = spent(&run);
        assert_eq!((spent.output_tokens, spent.estimated_tokens), (120, 0));
        assert_eq!(run.usage().unwrap().output_tokens, 120);
    }
}

/// Only the body shows that such an answer is no stream.
#[tokio::test(start_paused = true)]
async fn a_document_in_place_of_a_stream_counts_once() {
    let stack = || capped(output(1000));
    for stack in [
        stack(),
        stack().retry(2),
        stack().fallback([Candidate::new("a")]).retry(2),
    ] {
        for (body, tokens, estimated) in [(stated(40, 120), 120, 0), (text(40), 10, 10)] {
            let upstream = Upstream::script(in_frames(&body));
            let run = Run::open();
            stack
                .build(&upstream)
                .ask(run.attach(prompt("a")))
                .await
                .whole();
            let spent = spent(&run);
            assert_eq!(
                (spent.output_tokens, spent.estimated_tokens),
                (tokens, estimated)
            );
            let stated = run.usage().map_or(0, |usage| usage.output_tokens);
            assert_eq!(stated, tokens - estimated);
        }
    }
}

/// Upstreams that state no usage.
#[tokio::test(start_paused = true)]
async fn only_what_a_model_wrote_is_estimated() {
    let logprob = r#"{"token":"xxxx","logprob":-0.1,"bytes":[120,120,120,120]}"#;
    let logprobs = [logprob; 10_000].join(",");
    let message = r#""message":{"content":"x\"xxxxxxxx"}"#;
    let with_logprobs =
        format!(r#"{{"choices":[{{{message},"logprobs":{{"content":[{logprobs}]}}}}]}}"#);
    let data = "A".repeat(300_000);
    let image = format!(r#"{{"created":1,"data":[{{"b64_json":"{data}"}}]}}"#);
    let sound =
        format!(r#"{{"choices":[{{"message":{{"content":null,"audio":{{"data":"{data}"}}}}}}]}}"#);
    let arguments = r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"{}xxxxxx"}}]}}]}"#;
    let anthropic = r#"{"content":[{"type":"text","text":"xxxx"},{"type":"tool_use","input":{"a":"xxxx"}},{"type":"mcp_tool_result","content":[{"type":"text","text":"xxxx"}]}]}"#;
    let reasons = r#"{"choices":[{"message":{"content":"xxxx","reasoning":"xxxxxxxx","reasoning_content":"xxxxxxxx","reasoning_details":[{"text":"xxxxxxxx"}]}}]}"#;
    for (body, tokens) in [
        (with_logprobs.as_str(), 3),
        (&image, 0),
        (&sound, 0),
        (&data, 0),
        (arguments, 2),
        (anthropic, 1),
        (reasons, 3),
        (&text(300_000), 75_000),
        ("no JSON", 0),
        (r#"[{"content":"xxxxxxxx"}]"#, 0),
    ] {
        for stack in [capped(output(100_000)), capped(output(100_000)).retry(2)] {
            let upstream = Upstream::script(in_frames(body));
            let run = Run::open();

            stack.build(&upstream).ask(run.attach(request())).await;

            let body = &body[..body.len().min(150)];
            assert_eq!(spent(&run).estimated_tokens, tokens, "{body}");
            assert_eq!(run.usage(), None);
        }
    }
}

/// Frames may cut an answer anywhere.
#[tokio::test(start_paused = true)]
async fn frames_may_cut_an_answer_anywhere() {
    let body = r#"{ "a" : [1, "content"], "choices": [{"message": {"content" : "x\\\"\u00e4x", "x": {"usage": 1}}}], "usage" : {"prompt_tokens": 9, "completion_tokens": 12, "x": "}\"" } }"#;
    let estimated = body.replace("\"usage\" :", "\"use\" :");
    for at in 1..body.len() {
        for (body, tokens, unstated) in [(body, 12, 0), (&estimated, 3, 3)] {
            let at = at.min(body.len() - 1);
            let script = Script::json().data(&body[..at]).data(&body[at..]);
            let run = Run::open();
            let service = capped(output(1000)).build(&Upstream::script(script));
            service.ask(run.attach(prompt_json("a"))).await.whole();

            let spent = spent(&run);
            assert_eq!(
                (spent.output_tokens, spent.estimated_tokens),
                (tokens, unstated)
            );
        }
    }
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
    for (body, cost) in [
        (stated(9, 100_000), 1.0),
        (stated(300_000, 100_000), 1.0),
        (text(400_000), 1.0),
    ] {
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

/// What came of it was generated, and is paid for.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_cut_keeps_the_estimate_of_what_came() {
    let body = text(4000);
    let script = Script::json().data(&body[..2000]).fail("reset");
    let service = capped(output(1000)).build(&Upstream::script(script));
    let run = Run::open();

    assert!(service.ask(run.attach(request())).await.error.is_some());

    assert!((480..=500).contains(&spent(&run).estimated_tokens));
}
