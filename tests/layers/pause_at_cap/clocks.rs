//! The clocks of a paused run.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_agent::{
    AgentStack, HardCeilingLayer, Run, RunExtension, Scope, TerminalReason, TurnCapLayer,
    run::PauseAtCap, stack::Server,
};

use super::{Served, TURN_CAP, turns};
use crate::support::{Place, Script, Stack, Upstream, prompt_json, secs};

const DAY: Duration = secs(24 * 60 * 60);

fn pausing(stack: AgentStack<Server>) -> AgentStack<Server> {
    stack.max_turns(TurnCapLayer::new(1).pause(PauseAtCap::new()))
}

#[tokio::test(start_paused = true)]
async fn its_ceiling_stands_still_and_goes_on_with_it() {
    let script = Script::json().wait(50.0).data("{}");
    let served = Served::new(script, |stack| pausing(stack).ceiling(secs(100)));
    assert_eq!(served.turn("a").await.status, 200);
    sleep(secs(10)).await;
    // 60 s of its 100 s are over.
    assert_eq!(served.turn("b").await.status, 503);
    let run = served.run();
    assert_eq!(run.snapshot().deadlines.ceiling, Some(secs(40)));
    sleep(secs(10_000)).await;
    assert_eq!(run.check().map_err(|end| end.reason), Ok(()));
    assert_eq!(run.snapshot().deadlines.ceiling, Some(secs(40)));
    assert_eq!(served.turn("b").await.status, 503);
    run.extend(turns(1)).unwrap();
    assert_eq!(run.snapshot().deadlines.ceiling, Some(secs(40)));
    let outcome = served.turn("c").await;
    assert_eq!(outcome.header("x-terminal-reason"), Some("max_turn_time"));
    assert_eq!(outcome.at, secs(40));
}

#[tokio::test(start_paused = true)]
async fn a_call_in_flight_goes_on_beyond_the_ceiling_that_stands() {
    let script = Script::json().wait(500.0).data("{}");
    let served = Served::new(script, |stack| pausing(stack).ceiling(secs(100)));
    let under_way = served.spawn("a").await;
    let held = served.spawn("b").await;
    let outcome = held.await.unwrap();
    assert_eq!(outcome.status, 503);
    let outcome = under_way.await.unwrap();
    assert_eq!((outcome.status, outcome.at), (200, secs(500)));
    assert_eq!(served.run().terminal_reason(), None);
}

/// covers: H1
#[tokio::test(start_paused = true)]
async fn it_does_not_complete_for_being_idle() {
    let served = Served::new(Script::json().data("{}"), |stack| {
        pausing(stack).runs(|runs| runs.idle(secs(30)))
    });
    assert_eq!(served.turn("a").await.status, 200);
    assert_eq!(served.turn("b").await.status, 503);
    let run = served.run();
    sleep(secs(5_000)).await;
    assert_eq!(served.registry.open_runs(), 1);
    assert_eq!(run.terminal_reason(), None);
    run.extend(turns(1)).unwrap();
    assert_eq!(served.turn("c").await.status, 200);
    assert_eq!(run.turns(), 2, "it is the same run");
    sleep(secs(31)).await;
    assert_eq!(
        run.wait(secs(1)).await.unwrap().reason,
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn after_its_limit_it_ends_as_its_cap_says() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("a").await.status, 200);
    let held = served.spawn("b").await;
    let run = served.run();
    let start = Instant::now();
    assert_eq!(held.await.unwrap().status, 503);
    let snapshot = run.wait(DAY * 2).await.unwrap();
    assert_eq!(start.elapsed(), DAY - secs(1));
    assert_eq!(snapshot.reason, TURN_CAP);
    let end = run.terminated().unwrap();
    assert_eq!(end.at_turn(), Some(1));
    let refused = served.turn("c").await;
    assert_eq!(
        refused.header("x-terminal-reason"),
        Some("turn_cap_reached")
    );
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert!(run.extend(turns(1)).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_the_pause_ends_a_turn_that_is_held_longer() {
    let served = Served::new(Script::json().data("{}"), |stack| {
        let pause = PauseAtCap::new().wait(secs(60)).limit(secs(20));
        stack.max_turns(TurnCapLayer::new(1).pause(pause))
    });
    assert_eq!(served.turn("a").await.status, 200);
    let outcome = served.turn("b").await;
    assert_eq!(
        outcome.header("x-terminal-reason"),
        Some("turn_cap_reached")
    );
    assert_eq!(outcome.at, secs(20));
}

#[tokio::test(start_paused = true)]
async fn an_extension_of_its_time_counts_while_it_is_paused() {
    let upstream = Upstream::script(Script::json().wait(500.0).data("{}"));
    let layer = TurnCapLayer::new(1).pause(PauseAtCap::new().wait(secs(0)));
    let service = Stack::default()
        .layer(Place::TurnCap, layer)
        .layer(
            Place::Ceiling,
            HardCeilingLayer::new(secs(600)).scope(Scope::Run),
        )
        .build(&upstream);
    let run = Run::open();
    service.ask(run.attach(prompt_json("a"))).await.whole();
    assert!(super::is_paused(
        &service.ask(run.attach(prompt_json("a"))).await
    ));
    sleep(secs(1_000)).await;
    run.extend(RunExtension::new().time(secs(200))).unwrap();
    assert_eq!(run.snapshot().deadlines.ceiling, Some(secs(300)));
    assert!(run.snapshot().paused.is_some(), "more time is no more turn");
    run.extend(turns(1).time(secs(100))).unwrap();
    assert_eq!(run.snapshot().deadlines.ceiling, Some(secs(400)));
    let outcome = service.ask(run.attach(prompt_json("a"))).await;
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(outcome.at, secs(400));
}

/// Nobody polls a call when the pause begins and when it is over.
#[tokio::test(start_paused = true)]
async fn a_waiter_hears_the_ceiling_that_runs_again() {
    let script = Script::json().data("{}");
    let served = Served::new(script, |stack| pausing(stack).ceiling(secs(100)));
    assert_eq!(served.turn("a").await.status, 200);
    let run = served.run();
    let tool = run.tool("long");
    let working =
        tokio::spawn(async move { tool.call(std::future::pending::<Result<(), &str>>()).await });
    assert_eq!(served.turn("b").await.status, 503);
    let start = Instant::now();
    let waiter = tokio::spawn({
        let run = run.clone();
        async move { run.wait(secs(100_000)).await }
    });
    sleep(secs(1_000)).await;
    run.extend(turns(1)).unwrap();
    let snapshot = waiter.await.unwrap().unwrap();
    assert_eq!(snapshot.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(start.elapsed(), secs(1_100));
    assert!(working.await.unwrap().is_err());
}
