//! Notices before a cap.

use std::time::Duration;

use tokio::time::timeout;
use tower_agent::{
    Candidate, Run, RunEvent, RunEvents, RunExtension, RunNotice, TokenCapLayer, TokenCaps,
    TurnCapLayer,
    run::{Price, RunCap},
};

use super::turns;
use crate::support::{Place, Script, Stack, StackService, Upstream, prompt_json};

async fn turn(service: &StackService, run: &Run) {
    service.ask(run.attach(prompt_json("a"))).await.whole();
}

/// The caps of which the run is near, by the notices so far.
async fn near(events: &mut RunEvents) -> Vec<(RunCap, String)> {
    let mut near = Vec::new();
    while let Ok(Some(event)) = timeout(Duration::ZERO, events.next()).await {
        if let RunEvent::Notice { notice, .. } = event {
            let RunNotice::NearCap { cap, message } = notice else {
                panic!("{notice:?}");
            };
            near.push((cap, message));
        }
    }
    near
}

#[tokio::test(start_paused = true)]
async fn a_run_that_nears_its_cap_on_turns_is_told_once_for_each_cap() {
    let service = Stack::default()
        .layer(Place::TurnCap, TurnCapLayer::new(5).near_at(0.8))
        .build(&Upstream::script(Script::json().data("{}")));
    let run = Run::open();
    let mut events = run.subscribe();
    for _ in 0..3 {
        turn(&service, &run).await;
    }
    assert_eq!(near(&mut events).await, []);
    for _ in 0..2 {
        turn(&service, &run).await;
    }
    let told = |text: &str| vec![(RunCap::Turns, text.to_owned())];
    assert_eq!(
        near(&mut events).await,
        told("it has taken 4 of its 5 turns")
    );
    run.extend(turns(5)).unwrap();
    for _ in 0..2 {
        turn(&service, &run).await;
    }
    assert_eq!(near(&mut events).await, []);
    for _ in 0..2 {
        turn(&service, &run).await;
    }
    assert_eq!(
        near(&mut events).await,
        told("it has taken 8 of its 10 turns")
    );
}

/// covers: H8
#[tokio::test(start_paused = true)]
async fn a_run_that_nears_its_caps_on_tokens_is_told_of_each() {
    let caps = TokenCaps::new().max_output_tokens(10).max_cost(20.0);
    let answer = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":8}}"#;
    let candidate = Candidate::new("a").price(Price::per_million(0.0, 1_000_000.0));
    let service = Stack::default()
        .layer(Place::TokenCap, TokenCapLayer::new(caps).near_at(0.8))
        .fallback([candidate])
        .build(&Upstream::script(Script::json().data(answer)));
    let run = Run::open();
    let mut events = run.subscribe();
    turn(&service, &run).await;
    let output = (
        RunCap::OutputTokens,
        "it has used most of its 10 output tokens".to_owned(),
    );
    assert_eq!(near(&mut events).await, [output]);
    run.extend(RunExtension::new().tokens(100)).unwrap();
    turn(&service, &run).await;
    let cost = (
        RunCap::Cost,
        "it has used most of its cost of 20".to_owned(),
    );
    assert_eq!(near(&mut events).await, [cost]);
}
