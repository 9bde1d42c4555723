//! Runs that wait at a cap on tokens or their cost.
//!
//! covers: H8

use tokio::time::sleep;
use tower_agent::{
    Candidate, RunExtension, TerminalReason, TokenCapLayer, TokenCaps, TurnCapLayer,
    run::{PauseAtCap, Price, RunCap},
};

use super::Served;
use crate::support::{DONE, FINISH, PRELUDE, Script, chat, secs};

fn answer(output: u32) -> Script {
    let usage = format!(r#"{{"prompt_tokens":5,"completion_tokens":{output}}}"#);
    Script::json().data(format!(r#"{{"choices":[],"usage":{usage}}}"#))
}

fn pausing(script: Script, caps: TokenCaps) -> Served {
    Served::new(script, |stack| {
        let tokens = TokenCapLayer::new(caps).pause(PauseAtCap::new());
        let turns = TurnCapLayer::new(10).pause(PauseAtCap::new());
        stack.token_caps(tokens).max_turns(turns)
    })
}

#[tokio::test(start_paused = true)]
async fn a_turn_at_a_cap_waits_and_its_number_is_given_back_if_it_is_refused() {
    let served = pausing(answer(10), TokenCaps::new().max_output_tokens(10));
    assert_eq!(served.turn("a").await.status, 200);
    let refused = served.turn("b").await;
    assert_eq!((refused.status, refused.at), (503, secs(60)));
    let said = "paused at its cap of 10 output tokens; its operator was asked (run_paused)";
    assert!(refused.text.contains(said), "{}", refused.text);
    let run = served.run();
    assert_eq!((run.turns(), run.snapshot().errors), (1, 0));
    assert_eq!(served.pause(), Some((Some(RunCap::OutputTokens), 0)));
    let gone = served.spawn("c").await;
    gone.abort();
    sleep(secs(1)).await;
    assert_eq!(run.turns(), 1);
    let held = [served.spawn("d").await, served.spawn("e").await];
    run.extend(RunExtension::new().turns(5)).unwrap();
    sleep(secs(1)).await;
    assert_eq!(served.upstream.calls(), 1, "more turns are no more tokens");
    run.extend(RunExtension::new().tokens(20)).unwrap();
    for turn in held {
        assert_eq!(turn.await.unwrap().status, 200);
    }
    assert_eq!(run.turns(), 3);
    assert_eq!(served.upstream.models(), ["a", "d", "e"]);
    assert_eq!(served.turn("f").await.status, 503);
    // As a person allows it who was asked by the watchdog.
    run.extend_tokens();
    assert_eq!(served.pause(), None);
    assert_eq!(served.turn("g").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn it_waits_at_its_cap_on_the_cost() {
    let served = Served::new(answer(1_000_000), |stack| {
        let tokens = TokenCapLayer::new(TokenCaps::new().max_cost(2.0));
        let candidate = Candidate::new("a").price(Price::per_million(0.0, 2.0));
        stack
            .token_caps(tokens.pause(PauseAtCap::new()))
            .fallback([candidate])
    });
    assert_eq!(served.turn("a").await.status, 200);
    let refused = served.turn("a").await;
    assert_eq!(refused.status, 503);
    assert!(
        refused.text.contains("paused at its cap on the cost, 2;"),
        "{}",
        refused.text
    );
    let run = served.run();
    run.extend(RunExtension::new().cost(0.5)).unwrap();
    assert_eq!(served.turn("a").await.status, 200);
    assert_eq!(served.pause(), None);
    assert_eq!(served.turn("a").await.status, 503);
    run.extend(RunExtension::new().cost(0.5)).unwrap();
    let json = serde_json::to_value(run.snapshot().token_caps).unwrap();
    assert_eq!(json["max_cost"], 4.5);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_exceeds_a_cap_ends_alone_and_the_run_is_paused() {
    let ten = chat(&"x".repeat(40));
    let script = Script::sse().data(PRELUDE).repeat(10, 1.0, ten);
    let script = script.data(FINISH).data(DONE);
    let served = pausing(script, TokenCaps::new().max_output_tokens(45)).streaming();
    let cut = served.turn("a").await;
    assert_eq!((cut.status, cut.at), (200, secs(5)));
    assert!(cut.text.contains("token_cap_reached"), "{}", cut.text);
    let run = served.run();
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 0));
    assert_eq!(run.last_end(), Some(TerminalReason::TokenCap));
    assert_eq!(served.pause(), Some((Some(RunCap::OutputTokens), 0)));
    assert_eq!(run.snapshot().errors, 0);
    let held = served.spawn("b").await;
    run.extend(RunExtension::new().tokens(200)).unwrap();
    let outcome = held.await.unwrap();
    assert!(outcome.text.ends_with(DONE), "{}", outcome.text);
    assert_eq!(run.turns(), 2);
}

/// A run of one call has nothing to go on with.
#[tokio::test(start_paused = true)]
async fn a_run_of_one_call_ends_at_its_cap() {
    let ten = chat(&"x".repeat(40));
    let script = Script::sse().data(PRELUDE).repeat(10, 1.0, ten);
    let served = pausing(script, TokenCaps::new().max_output_tokens(15));
    let cut = served.send(crate::support::prompt("a")).await;
    assert!(cut.text.contains("token_cap_reached"), "{}", cut.text);
    assert_eq!(cut.reason, Some(TerminalReason::TokenCap));
    assert_eq!(served.registry.open_runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_the_limit_of_its_pause_it_ends_as_its_cap_on_tokens() {
    let served = pausing(answer(10), TokenCaps::new().max_total_tokens(12));
    assert_eq!(served.turn("a").await.status, 200);
    assert_eq!(served.turn("b").await.status, 503);
    let run = served.run();
    let snapshot = run.wait(secs(100_000)).await.unwrap();
    assert_eq!(snapshot.reason, Some(TerminalReason::TokenCap));
    assert!(snapshot.message.unwrap().contains("12 tokens"));
}
