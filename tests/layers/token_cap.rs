//! Runs that may use so many tokens, or cost so much, and no more.
//!
//! covers: H8

mod amounts;
mod owner;
mod prompts;
mod question;
mod streams;
mod sub_agents;
mod unary;

use futures_util::future::join_all;
use tower_agent::{
    Candidate, NotCounted, Run, RunRegistry, TerminalReason, TokenCapLayer, TokenCaps,
    run::{Price, TokensSpent},
};

use crate::support::{
    DONE, FINISH, Outcome, PRELUDE, Place, Script, Stack, StackService, USAGE, Upstream, chat,
    content_block, messages, prompt, prompt_json, request,
};

const CAPPED: Option<TerminalReason> = Some(TerminalReason::TokenCap);

fn output(tokens: u32) -> TokenCaps {
    TokenCaps::new().max_output_tokens(tokens)
}

fn total(tokens: u32) -> TokenCaps {
    TokenCaps::new().max_total_tokens(tokens)
}

fn capped(caps: TokenCaps) -> Stack {
    Stack::default().layer(Place::TokenCap, TokenCapLayer::new(caps))
}

/// A chat delta of 40 bytes, ten tokens by the estimate.
pub(super) fn ten() -> String {
    chat(&"x".repeat(40))
}

/// The same, with the number of tokens that the upstream has written so far.
fn stated(tokens: u32) -> String {
    let event = ten();
    let usage = format!(r#"}}],"usage":{{"prompt_tokens":7,"completion_tokens":{tokens}}}}}"#);
    event.replace("}]}", &usage)
}

pub(super) fn usage(input: u32, output: u32) -> String {
    let usage = format!(r#"{{"prompt_tokens":{input},"completion_tokens":{output}}}"#);
    format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n")
}

fn spent(run: &Run) -> TokensSpent {
    run.tokens_spent().unwrap()
}

async fn ask(service: &StackService, run: &Run) -> Outcome {
    service.ask(run.attach(prompt("a"))).await
}

/// The stream of an upstream that states its tokens as it goes, at the end, or never. Each frame
/// has ten tokens by the estimate, and one by the upstream's count.
fn streams() -> [(&'static str, Script, usize); 3] {
    let as_it_goes = (1..=30).map(stated);
    let as_it_goes = as_it_goes.fold(Script::sse().data(PRELUDE), |script, event| {
        script.wait(1.0).data(event)
    });
    let silent = Script::sse().data(PRELUDE).repeat(30, 1.0, ten());
    let end = |script: Script| script.data(FINISH).data(usage(7, 30)).data(DONE);
    [
        ("as it goes", end(as_it_goes), 26),
        ("at the end", end(silent.clone()), 3),
        ("never", silent.data(FINISH).data(DONE), 3),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_exceeds_its_cap_ends_the_run_behind_that_frame_and_the_next_call_is_refused()
{
    for (says, script, frames) in streams() {
        let upstream = Upstream::script(script);
        let service = capped(output(25)).terminal().retry(2).build(&upstream);
        let run = Run::open();

        let cut = ask(&service, &run).await;

        assert_eq!((cut.status, cut.error.is_none()), (200, true), "{says}");
        let sent = cut.text.matches("xxxx\"").count();
        assert_eq!(sent, frames, "{says}: {}", cut.text);
        let (_, event) = cut.text.rsplit_once("event: error\n").unwrap();
        assert!(event.contains(r#""code":"token_cap_reached""#), "{event}");
        let is_estimated = says != "as it goes";
        assert_eq!(event.contains("estimated"), is_estimated, "{says}: {event}");
        assert!(event.contains("its 25 output tokens"), "{event}");
        assert_eq!(upstream.dropped().reason, CAPPED, "{says}");
        assert_eq!(run.terminal_reason(), CAPPED);
        assert_eq!(run.terminated().unwrap().is_estimated(), is_estimated);

        let next = ask(&service, &run).await;

        assert_eq!(next.status, 422);
        assert_eq!(next.header("x-terminal-reason"), Some("token_cap_reached"));
        assert_eq!(next.header("x-should-retry"), Some("false"));
        assert_eq!(upstream.calls(), 1, "{says}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_number_that_the_upstream_states_replaces_the_estimate() {
    for tokens in [2, 50] {
        let script = Script::sse().data(ten()).data(ten()).data(FINISH);
        let upstream = Upstream::script(script.data(usage(9, tokens)).data(DONE));
        let service = capped(output(1000)).retry(1).build(&upstream);
        let run = Run::open();

        ask(&service, &run).await.whole();

        let spent = spent(&run);
        assert_eq!(spent.output_tokens, u64::from(tokens));
        assert_eq!((spent.input_tokens, spent.estimated_tokens), (9, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_keeps_its_estimate() {
    let upstream = Upstream::script(Script::sse().data(ten()).data(chat("yy")).fail("reset"));
    let service = capped(output(1000)).retry(1).build(&upstream);
    let run = Run::open();

    let cut = ask(&service, &run).await;

    assert!(cut.error.is_some());
    assert_eq!(spent(&run).output_tokens, 11, "42 bytes, rounded up");
    assert_eq!(spent(&run).estimated_tokens, 11);
    assert_eq!(run.usage(), None);
}

/// Its tokens are paid for, and its caller has all of it.
#[tokio::test(start_paused = true)]
async fn an_answer_whose_upstream_said_why_it_stops_is_handed_on_to_its_end() {
    let script = Script::sse().data(ten()).data(FINISH).wait(1.0);
    let upstream = Upstream::script(script.data(usage(7, 500)).data(DONE));
    let service = capped(output(10)).retry(1).build(&upstream);
    let run = Run::open();

    let outcome = ask(&service, &run).await;

    assert!(outcome.whole().ends_with(DONE));
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(spent(&run).output_tokens, 500);
    assert_eq!(ask(&service, &run).await.reason, CAPPED);
    assert_eq!(upstream.calls(), 1);
}

/// A run that has used its cap exactly has nothing left for another call.
#[tokio::test(start_paused = true)]
async fn a_cap_that_is_used_up_exactly_cuts_nothing_and_refuses_the_next() {
    let upstream = Upstream::script(Script::sse().data(ten()).data(FINISH).data(DONE));
    let service = capped(output(10)).retry(1).build(&upstream);
    let run = Run::open();

    ask(&service, &run).await.whole();
    assert_eq!(ask(&service, &run).await.reason, CAPPED);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_stream_is_counted_at_its_end() {
    let with_usage = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":120}}"#;
    let without = format!(
        r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#,
        "x".repeat(41)
    );
    // No model writes a text of no tokens.
    let zero = r#","usage":{"prompt_tokens":9,"completion_tokens":0}}"#;
    let zero = without.strip_suffix('}').unwrap().to_owned() + zero;
    for (body, output, estimated) in [(with_usage, 120, 0), (&without, 11, 11), (&zero, 11, 11)] {
        // With and without a layer that reads it to judge it.
        for stack in [capped(total(11)), capped(total(11)).retry(2)] {
            let upstream = Upstream::script(Script::answer(200, body));
            let service = stack.build(&upstream);
            let run = Run::open();

            let answer = service.ask(run.attach(prompt_json("a"))).await;

            assert_eq!(answer.whole(), body);
            assert_eq!(spent(&run).output_tokens, output);
            assert_eq!(spent(&run).estimated_tokens, estimated);
            let usage = run.usage().map_or(0, |usage| usage.output_tokens);
            assert_eq!(usage, output - estimated, "an estimate is no usage");
            let next = service.ask(run.attach(prompt_json("a"))).await;
            assert_eq!((next.reason, upstream.calls()), (CAPPED, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_and_an_answer_without_a_model_are_no_tokens() {
    for (status, path) in [(500, "/v1/chat/completions"), (200, "/v1/embeddings")] {
        let body = format!(r#"{{"data":"{}"}}"#, "x".repeat(300_000));
        let upstream = Upstream::script(Script::answer(status, body));
        let service = capped(total(1000)).build(&upstream);
        let run = Run::open();
        let mut asked = run.attach(request());
        *asked.uri_mut() = path.parse().unwrap();

        service.ask(asked).await;

        assert_eq!(spent(&run), TokensSpent::default(), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn cached_input_counts_only_if_asked() {
    let openai = r#"{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":80}}"#;
    let anthropic = r#"{"input_tokens":15,"cache_read_input_tokens":80,"cache_creation_input_tokens":5,"output_tokens":5}"#;
    for usage in [openai, anthropic] {
        for (counts, used) in [(false, 25), (true, 105)] {
            let body = format!(r#"{{"usage":{usage}}}"#);
            let upstream = Upstream::script(Script::answer(200, body));
            let caps = |tokens| capped(total(tokens).count_cached_input(counts)).retry(1);
            let run = Run::open();
            let service = caps(used + 1).build(&upstream);
            service.ask(run.attach(prompt_json("a"))).await.whole();

            let spent = spent(&run);
            assert_eq!((spent.input_tokens, spent.cached_input_tokens), (20, 80));
            assert_eq!(run.usage().unwrap().cached_input_tokens, 80);
            // One token is left, and with a cap that is one token lower none.
            service.ask(run.attach(prompt_json("a"))).await.whole();
            let run = Run::open();
            let service = caps(used).build(&upstream);
            service.ask(run.attach(prompt_json("a"))).await.whole();
            let next = service.ask(run.attach(prompt_json("a"))).await;
            assert_eq!(next.reason, CAPPED, "{usage}: {counts}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn anthropics_stream_states_its_prompt_first_and_its_answer_last() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":\
                 {\"input_tokens\":40,\"cache_read_input_tokens\":1000,\"output_tokens\":1}}}\n\n";
    let script = Script::sse().data(start);
    let script = (0..10).fold(script, |script, _| {
        script.wait(1.0).data(content_block(&"x".repeat(40)))
    });
    let upstream = Upstream::script(script);
    let service = capped(total(65)).retry(1).build(&upstream);
    let run = Run::open();

    let cut = service.ask(run.attach(messages())).await;

    assert_eq!(cut.reason, CAPPED);
    let blocks = cut.text.matches("content_block_delta\n").count();
    assert_eq!(blocks, 3, "40, 1 and three times ten: {}", cut.text);
}

#[tokio::test(start_paused = true)]
async fn each_candidate_has_its_price_and_failed_attempts_cost_too() {
    let upstream = Upstream::script(Script::sse());
    // It answers an error with a usage before any content: the call moves on.
    let failed = Script::sse()
        .data(usage(1_000_000, 0))
        .data("data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\"}}\n\n");
    upstream.play("large", failed);
    let served = Script::sse().data(chat("a")).data(FINISH);
    let cached = r#"{"prompt_tokens":500000,"completion_tokens":200000,"prompt_tokens_details":{"cached_tokens":400000}}"#;
    let served = served.data(format!("data: {{\"choices\":[],\"usage\":{cached}}}\n\n"));
    upstream.play("small", served.data(DONE));
    let large = Candidate::new("large").price(Price::per_million(2.5, 10.0));
    let small = Price::per_million(0.1, 0.4).cached_input(0.05);
    let small = Candidate::new("small").price(small);
    let caps = TokenCaps::new().max_cost(2.6);
    let stack = capped(caps).fallback([large, small]).retry(1);
    let service = stack.build(&upstream);
    let run = Run::open();

    service.ask(run.attach(prompt("large"))).await.whole();

    // 2.5 for the failed attempt; 0.01, 0.02 and 0.08 for the other.
    let cost = spent(&run).cost;
    assert!((cost - 2.61).abs() < 1e-9, "{cost}");
    let next = service.ask(run.attach(prompt("large"))).await;
    assert_eq!(next.reason, CAPPED);
    let message = next.terminated().message();
    assert!(message.contains("it used up its cost of 2.6 "), "{message}");
}

#[tokio::test(start_paused = true)]
async fn calls_at_the_same_time_share_a_cap() {
    let upstream = Upstream::script(Script::sse().repeat(100, 1.0, ten()));
    let service = capped(output(200)).retry(1).build(&upstream);
    let run = Run::open();

    let calls = join_all((0..8).map(|_| ask(&service, &run))).await;

    assert!(calls.iter().all(|call| call.reason == CAPPED));
    // Each frame of the eight is compared; those of one instant come before the cut.
    let used = spent(&run).output_tokens;
    assert!((210..=280).contains(&used), "{used}");
}

#[tokio::test(start_paused = true)]
async fn two_layers_count_once_and_each_has_its_cap() {
    let body = r#"{"usage":{"prompt_tokens":9,"completion_tokens":20}}"#;
    for script in [
        Script::answer(200, body),
        Script::sse()
            .data(chat("a"))
            .data(FINISH)
            .data(usage(9, 20))
            .data(DONE),
    ] {
        let upstream = Upstream::script(script);
        let inner = TokenCapLayer::new(output(40));
        let stack = capped(output(1000)).layer(Place::LoopGuard, inner);
        let service = stack.build(&upstream);
        let run = Run::open();

        for used in [20, 40] {
            service.ask(run.attach(request())).await.whole();
            assert_eq!(spent(&run).output_tokens, used);
        }
        assert_eq!(service.ask(run.attach(request())).await.reason, CAPPED);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_counted_uses_no_tokens() {
    let cached = |script: Script| {
        let upstream = Upstream::script(script);
        let marked = tower::ServiceBuilder::new()
            .map_response(|mut answer: http::Response<_>| {
                answer.extensions_mut().insert(NotCounted);
                answer
            })
            .service(upstream);
        capped(output(5)).around(StackService::new(marked))
    };
    let body = r#"{"usage":{"prompt_tokens":9,"completion_tokens":20}}"#;
    for script in [
        Script::answer(200, body),
        Script::sse().data(ten()).data(DONE),
    ] {
        let service = cached(script);
        let run = Run::open();
        service.ask(run.attach(request())).await.whole();
        assert_eq!(spent(&run), TokensSpent::default());
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_counted_without_a_cap_and_no_request_is_changed() {
    let upstream = Upstream::script(Script::sse().data(ten()).data(USAGE).data(DONE));
    let run = Run::open();
    let plain = capped(TokenCaps::new()).retry(1).build(&upstream);
    ask(&plain, &run).await.whole();
    assert_eq!(run.tokens_spent(), None);

    let service = capped(output(1000)).retry(1).build(&upstream);
    ask(&service, &run).await.whole();

    let bodies = upstream.bodies();
    assert_eq!(bodies[0], bodies[1]);
    assert!(!bodies[1].contains("stream_options") && !bodies[1].contains("max_tokens"));
}

/// The run has no cap of that layer, so a later layer sets its own.
#[tokio::test(start_paused = true)]
async fn a_layer_without_a_cap_counts_tokens_only_if_it_is_told_to() {
    let answer = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":30}}"#;
    let stream = Script::sse().data(ten()).data(usage(7, 30)).data(DONE);
    for script in [Script::json().data(answer), stream] {
        let upstream = Upstream::script(script);
        let layer = TokenCapLayer::new(TokenCaps::new()).always_count();
        let stack = Stack::default().layer(Place::TokenCap, layer);
        for service in [
            stack.clone().build(&upstream),
            stack.retry(1).build(&upstream),
        ] {
            let run = Run::open();
            let child = run.child();
            for _ in 0..2 {
                ask(&service, &run).await.whole();
            }
            ask(&service, &child).await.whole();

            let counted = [&run, &child].map(|run| {
                let spent = spent(run);
                (spent.input_tokens, spent.output_tokens)
            });
            assert_eq!(counted, [(21, 90), (7, 30)]);
            assert_eq!(run.snapshot().spent, run.tokens_spent());
            assert_eq!(run.terminal_reason(), None);

            let capped = capped(output(80)).build(&upstream);
            assert_eq!(
                ask(&capped, &run).await.terminated().reason,
                TerminalReason::TokenCap
            );
            assert_eq!(run.terminal_reason(), CAPPED);
        }
    }
}

/// The stream goes on after its caller has left, to learn the usage.
#[tokio::test(start_paused = true)]
async fn a_drained_stream_is_counted_to_its_end() {
    let script = Script::sse().repeat(5, 1.0, ten()).data(FINISH);
    let upstream = Upstream::script(script.data(usage(7, 44)).data(DONE));
    let registry = RunRegistry::new();
    let drain = tower_agent::PumpLayer::new().drain(Some(std::time::Duration::from_secs(30)));
    let stack = capped(output(1000)).run(&registry).retry(1);
    let service = stack.layer(Place::Pump, drain).build(&upstream);
    let mut asked = prompt("a");
    asked
        .headers_mut()
        .insert("x-run-id", "r-1".parse().unwrap());

    let call = tokio::spawn(service.ask(asked));
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    call.abort();
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;

    let run = &registry.find(&"r-1".parse().unwrap())[0];
    assert_eq!(spent(run).output_tokens, 44);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_what_was_spent() {
    let upstream = Upstream::script(Script::sse().data(ten()).never());
    let service = capped(output(100)).retry(1).build(&upstream);
    let run = Run::open();
    let call = tokio::spawn(service.ask(run.attach(prompt("a"))));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;

    let json = serde_json::to_value(run.snapshot()).unwrap();
    let counted = serde_json::json!({"input_tokens": 0, "cached_input_tokens": 0,
        "output_tokens": 10, "estimated_tokens": 10, "estimated_input_tokens": 0, "cost": 0.0});
    assert_eq!(json["spent"], counted, "while it streams");
    call.abort();
}

#[test]
#[should_panic = "a cap must allow something"]
fn a_cap_of_nothing_is_refused() {
    let _caps = output(0);
}

#[test]
#[should_panic = "a price must be a number from 0"]
fn a_price_below_zero_is_refused() {
    let _price = Price::per_million(-1.0, 0.0);
}
