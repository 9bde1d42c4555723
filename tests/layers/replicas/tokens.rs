//! A cap on tokens holds for what all replicas spend.

use tower_agent::{TokenCaps, run::TokensSpent};

use super::*;

const CAPPED: Option<TerminalReason> = Some(TerminalReason::TokenCap);

fn output(tokens: u32) -> TokenCaps {
    TokenCaps::new().max_output_tokens(tokens)
}

/// A stream of ten tokens a second, by the estimate.
pub(super) fn ten_a_second() -> Script {
    let said = Script::sse().data(PRELUDE);
    said.repeat(10_000, 1.0, chat(&"x".repeat(40)))
}

/// An answer of which the upstream states so many tokens.
pub(super) fn of_tokens(output: u32) -> Script {
    let usage = format!(r#"{{"prompt_tokens":7,"completion_tokens":{output}}}"#);
    let usage = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
    let said = Script::sse().data(PRELUDE).data(chat("a"));
    said.data(FINISH).data(usage).data(DONE)
}

pub(super) fn frames(outcome: &Outcome) -> usize {
    outcome.text.matches("xxxx\"").count()
}

fn spent(replica: &Replica, run: &str) -> TokensSpent {
    replica.run(run).unwrap().tokens_spent().unwrap()
}

#[tokio::test(start_paused = true)]
async fn two_streams_at_once_spend_one_cap() {
    let [one, two, three] = replicas(&ten_a_second(), |stack| stack.token_caps(output(205)));
    let first = spawn(&one, "r");
    sleep(Duration::from_millis(5500)).await;
    // Five frames there, then two a second.
    let outcomes = join_all([first, spawn(&two, "r")]).await;
    let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    heard().await;
    let sum: usize = outcomes.iter().map(frames).sum();
    assert!((20..=22).contains(&sum), "{sum}");
    for (replica, outcome) in [&one, &two].into_iter().zip(&outcomes) {
        assert_eq!(replica.reason("r"), CAPPED);
        assert_eq!(outcome.reason, CAPPED);
        assert!(replica.upstream.is_dropped());
    }
    let refused = three.ask("r").await;
    assert_eq!(refused.status, 422);
    assert!(
        refused.text.contains("its 205 output tokens, estimated"),
        "{}",
        refused.text
    );
    assert_eq!(three.upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_refused_for_what_others_have_spent() {
    let [one, two] = replicas(&of_tokens(40), |stack| stack.token_caps(output(100)));
    let statuses = [one.ask("r").await, two.ask("r").await, two.ask("r").await];
    assert_eq!(statuses.map(|it| it.status), [200; 3]);
    heard().await;
    assert_eq!(spent(&two, "r").output_tokens, 120);
    // This one has spent 40, and has told nothing since the others spent 80.
    let refused = one.ask("r").await;
    assert_eq!(refused.status, 422);
    assert_eq!(
        refused.header("x-terminal-reason"),
        Some("token_cap_reached")
    );
    assert!(
        refused.text.contains("its 100 output tokens"),
        "{}",
        refused.text
    );
    assert_eq!(one.upstream.calls(), 1);
    heard().await;
    assert_eq!(two.reason("r"), CAPPED);
    assert_eq!(spent(&two, "r").output_tokens, 120);
}

#[tokio::test(start_paused = true)]
async fn what_was_spent_by_a_replica_that_died_or_was_cut_off_counts() {
    let store = InMemoryRunStore::new();
    let set = |stack: AgentStack<Server>| stack.token_caps(output(100));
    let one = Replica::new(&store, of_tokens(40), set);
    let two = Replica::new(&store, of_tokens(40), set);
    assert_eq!(one.ask("r").await.status, 200);
    assert_eq!(two.ask("r").await.status, 200);
    drop(one);
    two.store.cut();
    assert_eq!(two.ask("r").await.status, 200, "it knows of 40 elsewhere");
    assert_eq!(two.ask("r").await.status, 422);

    let three = Replica::new(&store, of_tokens(40), set);
    assert_eq!(three.ask("r").await.status, 200, "the store knows of 80");
    two.store.mend();
    heard().await;
    assert_eq!(three.reason("r"), CAPPED);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_nothing_caps_asks_and_tells_as_before() {
    let [one, two] = replicas(&of_tokens(40), |stack| stack.always_count());
    for _ in 0..3 {
        assert_eq!(one.ask("r").await.status, 200);
        assert_eq!(two.ask("r").await.status, 200);
    }
    heard().await;
    assert_eq!(one.store.questions(), 1);
    assert_eq!(two.store.questions(), 1);
    assert_eq!(spent(&two, "r").output_tokens, 240);

    let [capped] = replicas(&of_tokens(40), |stack| stack.token_caps(output(1000)));
    capped.ask("r").await;
    capped.ask("r").await;
    assert_eq!(capped.store.questions(), 2, "one a request");
}

#[tokio::test(start_paused = true)]
async fn the_estimate_of_a_stream_gives_way_to_what_its_upstream_states() {
    let said = Script::sse().data(PRELUDE);
    let said = said.repeat(9, 1.0, chat(&"x".repeat(40)));
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}"#;
    let script = said.data(FINISH).data(format!("data: {usage}\n\n"));
    let [one, two] = replicas(&script.data(DONE), |stack| stack.token_caps(output(100)));
    assert_eq!(one.ask("r").await.status, 200);
    assert_eq!(two.ask("r").await.status, 200, "9 and 90 are below the cap");
    heard().await;
    assert_eq!(spent(&two, "r").output_tokens, 18);
}
