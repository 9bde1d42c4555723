use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, StatusCode};
use tokio::time::{advance, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, InvalidRunId, NodeKind, Owner, Run,
    RunLayer, RunRegistry, Scope, StepTimeoutLayer, TerminalReason, error::InvalidRequest,
    layers::run::CallFailed, registry::AbortOutcome,
};

use crate::support::{
    DONE, Place, ReadExt, Script, Stack, StackService, Upstream, chat, reason_of, request,
    request_of, secs, with_header,
};

/// A request of the run with this id.
fn named(id: &str) -> Request<()> {
    with_header(request(), "x-run-id", id)
}

fn stack(script: Script) -> (RunRegistry, StackService, Upstream) {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(script);
    let stack = Stack::default().run(&registry).build(&upstream);
    (registry, stack, upstream)
}

fn whole() -> Script {
    Script::sse().data(chat("a")).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn the_id_of_the_header_is_the_runs_and_is_echoed() {
    let (registry, service, upstream) = stack(whole());

    let answer = service.oneshot(named("r-1")).await.unwrap();

    assert_eq!(answer.headers()["x-run-id"], "r-1");
    assert_eq!(upstream.run().id().to_string(), "r-1");
    assert_eq!(upstream.run().kind(), NodeKind::Call);
    assert_eq!(
        registry
            .get(Owner::anonymous(), &"r-1".parse().unwrap())
            .unwrap()
            .in_flight(),
        1
    );
    answer.into_body().read().await.whole();
}

#[tokio::test(start_paused = true)]
async fn an_id_is_made_up_echoed_and_known() {
    let (registry, service, upstream) = stack(whole());

    let answer = service.oneshot(request()).await.unwrap();

    let id = answer.headers()["x-run-id"].to_str().unwrap().to_owned();
    assert!(id.starts_with("run-") && id.len() == 20, "{id}");
    assert_eq!(upstream.run().id().to_string(), id);
    assert_eq!(
        registry.abort(Owner::anonymous(), &id.parse().unwrap()),
        AbortOutcome::Ended
    );
    let read = answer.into_body().read().await;
    assert_eq!(read.reason(), Some(TerminalReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn an_unusable_id_is_refused_without_a_call() {
    let long = "x".repeat(129);
    let mut cases: Vec<HeaderValue> = ["a b", "", "a/b", &long]
        .into_iter()
        .map(|id| HeaderValue::from_str(id).unwrap())
        .collect();
    cases.push(HeaderValue::from_bytes("\u{e9}".as_bytes()).unwrap());
    for id in cases {
        for header in ["x-run-id", "x-session-id"] {
            let (registry, service, upstream) = stack(whole());
            let mut request = request();
            request.headers_mut().insert(header, id.clone());

            let error = service.oneshot(request).await.unwrap_err();

            assert!(error.is::<InvalidRunId>(), "{header}: {id:?}");
            assert_eq!(upstream.calls(), 0);
            assert!(registry.list().is_empty());
        }
    }
    let (_, service, _) = stack(whole());
    assert!(service.oneshot(named(&"x".repeat(128))).await.is_ok());
}

/// A proxy may repeat a header as it stands; of two different ids neither is the right one.
/// covers: D6
#[tokio::test(start_paused = true)]
async fn two_different_ids_are_refused_without_a_call_and_one_id_twice_is_one() {
    for header in ["x-run-id", "x-session-id"] {
        for (second, is_refused) in [("other", true), ("", true), ("one", false)] {
            let (registry, service, upstream) = stack(whole());
            let mut request = with_header(request(), header, "one");
            let second = HeaderValue::from_static(second);
            request.headers_mut().append(header, second.clone());

            let answer = service.oneshot(request).await;

            assert_eq!(answer.is_err(), is_refused, "{header}: {second:?}");
            if let Err(error) = answer {
                assert!(error.is::<InvalidRequest>(), "{header}: {error}");
                assert!(error.to_string().contains(header), "{error}");
                assert_eq!(upstream.calls(), 0);
                assert!(registry.list().is_empty());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_id_are_calls_of_one_run() {
    let (registry, service, upstream) = stack(whole());

    let first = service.clone().oneshot(named("r")).await.unwrap();
    let second = service.oneshot(named("r")).await.unwrap();

    let [a, b] = &upstream.runs()[..] else {
        panic!()
    };
    let run = registry
        .get(Owner::anonymous(), &"r".parse().unwrap())
        .unwrap();
    assert_eq!(run.in_flight(), 2);
    first.into_body().read().await.whole();
    assert_eq!(a.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(b.terminal_reason(), None);
    drop(second);
    assert_eq!(b.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!((run.in_flight(), run.terminal_reason()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn the_same_id_of_another_credential_is_another_run() {
    for header in ["authorization", "x-api-key", "api-key", "x-goog-api-key"] {
        let (registry, service, _) = stack(Script::sse().never());
        let with = |key: &'static str| {
            let mut request = named("r");
            request.headers_mut().insert(
                HeaderName::from_static(header),
                HeaderValue::from_static(key),
            );
            request
        };
        let ours = service.clone().oneshot(with("one")).await.unwrap();
        let theirs = service.oneshot(with("two")).await.unwrap();

        assert_eq!(
            registry.abort(Owner::of(b"one"), &"r".parse().unwrap()),
            AbortOutcome::Ended
        );

        assert_eq!(
            ours.into_body().read().await.reason(),
            Some(TerminalReason::Aborted)
        );
        let mut theirs = theirs.into_body();
        assert!(crate::support::poll_body(&mut theirs).is_pending());
    }
}

/// covers: D6
#[tokio::test(start_paused = true)]
async fn an_aborted_run_answers_every_later_request_without_a_call() {
    let (registry, service, upstream) = stack(whole());
    service.ask(named("r")).await.whole();
    registry.abort(Owner::anonymous(), &"r".parse().unwrap());

    for _ in 0..3 {
        advance(secs(500)).await;
        let error = service.clone().oneshot(named("r")).await.unwrap_err();
        assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    }

    assert_eq!(upstream.calls(), 1);
    advance(RunRegistry::REMEMBERED).await;
    assert!(service.oneshot(named("r")).await.is_ok());
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn hits_on_a_tombstone_do_not_rewrite_its_story() {
    let (registry, service, _) = stack(whole());
    let run = registry.open(Owner::anonymous(), "r".parse().unwrap());
    run.end(TerminalReason::Aborted);
    let before = run.terminated().unwrap().message();
    assert!(before.contains("Last step: unknown"));

    let error = service.oneshot(named("r")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!(
        run.terminated().unwrap().message(),
        before,
        "no model was called"
    );
}

#[tokio::test(start_paused = true)]
async fn after_an_idle_end_the_id_opens_a_new_run() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(whole());
    let layer = RunLayer::new(registry.clone()).idle(secs(60));
    let service = StackService::new(layer.layer(upstream.clone()));
    service.ask(named("r")).await.whole();
    let first = registry
        .get(Owner::anonymous(), &"r".parse().unwrap())
        .unwrap();
    sleep(secs(59)).await;
    service.ask(named("r")).await.whole();
    assert_eq!(first.terminal_reason(), None);
    sleep(secs(60)).await;

    service.ask(named("r")).await.whole();

    assert_eq!(first.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(upstream.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_run_with_an_id_is_not_completed_by_a_body() {
    let (registry, service, upstream) = stack(whole());
    service.ask(named("r")).await.whole();

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
    let run = registry
        .get(Owner::anonymous(), &"r".parse().unwrap())
        .unwrap();
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_run_without_an_id_takes_its_calls_reason() {
    let ends: [(Script, &str); 3] = [
        (whole(), "completed"),
        (Script::before_head().fail("reset"), "upstream_failed"),
        (Script::sse().never(), "step_timeout"),
    ];
    for (script, name) in ends {
        let upstream = Upstream::script(script);
        let registry = RunRegistry::new();
        let mut events = registry.subscribe();
        let stack = Stack::default().run(&registry).step(10).build(&upstream);
        if let Ok(answer) = stack.oneshot(request()).await {
            answer.into_body().read().await;
        }

        assert_eq!(upstream.run().terminal_reason().unwrap().as_str(), name);
        assert_eq!(
            upstream.run().run().terminal_reason().unwrap().as_str(),
            name
        );
        assert!(matches!(
            events.next().await,
            Some(tower_agent::RunEvent::Notice { sequence: 1, .. })
        ));
        assert!(matches!(
            events.next().await,
            Some(tower_agent::RunEvent::Ended { sequence: 2, .. })
        ));
        drop(registry);
        assert!(events.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_ends_the_whole_run_if_the_call_is_the_run() {
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().run(&RunRegistry::new()).disconnect();

    drop(stack.build(&upstream).oneshot(request()).await.unwrap());

    assert_eq!(
        upstream.run().run().terminal_reason(),
        Some(TerminalReason::ClientDisconnect)
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_that_an_outer_layer_opened_is_given_the_id() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(100)))
        .layer(RunLayer::new(registry.clone()))
        .service(upstream.clone());
    let answer = service.oneshot(named("r")).await.unwrap();

    assert_eq!(answer.headers()["x-run-id"], "r");
    let outer = answer.extensions().get::<Run>().unwrap().run();
    assert_eq!(outer.id().to_string(), "r");
    assert_eq!(
        registry.abort(Owner::anonymous(), &"r".parse().unwrap()),
        AbortOutcome::Ended
    );
    assert_eq!(outer.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Aborted)
    );
}

#[tokio::test(start_paused = true)]
async fn if_the_id_is_taken_the_call_is_the_registered_runs_and_ends_with_the_outer_too() {
    let registry = RunRegistry::new();
    let known = registry.open(Owner::anonymous(), "r".parse().unwrap());
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(10)))
        .layer(RunLayer::new(registry))
        .service(upstream.clone());

    let answer = service.oneshot(named("r")).await.unwrap();
    assert_eq!(upstream.run().run().id(), known.id());
    assert_eq!(known.in_flight(), 1);
    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::StepTimeout)
    );
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::StepTimeout));
    assert_eq!((known.terminal_reason(), known.in_flight()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_with_an_outer_run_lasts_as_long_as_it_was_open() {
    let registry = RunRegistry::new();
    let _known = registry.open(Owner::anonymous(), "r".parse().unwrap());
    advance(secs(100)).await;
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(10)))
        .layer(RunLayer::new(registry))
        .service(upstream.clone());

    service
        .oneshot(named("r"))
        .await
        .unwrap()
        .into_body()
        .read()
        .await;

    let call = upstream.run();
    assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(call.elapsed(), secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_program_attached_stays_its_own() {
    let registry = RunRegistry::new();
    let run = Run::open();
    let upstream = Upstream::script(whole());
    let mut request = run.attach(named("ignored"));
    let call = request.extensions_mut().get::<Run>().unwrap().clone();

    let stack = Stack::default().run(&registry).build(&upstream);
    stack.ask(request).await.whole();

    assert_eq!(upstream.run().id(), run.id());
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert!(registry.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_of_the_programs_own_in_the_request_gets_a_call() {
    let run = Run::open();
    let (_, service, upstream) = stack(whole());

    service.ask(request_of(&run)).await.whole();

    assert_eq!(upstream.run().kind(), NodeKind::Call);
    assert_eq!(upstream.run().parent().unwrap().id(), run.id());
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn errors_that_are_no_end_say_which_run_it_was() {
    let (_, service, _) = stack(Script::before_head().fail("refused"));

    let error = service.oneshot(named("r-9")).await.unwrap_err();

    assert_eq!(
        error.downcast_ref::<CallFailed>().unwrap().run.to_string(),
        "r-9"
    );
    assert_eq!(error.to_string(), "call of run r-9 failed: refused");
}

#[tokio::test(start_paused = true)]
async fn every_answer_under_the_layer_carries_the_id_errors_too() {
    let ends = [
        (
            Script::before_head().fail("refused"),
            StatusCode::BAD_GATEWAY,
        ),
        (Script::before_head().never(), StatusCode::GATEWAY_TIMEOUT),
        (
            Script::before_head().fail_with(|| "?".into()),
            StatusCode::INTERNAL_SERVER_ERROR,
        ),
        (Script::json().status(418), StatusCode::IM_A_TEAPOT),
    ];
    for (script, status) in ends {
        let upstream = Upstream::script(script);
        let stack = Stack::default()
            .terminal()
            .run(&RunRegistry::new())
            .ceiling(5);

        let answer = stack.build(&upstream).oneshot(named("r-3")).await.unwrap();

        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["x-run-id"], "r-3");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_end_is_a_failure_and_the_answer_keeps_our_id() {
    fn foreign() -> BoxError {
        let run = Run::open();
        run.end(TerminalReason::TurnCap);
        run.terminated().unwrap().into()
    }
    let upstream = Upstream::script(Script::before_head().fail_with(foreign));
    let stack = Stack::default().terminal().run(&RunRegistry::new());

    let answer = stack.build(&upstream).oneshot(named("r-4")).await.unwrap();

    assert_eq!(
        upstream.run().terminal_reason().unwrap().as_str(),
        "upstream_failed"
    );
    assert_eq!(answer.headers()["x-run-id"], "r-4");
    assert!(
        !answer.headers().contains_key("x-terminal-reason"),
        "it is not our run's"
    );
    assert!(!answer.headers().contains_key("x-should-retry"));
}

#[tokio::test(start_paused = true)]
async fn ids_sessions_and_owners_can_be_the_programs_own() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().never());
    let layer = RunLayer::new(registry.clone())
        .id_by(|parts| Some(parts.headers.get("task")?.to_str().ok()?.to_owned()))
        .session_header(HeaderName::from_static("chat"))
        .owner_by(|_| Owner::of(b"tenant"));
    let mut request = named("ignored");
    request
        .headers_mut()
        .insert("task", HeaderValue::from_static("t-1"));
    request
        .headers_mut()
        .insert("chat", HeaderValue::from_static("s-1"));

    let _answer = layer
        .layer(upstream.clone())
        .oneshot(request)
        .await
        .unwrap();

    assert_eq!(upstream.run().id().to_string(), "t-1");
    assert_eq!(upstream.run().session().as_deref(), Some("s-1"));
    assert!(
        registry
            .get(Owner::of(b"tenant"), &"t-1".parse().unwrap())
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn the_runs_ceiling_counts_from_its_first_request_over_all_of_them() {
    let upstream = Upstream::script(Script::sse().wait(20.0).data(DONE));
    let ceiling = HardCeilingLayer::new(secs(30)).scope(Scope::Run);
    let stack = Stack::default().run(&RunRegistry::new());
    let service = stack.layer(Place::Ceiling, ceiling).build(&upstream);
    let start = tokio::time::Instant::now();

    service.ask(named("r")).await.whole();
    let outcome = service.ask(named("r")).await;
    let third = service.oneshot(named("r")).await.unwrap_err();

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
    assert_eq!(start.elapsed(), secs(30));
    assert_eq!(reason_of(&third), Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_that_passed_between_requests_refuses_the_next() {
    let upstream = Upstream::script(whole());
    let ceiling = HardCeilingLayer::new(secs(30)).scope(Scope::Run);
    let stack = Stack::default().run(&RunRegistry::new());
    let service = stack.layer(Place::Ceiling, ceiling).build(&upstream);
    service.ask(named("r")).await.whole();
    sleep(secs(30)).await;

    let error = service.oneshot(named("r")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_settles_its_call_and_leaves_the_run() {
    let (registry, mut service, upstream) = stack(Script::before_head().never());
    drop(service.call(named("r")));

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Aborted)
    );
    let run = registry
        .get(Owner::anonymous(), &"r".parse().unwrap())
        .unwrap();
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn twice_in_one_stack_it_is_one_run() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(whole());
    let layer = RunLayer::new(registry.clone());
    let service = StackService::new(layer.clone().layer(layer.layer(upstream.clone())));

    service.ask(named("r")).await.whole();

    assert_eq!(registry.list().len(), 1);
    assert_eq!(upstream.run().id().to_string(), "r");
    assert_eq!(registry.list()[0].in_flight, 0);
    assert_eq!(registry.list()[0].reason, None);
}

#[tokio::test(start_paused = true)]
async fn an_idle_of_forever_does_not_overflow() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(whole());
    let layer = RunLayer::new(registry.clone()).idle(Duration::MAX);
    let service = StackService::new(layer.layer(upstream));
    service.ask(named("r")).await.whole();
    sleep(secs(1_000_000)).await;

    assert_eq!(registry.list()[0].reason, None);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_an_outer_layer_opened_takes_the_reason_of_its_call() {
    let upstream = Upstream::script(Script::before_head().never());
    let mut service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(10)))
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(ClientDisconnectLayer::new())
        .service(upstream.clone());

    drop(service.call(request()));

    let call = upstream.run();
    assert_eq!(
        call.terminal_reason(),
        Some(TerminalReason::ClientDisconnect)
    );
    assert_eq!(call.run().terminal_reason(), call.terminal_reason());
}

#[tokio::test(start_paused = true)]
async fn callers_without_a_credential_are_not_the_program() {
    let (registry, service, _) = stack(Script::sse().never());
    let ours = registry.open(Owner::default(), "r".parse().unwrap());

    let _answer = service.oneshot(named("r")).await.unwrap();

    assert_eq!(ours.in_flight(), 0);
    assert_eq!(
        registry.abort(Owner::anonymous(), &"r".parse().unwrap()),
        AbortOutcome::Ended
    );
    assert_eq!(ours.terminal_reason(), None);
}

#[test]
#[should_panic(expected = "idle for a while")]
fn a_run_that_may_not_be_idle_at_all_is_no_run() {
    let _never = RunLayer::new(RunRegistry::new()).idle(Duration::ZERO);
}
