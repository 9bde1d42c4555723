//! What a run's diagnostics say.
//!
//! covers: E3

use std::time::Duration;

use tokio::time::{advance, sleep};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    AgentStack, Candidate, FailureClass, HardCeilingLayer, ModelFallbackLayer, NodeKind, Owner,
    Run, RunEvent, RunEvents, RunLayer, RunRegistry, RunSnapshot, Scope, Step, StepKind,
    StepTimeoutLayer, TerminalReason, TokenCaps,
};

use crate::support::{
    DONE, Outcome, PING, PRELUDE, ReadExt, Script, Upstream, call_of, chat, failure, poll_body,
    poll_once, prompt, request_of, secs, with_header,
};

fn last_change(run: &Run) -> Option<String> {
    let progress = run.snapshot().progress;
    progress.last_change.map(|step| step.to_string())
}

/// covers: A8
#[tokio::test(start_paused = true)]
async fn a_run_is_alive_until_twice_the_interval_after_its_last_heartbeat() {
    let run = Run::open();
    assert!(run.snapshot().alive, "it has just been opened");
    advance(secs(15)).await;
    run.heartbeat();

    advance(Duration::from_millis(19_999)).await;
    assert!(run.snapshot().alive);
    advance(Duration::from_millis(1)).await;
    assert!(!run.snapshot().alive);

    run.heartbeat();
    assert!(run.snapshot().alive);
    run.end(TerminalReason::Aborted);
    assert!(!run.snapshot().alive, "it is over");
}

/// covers: A8
#[tokio::test(start_paused = true)]
async fn an_open_connection_is_life_until_it_has_shown_a_heartbeat() {
    let run = Run::open();
    let script = Script::before_head().wait(60.0).head("text/event-stream");
    let upstream = Upstream::script(script.data(PRELUDE).wait(60.0).data(PING).never());
    let mut layer = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(600)))
        .service(upstream);
    let (request, call) = call_of(&run);
    let stream = async {
        let answer = tower::Service::call(&mut layer, request).await.unwrap();
        answer.into_body().read().await
    };
    let look = async {
        for seconds in [59, 60, 10] {
            sleep(secs(seconds)).await;
            assert!(run.snapshot().alive && call.snapshot().alive);
        }
        assert_eq!(run.snapshot().progress.heartbeats, 1);
        sleep(secs(12)).await;
        assert!(!run.snapshot().alive, "its heartbeats stopped");
        let tool = run.tool("search").watch(sleep(secs(60)));
        assert!(run.snapshot().alive, "a tool is under way");
        assert!(!call.snapshot().alive);
        drop(tool);
        assert!(run.snapshot().alive, "its end was a sign of life");
        sleep(secs(20)).await;
        assert!(!run.snapshot().alive);
        run.end(TerminalReason::Aborted);
    };

    tokio::join!(stream, look);
}

/// covers: A8
#[tokio::test(start_paused = true)]
async fn the_interval_of_a_local_model_is_that_of_its_run() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(PING).never());
    let layer = StepTimeoutLayer::local().heartbeat(secs(30));
    let answer = layer.layer(upstream).oneshot(request_of(&run)).await;
    let mut body = answer.unwrap().into_body();
    body.next().await.unwrap().unwrap();
    assert!(poll_body(&mut body).is_pending());

    advance(secs(59)).await;
    assert!(run.snapshot().alive);
    advance(secs(1)).await;
    assert!(!run.snapshot().alive);
}

#[tokio::test(start_paused = true)]
async fn the_last_change_is_what_moved_the_run() {
    let run = Run::open();
    assert_eq!(last_change(&run), None);
    advance(secs(1)).await;

    run.state_change("a file was written");
    assert_eq!(
        last_change(&run).unwrap(),
        "state_change (a file was written)"
    );
    advance(secs(1)).await;
    run.heartbeat();

    let upstream = Upstream::script(Script::sse().data(chat("a")).wait(5.0).data(DONE));
    let layer = StepTimeoutLayer::new(secs(60));
    let (request, _) = call_of(&run);
    let answer = layer.layer(upstream).oneshot(request).await.unwrap();
    assert_eq!(
        last_change(&run).unwrap(),
        "state_change (a file was written)",
        "that a call began is none"
    );
    let mut body = answer.into_body();
    body.next().await.unwrap().unwrap();
    assert!(poll_body(&mut body).is_pending());
    assert_eq!(last_change(&run).unwrap(), "content_delta");
    assert_eq!(body.read().await.whole(), DONE);
    assert_eq!(last_change(&run).unwrap(), "llm_response");

    let mut tool = Box::pin(run.tool("search").watch(sleep(secs(1))));
    assert!(poll_once(&mut tool).is_pending());
    assert_eq!(last_change(&run).unwrap(), "llm_response");
    tool.await.unwrap();
    assert_eq!(last_change(&run).unwrap(), "tool_complete (search)");
    let progress = run.snapshot().progress;
    assert_eq!((progress.state_changes, progress.heartbeats), (3, 1));
    assert_eq!(progress.last_change_ago, Some(secs(0)));

    run.state_change("moved");
    let begun = run.tool("search").watch(sleep(secs(1)));
    assert_eq!(last_change(&run).unwrap(), "state_change (moved)");
    let last_step = run.snapshot().last_step.unwrap();
    assert_eq!(last_step.to_string(), "tool_execution (search)");
    begun.await.unwrap();

    run.step(Step::new(StepKind::ToolExecution));
    assert_eq!(last_change(&run).unwrap(), "tool_execution");
    assert_eq!(
        run.snapshot().last_step.unwrap().to_string(),
        "tool_complete (search)",
        "one that says nothing leaves one that did"
    );
}

#[tokio::test(start_paused = true)]
async fn each_deadline_is_there_as_the_time_that_is_left() {
    let run = Run::open();
    let upstream = Upstream::script(Script::before_head().never());
    let stack = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(600)).scope(Scope::Run))
        .layer(HardCeilingLayer::new(secs(700)).timeout(Some(secs(300))))
        .layer(StepTimeoutLayer::new(secs(120)))
        .service(upstream);
    let left = |run: &Run| {
        let deadlines = run.snapshot().deadlines;
        let secs = |left: Option<Duration>| left.map(|left| left.as_secs());
        [deadlines.ceiling, deadlines.timeout, deadlines.step].map(secs)
    };
    assert_eq!(left(&run), [None; 3]);
    advance(secs(10)).await;
    let (request, call) = call_of(&run);
    let mut future = Box::pin(stack.oneshot(request));
    assert!(poll_once(&mut future).is_pending());

    advance(secs(20)).await;
    assert_eq!(left(&call), [Some(570), Some(280), Some(100)]);
    assert_eq!(
        left(&run),
        [Some(570), None, None],
        "those of a call are its own"
    );
    assert_eq!(call.snapshot().time_left, Some(secs(280)));

    let pause = run.pause();
    assert_eq!(left(&call), [Some(570), Some(280), None]);
    drop(pause);
    call.state_change("x");
    assert_eq!(left(&call), [Some(570), Some(280), Some(120)]);

    let json = serde_json::to_value(call.snapshot()).unwrap();
    assert_eq!(json["deadlines"]["ceiling_ms"], 570_000);
    assert_eq!(json["deadlines"]["step_ms"], 120_000);
    assert_eq!(json["alive"], true);
    let changed = serde_json::json!({"kind": "state_change", "description": "x"});
    assert_eq!(json["progress"]["last_change"], changed);

    run.end(TerminalReason::Aborted);
    assert_eq!(left(&call), [None; 3]);
}

/// The snapshot in the event of a run's end.
async fn at_end(events: &mut RunEvents) -> RunSnapshot {
    loop {
        match events.next().await.unwrap() {
            RunEvent::Ended { snapshot, .. } => return RunSnapshot::clone(&snapshot),
            _ => continue,
        }
    }
}

/// covers: C3
#[tokio::test(start_paused = true)]
async fn the_call_that_ends_its_run_is_not_in_flight_at_the_end() {
    let served = Script::sse().data(chat("a")).data(DONE);
    for (script, reason) in [
        (served, TerminalReason::Completed),
        (failure(500), TerminalReason::Failed(FailureClass::Server)),
    ] {
        let registry = RunRegistry::new();
        let mut events = registry.subscribe();
        let service = ServiceBuilder::new()
            .layer(RunLayer::new(registry.clone()))
            .layer(StepTimeoutLayer::new(secs(60)))
            .layer(ModelFallbackLayer::new([Candidate::new("m")]))
            .service(Upstream::script(script));
        let answer = service.oneshot(prompt("m")).await.unwrap();
        let mut body = answer.into_body();
        while body.next().await.is_some() {}

        let snapshot = at_end(&mut events).await;
        assert_eq!(snapshot.reason, Some(reason));
        assert_eq!(snapshot.in_flight, 0, "{:?}", snapshot.reason);
        assert_eq!(registry.list()[0].in_flight, 0);
    }
}

/// An end from outside does not stop a tool at once, so the tool is still in flight then.
#[tokio::test(start_paused = true)]
async fn work_that_a_completion_cuts_is_in_flight_until_it_is_dropped() {
    let run = Run::open();
    let mut events = run.subscribe();
    let mut tool = Box::pin(run.tool("search").watch(std::future::pending::<()>()));
    assert!(futures_util::poll!(&mut tool).is_pending());
    run.end(TerminalReason::Completed);

    assert_eq!(at_end(&mut events).await.in_flight, 1);
    drop(tool);
    assert_eq!(run.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_shows_whose_it_is_what_it_asks_and_its_caps() {
    let upstream = Upstream::script(Script::sse().wait(60.0).data(DONE));
    let registry = RunRegistry::new();
    let caps = TokenCaps::new().max_output_tokens(500).max_cost(0.1);
    let stack = AgentStack::server(&registry)
        .max_turns(7)
        .token_caps(caps)
        .fallback([Candidate::new("large")]);
    let service = stack.service(upstream);
    let request = with_header(prompt("a"), "x-run-id", "r");
    let call = tokio::spawn(async move { Outcome::of(service.oneshot(request)).await });
    sleep(secs(1)).await;
    let run = &registry.find(&"r".parse().unwrap())[0];
    let shown = run.snapshot();
    assert_eq!(shown.owner, Some(Owner::anonymous()));
    assert_eq!(shown.candidate.as_deref(), Some("large"));
    assert_eq!(
        (shown.attempts, shown.turns, shown.max_turns),
        (1, 1, Some(7))
    );
    assert_eq!(shown.token_caps, Some(caps));
    let json = serde_json::to_value(&shown).unwrap();
    assert_eq!(json["owner"], "anonymous");
    assert_eq!(
        json["token_caps"],
        serde_json::json!({ "max_output_tokens": 500, "max_cost": 0.1 })
    );
    let work = run.work();
    let kinds: Vec<_> = work
        .iter()
        .map(|it| (it.kind, it.candidate.as_deref()))
        .collect();
    let large = Some("large");
    // The fallback's attempt has one of the retries in it.
    let (call_of, attempt) = ((NodeKind::Call, large), (NodeKind::Attempt, large));
    assert_eq!(kinds, [call_of, attempt, attempt]);
    assert_eq!(work[2].elapsed, secs(1));
    assert_eq!(call.await.unwrap().status, 200);
    assert!(run.work().is_empty());
    let after = run.snapshot();
    assert_eq!(
        (after.candidate, after.attempts),
        (None, 0),
        "none is in flight"
    );
    assert_eq!(after.max_turns, Some(7));
}
