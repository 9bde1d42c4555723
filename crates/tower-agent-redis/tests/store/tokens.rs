//! A cap on tokens holds for what all replicas spend.

use std::time::Duration;

use tokio::time::sleep;
use tower_agent::TerminalReason;

use crate::{
    replica::{Settings, reason_of, replicas},
    server::Server,
    support::{DONE, FINISH, Outcome, PRELUDE, Script, chat},
};

/// A stream of a thousand tokens a second, by the estimate.
pub(crate) fn thousand_a_second() -> Script {
    let said = Script::sse().data(PRELUDE);
    said.repeat(10_000, 0.01, chat(&"x".repeat(40)))
}

/// An answer of which the upstream states forty tokens.
pub(crate) fn of_forty() -> Script {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":40}}"#;
    let said = Script::sse().data(PRELUDE).data(chat("a"));
    let usage = format!("data: {usage}\n\n");
    said.data(FINISH).data(usage).data(DONE)
}

pub(crate) fn tokens_of(outcome: &Outcome) -> usize {
    10 * outcome.text.matches("xxxx\"").count()
}

#[tokio::test]
async fn two_streams_at_once_spend_one_cap() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings::tokens(2005);
    let [one, two, three] = replicas(&server, &thousand_a_second(), settings).await;
    let first = one.spawn("r");
    sleep(Duration::from_millis(500)).await;
    let second = two.spawn("r");
    let outcomes = [first.await.unwrap(), second.await.unwrap()];
    let sum: usize = outcomes.iter().map(tokens_of).sum();
    println!("a cap of 2005 tokens, two streams of 1000 a second: {sum} tokens");
    // The others' last 250 ms at most, and as much again for a machine under load.
    assert!((2000..=2510).contains(&sum), "{sum}");
    for (replica, outcome) in [&one, &two].into_iter().zip(&outcomes) {
        assert_eq!(replica.ended("r").await, TerminalReason::TokenCap);
        assert_eq!(reason_of(outcome), Some(TerminalReason::TokenCap));
    }
    let refused = three.ask("r").await;
    assert_eq!(refused.status, 422);
    let cap = "its 2005 output tokens, estimated";
    assert!(refused.text.contains(cap), "{}", refused.text);
    assert_eq!(three.upstream.calls(), 0);
}

#[tokio::test]
async fn a_request_is_refused_for_what_others_have_spent() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &of_forty(), Settings::tokens(100)).await;
    for replica in [&one, &two, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    two.told().await;
    let refused = one.ask("r").await;
    assert_eq!(reason_of(&refused), Some(TerminalReason::TokenCap));
    assert_eq!(one.upstream.calls(), 1);
    assert_eq!(two.ended("r").await, TerminalReason::TokenCap);
}

#[tokio::test]
async fn what_a_replica_that_died_has_spent_counts() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &of_forty(), Settings::tokens(100)).await;
    assert_eq!(one.ask("r").await.status, 200);
    one.told().await;
    assert_eq!(two.ask("r").await.status, 200);
    drop(one);
    assert_eq!(two.ask("r").await.status, 200);
    two.told().await;
    let [three] = replicas(&server, &of_forty(), Settings::tokens(100)).await;
    let refused = three.ask("r").await;
    assert_eq!(reason_of(&refused), Some(TerminalReason::TokenCap));
}

#[tokio::test]
async fn a_store_that_restarts_empty_is_told_again_what_was_spent() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &of_forty(), Settings::tokens(100)).await;
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
        replica.told().await;
    }
    let mut other = server.connection().await;
    redis::cmd("FLUSHALL").exec_async(&mut other).await.unwrap();
    // The request tells what its own replica has spent before.
    assert_eq!(two.ask("r").await.status, 200);
    two.told().await;
    let refused = one.ask("r").await;
    assert_eq!(reason_of(&refused), Some(TerminalReason::TokenCap));
    assert_eq!((one.upstream.calls(), two.upstream.calls()), (1, 2));
}
