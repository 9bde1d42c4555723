//! Sub-agents of a paused run, and a sub-agent that is paused.

use tokio::time::sleep;
use tower_agent::{
    HardCeilingLayer, Run, Scope, TurnCapLayer, layers::run::RequestRun, run::PauseAtCap,
};

use super::{Served, turns};
use crate::support::{Outcome, Place, Script, Stack, StackService, Upstream, prompt_json, secs};

fn capped(turns: u32) -> (StackService, Upstream) {
    let upstream = Upstream::script(Script::json().data("{}"));
    let layer = TurnCapLayer::new(turns).pause(PauseAtCap::new());
    let ceiling = HardCeilingLayer::new(secs(100)).scope(Scope::Run);
    let stack = Stack::default()
        .layer(Place::TurnCap, layer)
        .layer(Place::Ceiling, ceiling);
    (stack.build(&upstream), upstream)
}

async fn ask(service: &StackService, run: &Run) -> Result<(), String> {
    said(&service.ask(run.attach(prompt_json("a"))).await)
}

fn said(outcome: &Outcome) -> Result<(), String> {
    let error = outcome.error.as_ref();
    error.map_or(Ok(()), |error| Err(error.to_string()))
}

#[tokio::test(start_paused = true)]
async fn they_are_held_with_the_run_and_go_on_with_it() {
    let (service, upstream) = capped(1);
    let run = Run::open();
    let before = run.child();
    ask(&service, &run).await.unwrap();
    let paused = "the run is paused at its cap of 1 turn; its operator was asked";
    assert_eq!(ask(&service, &run).await.unwrap_err(), paused);
    let during = run.child();
    let above = "the run of which this is a sub-agent is paused at its cap of 1 turn; its operator \
                 was asked";
    for child in [&before, &during, &before.child()] {
        assert_eq!(ask(&service, child).await.unwrap_err(), above);
        assert_eq!(child.turns(), 0);
    }
    ask(&service, &run.child_detached()).await.unwrap();
    // Neither their ceilings nor its own pass.
    sleep(secs(10_000)).await;
    assert_eq!(ask(&service, &before).await.unwrap_err(), above);
    let held = tokio::spawn({
        let (service, request) = (service.clone(), during.attach(prompt_json("a")));
        async move { service.ask(request).await }
    });
    sleep(secs(1)).await;
    assert_eq!(upstream.calls(), 2);
    run.extend(turns(1)).unwrap();
    said(&held.await.unwrap()).unwrap();
    ask(&service, &before).await.unwrap();
    assert_eq!(
        (before.turns(), during.turns(), upstream.calls()),
        (1, 1, 4)
    );
    let left = |run: &Run| run.snapshot().deadlines.ceiling.unwrap();
    assert!(left(&before) > secs(30), "{:?}", left(&before));
}

#[tokio::test(start_paused = true)]
async fn a_paused_sub_agent_holds_no_turn_of_its_parent() {
    let (service, upstream) = capped(1);
    let run = Run::open();
    let child = run.child();
    ask(&service, &child).await.unwrap();
    assert!(ask(&service, &child).await.is_err());
    assert!(child.snapshot().paused.is_some());
    assert_eq!(run.snapshot().paused, None);
    ask(&service, &run).await.unwrap();
    assert_eq!(upstream.calls(), 2);
}

/// covers: H11
#[tokio::test(start_paused = true)]
async fn a_sub_agent_that_a_request_opens_is_held_too() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("a").await.status, 200);
    assert_eq!(served.turn("b").await.status, 503);
    let sub_agent = || {
        let mut request = prompt_json("a");
        let run = RequestRun::new("child".parse().unwrap()).child_of("r".parse().unwrap());
        request.extensions_mut().insert(run);
        request
    };
    let outcome = served.send(sub_agent()).await;
    assert_eq!(outcome.status, 503);
    assert!(
        outcome.text.contains("of which this is a sub-agent"),
        "{}",
        outcome.text
    );
    served.run().extend(turns(1)).unwrap();
    assert_eq!(served.send(sub_agent()).await.status, 200);
}
