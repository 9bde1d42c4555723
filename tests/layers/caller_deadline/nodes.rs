//! Which node ends.
//!
//! covers: A4

use http_body_util::BodyExt;
use tokio::time::sleep;
use tower::{Service, ServiceBuilder};
use tower_agent::{NodeKind, Run, RunId, RunLayer, RunRegistry, Scope};

use super::*;
use crate::support::{DONE, Upstream, call_of, chat, request_of};

#[tokio::test(start_paused = true)]
async fn it_ends_the_call_and_never_the_run() {
    for scope in [Scope::Found, Scope::Run] {
        for (name, value) in [(NODE, "5"), (PYTHON, "5"), (GRPC, "5S")] {
            let run = Run::open();
            tokio::time::sleep(secs(100)).await;
            let (request, call) = call_of(&run);
            let outcome = play(
                layer().scope(scope),
                Script::before_head().never(),
                with(request, &[(name, value)]),
            )
            .await;
            assert_ended_by_the_caller(&outcome, secs(5));
            assert_eq!(outcome.status, Outcome::NO_ANSWER);
            assert_eq!(outcome.terminated().kind, NodeKind::Call);
            assert_eq!(call.terminal_reason(), Some(TerminalReason::CallerDeadline));
            assert_eq!(run.terminal_reason(), None);

            let (request, call) = call_of(&run);
            let script = Script::sse().wait(4.0).data(DONE);
            let outcome = play(
                layer().scope(scope),
                script,
                with(request, &[(name, value)]),
            )
            .await;
            assert_whole(&outcome, secs(4));
            assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
            assert_eq!(run.terminal_reason(), None);
            assert_eq!(
                run.snapshot().time_left,
                None,
                "nothing is left of it on the run"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_stands_in_the_request_itself_goes_on() {
    for scope in [Scope::Found, Scope::Run] {
        let run = Run::open();
        let sub = run.child();
        for node in [&run, &sub] {
            let request = with(request_of(node), &[(NODE, "5")]);

            let outcome = play(layer().scope(scope), Script::before_head().never(), request).await;

            assert_ended_by_the_caller(&outcome, secs(5));
            assert_eq!(node.terminal_reason(), None);
            assert_eq!(node.in_flight(), 0);
        }
        // Its ceiling is measured as before.
        let ceiling = HardCeilingLayer::new(secs(30))
            .scope(scope)
            .caller_deadline(true);
        let request = with(request_of(&run), &[(NODE, "300")]);
        let outcome = play(ceiling, Script::before_head().never(), request).await;
        assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
        assert_eq!(outcome.at, secs(20));
        assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
    }
}

#[tokio::test(start_paused = true)]
async fn two_calls_of_one_run_at_once_wait_each_for_themselves() {
    let run = Run::open();
    let (long, short) = tokio::join!(
        play(
            layer(),
            Script::sse().wait(20.0).data(DONE),
            with(run.attach(request()), &[(GRPC, "30S")])
        ),
        play(
            layer(),
            Script::sse().never(),
            with(run.attach(request()), &[(GRPC, "5S")])
        ),
    );

    assert_ended_by_the_caller(&short, secs(5));
    assert_whole(&long, secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_a_layer_further_in_names_does_not_end_by_it() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(
        Script::before_head()
            .wait(20.0)
            .head("text/event-stream")
            .data(DONE),
    );
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(RunLayer::new(registry.clone()))
        .service(upstream);
    let request = with(announcing(NODE, "5"), &[("x-run-id", "r")]);

    Outcome::of(service.oneshot(request)).await.whole();

    let id: RunId = "r".parse().unwrap();
    let [run] = &registry.find(&id)[..] else {
        panic!("the run is not there");
    };
    assert_eq!(run.terminal_reason(), None);
}

/// Nobody looks at the call before both that and a ceiling further in have passed.
#[tokio::test(start_paused = true)]
async fn nor_does_it_if_it_is_looked_at_late() {
    let registry = RunRegistry::new();
    let script = Script::before_head().wait(2.0).head("text/event-stream");
    let script = script.data(chat("a")).wait(20.0).data(DONE);
    let upstream = Upstream::script(script);
    let mut service = ServiceBuilder::new()
        .layer(layer())
        .layer(RunLayer::new(registry.clone()))
        .layer(HardCeilingLayer::new(secs(6)))
        .service(upstream);
    let ask = |id| with(announcing(GRPC, "5S"), &[("x-run-id", id)]);

    let late = service.call(ask("late"));
    sleep(secs(7)).await;
    let late = reason_of(&late.await.unwrap_err());
    assert_eq!(late, Some(TerminalReason::HardCeiling));
    let answer = service.oneshot(ask("away")).await.unwrap();
    let mut body = answer.into_body();
    assert!(body.frame().await.is_some());
    sleep(secs(7)).await;
    let away = body.read().await.reason();
    assert_eq!(away, Some(TerminalReason::HardCeiling));

    for id in ["late", "away"] {
        let runs = registry.find(&id.parse().unwrap());
        assert_eq!((runs.len(), runs[0].terminal_reason()), (1, None), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn twice_in_one_stack_is_as_once() {
    for (name, value, expected) in [
        (NODE, "5", None),
        (PYTHON, "5", Some(9)),
        (GRPC, "8S", Some(8)),
    ] {
        let script = Script::before_head().wait(3.0).head("text/event-stream");
        let script = script.wait(1.0).data(chat("a")).wait(16.0).data(DONE);
        let upstream = Upstream::script(script);
        let service = ServiceBuilder::new()
            .layer(layer())
            .layer(layer())
            .service(upstream);

        let outcome = Outcome::of(service.oneshot(announcing(name, value))).await;

        let cut = expected.map(|_| TerminalReason::CallerDeadline);
        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.error.as_ref().and_then(reason_of), cut, "{name}");
        assert_eq!(outcome.at, secs(expected.unwrap_or(20)));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_on_the_call_once_it_was_answered_or_dropped() {
    let run = Run::open();
    for (name, value) in [(NODE, "5"), (PYTHON, "5"), (GRPC, "5S")] {
        let upstream = Upstream::script(Script::before_head().never());
        let (request, call) = call_of(&run);
        let mut future = Box::pin(
            layer()
                .layer(upstream)
                .oneshot(with(request, &[(name, value)])),
        );
        assert!(crate::support::poll_once(&mut future).is_pending());
        assert_eq!(call.snapshot().time_left, Some(secs(5)));

        drop(future);

        assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
        assert_eq!(run.in_flight(), 0);
    }
}
