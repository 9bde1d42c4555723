//! What was admitted goes on to its end when the next turn is refused.
//!
//! covers: D1

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use serde_json::Value;
use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep},
};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, Owner, Run, RunRegistry, Scope, TerminalReason, TokenCapLayer, TokenCaps,
    ToolError, Trajectory, TurnCapLayer,
};

use super::{CAPPED, end_of, turn};
use crate::support::{
    DONE, Outcome, Place, Script, Stack, StackService, Upstream, call_of, chat, failure, healthy,
    no_delay, prompt, reason_of, request, request_of, secs, with_header,
};

const CAP: usize = 30;

/// The lines of a trajectory.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn all(&self) -> Vec<Value> {
        let written = self.0.lock().unwrap();
        let lines = written.split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }
}

fn ask(stack: &StackService, id: &'static str) -> impl Future<Output = Outcome> + use<> {
    stack.ask(with_header(prompt("a"), "x-run-id", id))
}

fn run_of(registry: &RunRegistry, id: &str) -> Run {
    registry
        .get(Owner::anonymous(), &id.parse().unwrap())
        .unwrap()
}

#[track_caller]
fn is_refused(outcome: &Outcome) {
    assert_eq!(outcome.status, 422, "{outcome:?}");
    assert_eq!(
        outcome.header("x-terminal-reason"),
        Some("turn_cap_reached")
    );
    assert_eq!(outcome.header("x-should-retry"), Some("false"));
}

/// Each of the first ten fails at its first model, and half of those at its repeat, too.
/// covers: D5
#[tokio::test(start_paused = true)]
async fn all_that_a_cap_admits_at_once_is_answered_in_full_and_only_the_next_is_refused() {
    let lines = Lines::default();
    let registry = RunRegistry::new().trajectory(&Trajectory::new(lines.clone()));
    let failing = || failure(503).delayed(1);
    let mut scripts: Vec<_> = (0..10).map(|_| failing()).collect();
    scripts.extend((10..CAP).map(|_| healthy().delayed(3)));
    scripts.extend((0..5).map(|_| failing()));
    scripts.push(healthy().delayed(3));
    let upstream = Upstream::scripts(scripts);
    let stack = Stack::default()
        .terminal()
        .run(&registry)
        .turn_cap(CAP.try_into().unwrap())
        .candidates(["a", "b"])
        .retry(2)
        .build(&upstream);
    let started = Instant::now();
    let admitted = (0..CAP)
        .map(|_| tokio::spawn(ask(&stack, "r")))
        .collect::<Vec<_>>();
    yield_now().await;

    let next = ask(&stack, "r").await;

    is_refused(&next);
    assert_eq!(started.elapsed(), secs(0), "at once");
    let run = run_of(&registry, "r");
    assert_eq!(run.terminal_reason(), None);
    let snapshot = run.snapshot();
    assert_eq!((snapshot.reason, snapshot.closing), (None, CAPPED));
    assert_eq!((snapshot.turns, snapshot.time_left), (30, None));
    is_refused(&ask(&stack, "r").await);
    for answer in join_all(admitted).await {
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.whole();
    }
    assert_eq!(upstream.calls(), CAP + 10 + 5);
    assert!(
        upstream.models().contains(&String::from("b")),
        "the fallback"
    );
    assert_eq!(
        (run.terminal_reason(), run.turns(), run.in_flight()),
        (CAPPED, 30, 0)
    );
    let later = ask(&stack, "r").await;
    is_refused(&later);
    let lines = lines.all();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (&lines[0]["reason"], &lines[0]["at_turn"]),
        (&"turn_cap_reached".into(), &30.into())
    );
}

#[tokio::test(start_paused = true)]
async fn the_refused_one_hears_the_cap_of_its_run() {
    let upstream = Upstream::script(healthy().delayed(3));
    let service = TurnCapLayer::new(1).layer(upstream.clone());
    let run = Run::open();
    let last = tokio::spawn({
        let (service, request) = (service.clone(), run.attach(request()));
        async move { turn(&service, request).await }
    });
    yield_now().await;

    let (next, call) = call_of(&run);
    let error = turn(&service, next).await.unwrap_err();

    let end = end_of(&error);
    assert_eq!(
        (&end.reason, end.at_turn()),
        (&TerminalReason::TurnCap, Some(1))
    );
    let told = "The call was refused: its run reached its limit of 1 turn (turn_cap_reached). ";
    assert!(end.message().starts_with(told), "{}", end.message());
    assert_eq!(
        (call.terminal_reason(), run.terminal_reason()),
        (CAPPED, None)
    );
    assert_eq!(run.check().unwrap_err().at_turn(), Some(1));
    last.await.unwrap().unwrap();
    assert_eq!((run.terminal_reason(), run.turns()), (CAPPED, 1));
    let told = "The run was stopped after 3s: it reached its limit of 1 turn (turn_cap_reached)";
    let message = run.terminated().unwrap().message();
    assert!(message.starts_with(told), "{message}");
    assert_eq!(run.settled().await, TerminalReason::TurnCap);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_carries_the_run_itself_is_waited_for_too() {
    let upstream = Upstream::script(healthy().delayed(3));
    let service = TurnCapLayer::new(1).layer(upstream.clone());
    let run = Run::open();
    let last = tokio::spawn({
        let (service, request) = (service.clone(), request_of(&run));
        async move { turn(&service, request).await }
    });
    yield_now().await;

    let error = turn(&service, request_of(&run)).await.unwrap_err();

    assert_eq!(reason_of(&error), CAPPED);
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 1));
    last.await.unwrap().unwrap();
    assert_eq!((run.terminal_reason(), run.in_flight()), (CAPPED, 0));
}

#[tokio::test(start_paused = true)]
async fn tools_and_sub_agents_go_on_and_start_nothing_more() {
    let upstream = Upstream::script(healthy().delayed(3));
    let service = TurnCapLayer::new(1).layer(upstream.clone());
    let (run, spawn) = (Run::open(), |run: &Run| {
        let (service, request) = (service.clone(), run.attach(request()));
        tokio::spawn(async move { turn(&service, request).await })
    });
    let (child, idle_child) = (run.child(), run.child());
    let mut in_progress = vec![spawn(&run), spawn(&child)];
    let tool = tokio::spawn(run.tool("build").watch(sleep(secs(5))));
    yield_now().await;

    turn(&service, run.attach(request())).await.unwrap_err();

    for child in [&child, &idle_child, &run.child()] {
        let error = turn(&service, child.attach(request())).await.unwrap_err();
        assert_eq!(reason_of(&error), CAPPED, "a turn of a sub-agent");
    }
    let late = run.tool("test").call(async { Ok::<_, &str>(()) }).await;
    assert!(matches!(late, Err(ToolError::Terminated(end)) if end.at_turn() == Some(1)));
    for call in in_progress.drain(..) {
        call.await.unwrap().unwrap();
    }
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 1));
    tool.await.unwrap().unwrap();
    assert_eq!(
        (run.terminal_reason(), child.terminal_reason()),
        (CAPPED, CAPPED)
    );
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_admitted_and_fails_hears_its_own_failure() {
    for pumped in [true, false] {
        let registry = RunRegistry::new();
        let upstream = Upstream::script(failure(503).delayed(3));
        let stack = Stack::default()
            .terminal()
            .run(&registry)
            .turn_cap(1)
            .retry(2);
        let stack = if pumped { stack.pump() } else { stack }.build(&upstream);
        let last = tokio::spawn(ask(&stack, "r"));
        yield_now().await;
        is_refused(&ask(&stack, "r").await);

        let last = last.await.unwrap();

        assert_eq!((last.status, upstream.calls()), (503, 2), "{last:?}");
        assert_eq!(last.header("x-terminal-reason"), None);
        assert_eq!(run_of(&registry, "r").terminal_reason(), CAPPED);
    }
}

#[tokio::test(start_paused = true)]
async fn clocks_and_aborts_end_what_goes_on() {
    for by_clock in [true, false] {
        let upstream = Upstream::script(Script::sse().never());
        let service = ServiceBuilder::new()
            .layer(TurnCapLayer::new(1))
            .layer(HardCeilingLayer::new(secs(20)).scope(Scope::Run))
            .service(upstream.clone());
        let run = Run::open();
        let last = tokio::spawn({
            let (service, request) = (service.clone(), run.attach(request()));
            async move { turn(&service, request).await }
        });
        yield_now().await;
        turn(&service, run.attach(request())).await.unwrap_err();
        assert_eq!(run.terminal_reason(), None);

        let reason = match by_clock {
            true => TerminalReason::HardCeiling,
            false => TerminalReason::Aborted,
        };
        assert!(by_clock || run.end(reason.clone()));
        let error = last.await.unwrap().unwrap_err();

        assert_eq!(reason_of(&error), Some(reason.clone()));
        assert_eq!(run.terminal_reason(), Some(reason));
        assert_eq!(run.in_flight(), 0);
    }
}

/// It was put into its request, and no layer has seen it yet.
#[tokio::test(start_paused = true)]
async fn a_call_that_has_not_begun_is_refused_wherever_it_goes() {
    let upstream = Upstream::script(healthy().delayed(3));
    let service = TurnCapLayer::new(1).layer(upstream.clone());
    let run = Run::open();
    let waiting = [run.attach(request()), run.attach(request())];
    let last = tokio::spawn({
        let (service, request) = (service.clone(), run.attach(request()));
        async move { turn(&service, request).await }
    });
    yield_now().await;
    turn(&service, run.attach(request())).await.unwrap_err();

    let [capped, other] = waiting;
    let caps = TokenCaps::new().max_output_tokens(9);
    let elsewhere = TokenCapLayer::new(caps).layer(upstream.clone());
    let refused = [turn(&service, capped).await, turn(&elsewhere, other).await];

    for refused in refused {
        assert_eq!(reason_of(&refused.unwrap_err()), CAPPED);
    }
    last.await.unwrap().unwrap();
    assert_eq!((upstream.calls(), run.terminal_reason()), (1, CAPPED));
    assert_eq!(run.in_flight(), 0);
}

/// covers: H8
#[tokio::test(start_paused = true)]
async fn a_cap_on_tokens_still_ends_it_in_mid_stream() {
    let text = chat(&"word ".repeat(40));
    let script = Script::sse()
        .data(text.clone())
        .wait(3.0)
        .data(text)
        .data(DONE);
    let service = ServiceBuilder::new()
        .layer(TurnCapLayer::new(1))
        .layer(TokenCapLayer::new(TokenCaps::new().max_output_tokens(60)))
        .service(Upstream::script(script));
    let run = Run::open();
    let last = tokio::spawn({
        let (service, request) = (service.clone(), run.attach(request()));
        async move { turn(&service, request).await }
    });
    sleep(secs(1)).await;
    turn(&service, run.attach(request())).await.unwrap_err();

    let error = last.await.unwrap().unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::TokenCap));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::TokenCap));
}

/// A drain finishes what runs, and starts nothing: no repeat either.
/// covers: C10
#[tokio::test(start_paused = true)]
async fn a_drain_starts_no_repeat_of_what_a_cap_admitted() {
    let registry = RunRegistry::new();
    let upstream = Upstream::scripts([failure(503).delayed(5), healthy()]);
    let stack = Stack::default()
        .run(&registry)
        .turn_cap(1)
        .budget(no_delay());
    let stack = stack
        .layer(Place::TurnCap, TurnCapLayer::new(1))
        .build(&upstream);
    let last = tokio::spawn(ask(&stack, "r"));
    yield_now().await;
    assert_eq!(ask(&stack, "r").await.reason, CAPPED);
    let run = run_of(&registry, "r");

    assert_eq!(registry.drain(secs(30)).await, 0);

    assert_eq!(last.await.unwrap().reason, Some(TerminalReason::Shutdown));
    assert_eq!((upstream.calls(), run.terminal_reason()), (1, CAPPED));
}

/// covers: C10
#[tokio::test(start_paused = true)]
async fn a_drain_that_is_over_cuts_it_as_a_shutdown() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().run(&registry).turn_cap(1).build(&upstream);
    let last = tokio::spawn(ask(&stack, "r"));
    yield_now().await;
    assert_eq!(ask(&stack, "r").await.reason, CAPPED);
    let run = run_of(&registry, "r");

    assert_eq!(registry.drain(secs(30)).await, 1);

    assert_eq!(last.await.unwrap().reason, Some(TerminalReason::Shutdown));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Shutdown));
}

/// A refused request is no progress, so it cannot keep a silent run alive.
#[tokio::test(start_paused = true)]
async fn a_refused_turn_is_no_sign_of_life_of_its_run() {
    let service = TurnCapLayer::new(1).layer(Upstream::script(Script::sse().never()));
    let run = Run::open();
    let last = tokio::spawn(service.clone().oneshot(run.attach(request())));
    yield_now().await;
    let before = run.snapshot();
    advance(secs(5)).await;

    for _ in 0..3 {
        turn(&service, run.attach(request())).await.unwrap_err();
    }

    let now = run.snapshot();
    assert_eq!(now.progress.state_changes, before.progress.state_changes);
    assert_eq!(now.last_step, before.last_step);
    drop(last);
}
