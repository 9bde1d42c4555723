//! The one call that a run may make after its cap.
//!
//! covers: D8

use futures_util::future::pending;
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, RetryBudgetLayer, Run, RunRegistry, Scope, StepTimeoutLayer, TerminalReason,
    TokenCapLayer, TokenCaps, ToolError, TurnCapLayer,
};

use super::{CAPPED, end_of, turn, upstream};
use crate::support::{
    Outcome, Upstream, failure, healthy, no_delay, poll_once, prompt, reason_of, request,
    request_of, secs,
};

const LIMIT: std::time::Duration = secs(60);

/// A run at its cap, held open for its last call.
async fn capped() -> Run {
    let upstream = upstream();
    let service = TurnCapLayer::new(1).final_call(LIMIT).layer(upstream);
    let run = Run::open();
    turn(&service, run.attach(request())).await.unwrap();
    let error = turn(&service, run.attach(request())).await.unwrap_err();
    assert_eq!(end_of(&error).at_turn(), Some(1));
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 0));
    run
}

#[tokio::test(start_paused = true)]
async fn it_and_its_attempts_are_admitted_and_then_the_run_is_capped() {
    let run = capped().await;
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = ServiceBuilder::new()
        .layer(TurnCapLayer::new(1).final_call(LIMIT))
        .layer(StepTimeoutLayer::new(secs(10)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(TurnCapLayer::new(1))
        .service(upstream.clone());

    let last = run.final_call(prompt("m")).unwrap();
    turn(&service, last).await.unwrap();

    assert_eq!(upstream.calls(), 2, "its second attempt served");
    assert_eq!((run.terminal_reason(), run.turns()), (CAPPED, 1));
    assert_eq!(run.terminated().unwrap().at_turn(), Some(1));
    assert!(
        run.terminated()
            .unwrap()
            .message()
            .contains("its limit of 1 turn (")
    );
    assert_eq!(run.settled().await, TerminalReason::TurnCap);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_starts_meanwhile() {
    let run = capped().await;
    let upstream = upstream();
    let service = TurnCapLayer::new(1)
        .final_call(LIMIT)
        .layer(upstream.clone());
    let last = run.final_call(request()).unwrap();
    let call = last.extensions().get::<Run>().unwrap().clone();

    assert!(run.final_call(request()).is_none(), "once");
    for (of, next) in [
        ("run", run.attach(request())),
        ("call", call.attach(request())),
    ] {
        let error = turn(&service, next).await.unwrap_err();
        assert_eq!(reason_of(&error), CAPPED, "{of}");
    }
    let error = turn(&service, request_of(&run)).await.unwrap_err();
    assert_eq!(reason_of(&error), CAPPED, "the run itself");
    for of in [&run, &call] {
        let tool = of.tool("search").call(async { Ok::<_, &str>(()) }).await;
        assert!(matches!(tool, Err(ToolError::Terminated(end)) if end.at_turn() == Some(1)));
        assert_eq!(of.child().terminal_reason(), CAPPED);
    }
    assert_eq!((upstream.calls(), run.terminal_reason()), (0, None));
    assert!(run.check().is_err());

    turn(&service, last).await.unwrap();
    assert_eq!((upstream.calls(), run.terminal_reason()), (1, CAPPED));
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_goes_on_until_the_limit() {
    let run = Run::open();
    let upstream = upstream();
    let service = TurnCapLayer::new(1).final_call(LIMIT).layer(upstream);
    turn(&service, run.attach(request())).await.unwrap();
    let mut tool = Box::pin(run.tool("build").watch(pending::<()>()));
    assert!(poll_once(&mut tool).is_pending());
    turn(&service, run.attach(request())).await.unwrap_err();
    drop(run.final_call(request()).unwrap());
    assert_eq!(run.terminal_reason(), None, "the tool works on it");

    let start = Instant::now();
    let end = tool.await.unwrap_err();

    assert_eq!(
        (end.reason.clone(), start.elapsed()),
        (TerminalReason::TurnCap, LIMIT)
    );
    assert_eq!(run.settled().await, TerminalReason::TurnCap);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_never_made_ends_at_the_limit_by_whoever_looks() {
    let run = capped().await;
    advance(LIMIT - secs(1)).await;
    assert_eq!(run.check().unwrap_err().reason, TerminalReason::TurnCap);
    assert_eq!(run.terminal_reason(), None);
    advance(secs(1)).await;

    assert!(run.final_call(request()).is_none(), "too late");

    assert_eq!((run.terminal_reason(), run.in_flight()), (CAPPED, 0));
    assert_eq!(run.settled().await, TerminalReason::TurnCap);
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_too_long_is_cut_with_the_run() {
    let run = capped().await;
    let upstream = Upstream::script(crate::support::Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(TurnCapLayer::new(1).final_call(LIMIT))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());

    let last = run.final_call(prompt("m")).unwrap();
    let outcome = Outcome::of(service.oneshot(last)).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!((outcome.reason, outcome.at), (CAPPED, LIMIT));
    assert_eq!((run.terminal_reason(), upstream.calls()), (CAPPED, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_under_way_is_cut_at_the_limit_too() {
    let run = Run::open();
    let upstream = Upstream::script(crate::support::Script::sse().never());
    let service = TurnCapLayer::new(1)
        .final_call(LIMIT)
        .layer(upstream.clone());
    let slow = tokio::spawn({
        let (service, request) = (service.clone(), run.attach(request()));
        async move { turn(&service, request).await }
    });
    tokio::task::yield_now().await;
    turn(&service, run.attach(request())).await.unwrap_err();
    let start = Instant::now();

    let error = slow.await.unwrap().unwrap_err();

    assert_eq!((reason_of(&error), start.elapsed()), (CAPPED, LIMIT));
    assert_eq!(upstream.dropped().reason, CAPPED);
    assert_eq!(run.settled().await, TerminalReason::TurnCap);
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_ends_it_before_and_in_the_same_instant() {
    for ceiling in [secs(30), LIMIT] {
        let run = Run::open();
        let upstream = upstream();
        let service = ServiceBuilder::new()
            .layer(TurnCapLayer::new(1).final_call(LIMIT))
            .layer(HardCeilingLayer::new(ceiling).scope(Scope::Run))
            .service(upstream);
        turn(&service, run.attach(request())).await.unwrap();
        turn(&service, run.attach(request())).await.unwrap_err();
        let last = run.final_call(request()).unwrap();
        advance(ceiling).await;

        let error = turn(&service, last).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
        assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
        assert_eq!(run.settled().await, TerminalReason::HardCeiling);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_unsent_was_the_last_call() {
    let run = capped().await;
    drop(run.final_call(request()).unwrap());
    assert_eq!((run.terminal_reason(), run.in_flight()), (CAPPED, 0));
    assert!(run.final_call(request()).is_none());
    assert_eq!(run.settled().await, TerminalReason::TurnCap);
}

#[tokio::test(start_paused = true)]
async fn an_end_from_outside_is_the_end_and_nothing_is_left() {
    let registry = RunRegistry::new();
    let run = registry.open(tower_agent::Owner::default(), "r".parse().unwrap());
    let upstream = upstream();
    let service = TurnCapLayer::new(1).final_call(LIMIT).layer(upstream);
    turn(&service, run.attach(request())).await.unwrap();
    turn(&service, run.attach(request())).await.unwrap_err();

    assert!(run.end(TerminalReason::Aborted));

    assert!(run.final_call(request()).is_none());
    assert_eq!(run.settled().await, TerminalReason::Aborted);
}

#[tokio::test(start_paused = true)]
async fn without_it_there_is_none() {
    let upstream = upstream();
    let service = TurnCapLayer::new(1).layer(upstream);
    let run = Run::open();
    assert!(run.final_call(request()).is_none(), "not at its cap");
    turn(&service, run.attach(request())).await.unwrap();
    turn(&service, run.attach(request())).await.unwrap_err();
    assert!(run.final_call(request()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_token_cap_refuses_meanwhile_is_no_work_in_progress() {
    let run = Run::open();
    let waiting = run.attach(request());
    let turns = TurnCapLayer::new(1).final_call(LIMIT).layer(upstream());
    turn(&turns, run.attach(request())).await.unwrap();
    turn(&turns, run.attach(request())).await.unwrap_err();
    let caps = TokenCaps::new().max_output_tokens(9);
    let tokens = TokenCapLayer::new(caps).layer(upstream());

    let error = turn(&tokens, waiting).await.unwrap_err();

    assert_eq!(reason_of(&error), CAPPED);
    assert_eq!(run.in_flight(), 0);
}
