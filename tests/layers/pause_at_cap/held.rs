//! Turns that wait, and go on, leave or end.

use tokio::time::{Instant, sleep};
use tower_agent::{
    OwnerCaps, Run, RunEvent, RunNotice, TerminalReason, TurnCapLayer,
    run::{PauseAtCap, RunCap},
};

use super::{Served, is_paused, turns};
use crate::support::{Script, Stack, Upstream, call_of, prompt_json, request_of, secs};

const HELD: Option<(Option<RunCap>, usize)> = Some((Some(RunCap::Turns), 1));

#[tokio::test(start_paused = true)]
async fn a_turn_at_the_cap_waits_for_an_extension_and_asks_the_upstream_once() {
    let served = Served::pausing(2);
    let mut events = served.registry.subscribe();
    for _ in 0..2 {
        assert_eq!(served.turn("a").await.status, 200);
    }
    let held = served.spawn("b").await;
    sleep(secs(40)).await;
    assert_eq!((served.pause(), served.upstream.calls()), (HELD, 2));
    let run = served.run();
    assert_eq!((run.turns(), run.in_flight()), (2, 1));
    run.extend(turns(3)).unwrap();

    let outcome = held.await.unwrap();
    assert_eq!((outcome.status, outcome.at), (200, secs(41)));
    assert_eq!(outcome.header("x-run-id"), Some("r"));
    assert_eq!((served.upstream.calls(), run.turns()), (3, 3));
    assert_eq!((served.pause(), run.terminal_reason()), (None, None));
    assert_eq!(run.snapshot().max_turns, Some(5));
    let mut told = Vec::new();
    while told.len() < 3 {
        if let Some(RunEvent::Notice { notice, .. }) = events.next().await {
            told.push(notice);
        }
    }
    let message = "it is paused at its cap of 2 turns".to_owned();
    let cap = Some(RunCap::Turns);
    assert_eq!(
        told[1..],
        [RunNotice::Paused { cap, message }, RunNotice::Resumed]
    );
    // At its cap again, it pauses again.
    for _ in 0..2 {
        assert_eq!(served.turn("c").await.status, 200);
    }
    assert!(is_paused(&served.turn("d").await));
    let json = serde_json::to_value(run.snapshot().paused).unwrap();
    assert_eq!(json["cap"], "turns");
    assert_eq!(
        (json["held"].as_u64(), json["since_ms"].as_u64()),
        (Some(0), Some(60_000))
    );
}

#[tokio::test(start_paused = true)]
async fn held_turns_go_on_in_the_order_in_which_they_came() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("first").await.status, 200);
    let mut held = Vec::new();
    for model in ["a", "b", "c"] {
        held.push(served.spawn(model).await);
    }
    assert_eq!(served.pause(), Some((Some(RunCap::Turns), 3)));
    served.run().extend(turns(2)).unwrap();
    // It comes before the held ones have run, and goes behind them.
    let late = served.turn("d").await;
    assert!(is_paused(&late));

    let mut statuses = Vec::new();
    for turn in held {
        statuses.push(turn.await.unwrap().status);
    }
    assert_eq!(statuses, [200, 200, 503]);
    assert_eq!(served.upstream.models(), ["first", "a", "b"]);
    assert_eq!(served.run().turns(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_leaves_while_it_is_held_gives_its_place_to_the_next() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("first").await.status, 200);
    let gone = served.spawn("gone").await;
    let next = served.spawn("next").await;
    gone.abort();
    sleep(secs(1)).await;
    assert_eq!(served.pause(), HELD);
    let run = served.run();
    assert_eq!((run.in_flight(), run.turns()), (1, 1));
    run.extend(turns(1)).unwrap();
    assert_eq!(next.await.unwrap().status, 200);
    assert_eq!(served.upstream.models(), ["first", "next"]);
    assert_eq!(run.terminal_reason(), None, "it stays open");
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_the_held_turns_with_the_run() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("first").await.status, 200);
    let held = [served.spawn("a").await, served.spawn("b").await];
    let start = Instant::now();
    served.run().end(TerminalReason::Aborted);
    for turn in held {
        let outcome = turn.await.unwrap();
        assert_eq!(outcome.header("x-terminal-reason"), Some("aborted"));
    }
    assert_eq!(start.elapsed(), secs(0));
    let snapshot = served.run().snapshot();
    assert_eq!((snapshot.paused, snapshot.in_flight), (None, 0));
    assert_eq!(served.upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_a_paused_run_and_its_held_turns_at_once() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("first").await.status, 200);
    let held = served.spawn("a").await;
    let run = served.run();
    let start = Instant::now();
    served.registry.drain(secs(600)).await;
    let outcome = held.await.unwrap();
    assert_eq!(outcome.header("x-terminal-reason"), Some("shutdown"));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Shutdown));
    assert_eq!(start.elapsed(), secs(0));
}

/// A program without a registry and without a call of its own.
#[tokio::test(start_paused = true)]
async fn a_request_that_carries_its_run_is_held_too_and_a_run_of_one_call_ends() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let layer = TurnCapLayer::new(1).pause(PauseAtCap::new());
    let stack = Stack::default().layer(crate::support::Place::TurnCap, layer);
    let service = stack.build(&upstream);
    let run = Run::open();
    service.ask(request_of(&run)).await.whole();
    let held = tokio::spawn({
        let (service, request) = (service.clone(), request_of(&run));
        async move { service.ask(request).await }
    });
    sleep(secs(1)).await;
    let (request, call) = call_of(&run);
    let attached = tokio::spawn({
        let service = service.clone();
        async move { service.ask(request).await }
    });
    sleep(secs(1)).await;
    assert_eq!((run.turns(), run.in_flight(), upstream.calls()), (1, 2, 1));
    run.extend(turns(2)).unwrap();
    held.await.unwrap().whole();
    attached.await.unwrap().whole();
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!((run.turns(), run.in_flight(), upstream.calls()), (3, 0, 3));
    // A request without a run is one.
    service.ask(prompt_json("a")).await.whole();
}

#[tokio::test(start_paused = true)]
async fn a_layer_with_a_higher_cap_lets_the_run_go_on() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let stack = |turns| {
        let layer = TurnCapLayer::new(turns).pause(PauseAtCap::new());
        let stack = Stack::default().layer(crate::support::Place::TurnCap, layer);
        stack.build(&upstream)
    };
    let run = Run::open();
    let (low, high) = (stack(1), stack(2));
    low.ask(run.attach(prompt_json("a"))).await.whole();
    assert!(is_paused(&low.ask(run.attach(prompt_json("a"))).await));
    assert!(run.snapshot().paused.is_some());
    high.ask(run.attach(prompt_json("a"))).await.whole();
    assert_eq!((run.snapshot().paused, run.turns()), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_nothing_refuses_at_once() {
    let served = Served::new(Script::json().data("{}"), |stack| {
        stack.max_turns(TurnCapLayer::new(1).pause(PauseAtCap::new().wait(secs(0))))
    });
    assert_eq!(served.turn("a").await.status, 200);
    let refused = served.turn("b").await;
    assert_eq!((refused.status, refused.at), (503, secs(0)));
}

#[tokio::test(start_paused = true)]
async fn a_held_turn_is_no_turn_of_its_owner_before_it_goes_on() {
    let served = Served::new(Script::json().data("{}"), |stack| {
        let layer = TurnCapLayer::new(1).pause(PauseAtCap::new());
        stack
            .max_turns(layer)
            .owner_caps(OwnerCaps::new().turns_per_hour(3))
    });
    assert_eq!(served.turn("a").await.status, 200);
    for _ in 0..5 {
        assert_eq!(served.turn("b").await.status, 503);
    }
    let gone = served.spawn("c").await;
    gone.abort();
    sleep(secs(1)).await;
    served.run().extend(turns(5)).unwrap();
    for status in [200, 200, 422] {
        assert_eq!(served.turn("d").await.status, status);
    }
}
