//! covers: C7

use http::HeaderValue;
use tokio::time::sleep;
use tower::{Layer, ServiceExt};
use tower_agent::{
    HardCeilingLayer, PumpLayer, Run, RunLayer, RunRegistry, Scope, TerminalReason,
    registry::AbortOutcome,
};

use super::{IDLE, id, us};
use crate::support::{ReadExt, Script, Upstream, chat, healthy, request, secs};

const CEILING: u64 = 20;

/// A call whose answer is neither read nor ever dropped.
async fn leak(registry: &RunRegistry, scope: Scope, named: bool) -> Run {
    let upstream = Upstream::script(Script::sse().never());
    let ceiling = HardCeilingLayer::new(secs(CEILING)).scope(scope);
    let layer = RunLayer::new(registry.clone()).owner_by(|_| us());
    let service = layer.layer(ceiling.layer(upstream));
    let mut request = request();
    if named {
        let name = HeaderValue::from_static("r");
        request.headers_mut().insert("x-run-id", name);
    }
    let answer = service.oneshot(request).await.unwrap();
    std::mem::forget(answer);
    let all = registry.list();
    registry.get(us(), &all[0].run).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_minute_after_its_deadline_nothing_lives_whatever_was_leaked() {
    for (scope, named) in [
        (Scope::Run, true),
        (Scope::Run, false),
        (Scope::Found, false),
    ] {
        let registry = RunRegistry::new();
        let run = leak(&registry, scope, named).await;
        let ended = run.ended();
        sleep(secs(CEILING) + RunRegistry::SAFETY).await;
        assert_eq!(run.terminal_reason(), None, "nobody has looked");

        // Any use of the registry.
        let _other = registry.open(us(), id("other"));

        assert_eq!(ended.await, TerminalReason::HardCeiling);
        assert_eq!(run.in_flight(), 1, "it never left");
        sleep(RunRegistry::REMEMBERED).await;
        assert!(registry.get(us(), &run.id()).is_none(), "forgotten as well");
        assert_eq!(registry.list().len(), 1, "the other one");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_looked_at_when_it_is_asked_for() {
    for named in [true, false] {
        let registry = RunRegistry::new();
        let run = leak(&registry, Scope::Run, named).await;
        sleep(secs(CEILING)).await;

        let found = registry.get(us(), &run.id()).unwrap();

        assert_eq!(found.terminal_reason(), Some(TerminalReason::HardCeiling));
        let aborted = registry.abort(us(), &run.id());
        assert_eq!(aborted, AbortOutcome::AlreadyOver);
    }
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_passed_wins_over_an_end_from_outside() {
    type End = fn(&RunRegistry, &Run) -> bool;
    let ends: [End; 2] = [
        |_, run| run.end(TerminalReason::Aborted),
        |registry, run| registry.abort(us(), &run.id()) == AbortOutcome::Ended,
    ];
    for end in ends {
        let registry = RunRegistry::new();
        let run = leak(&registry, Scope::Run, true).await;
        sleep(secs(CEILING)).await;

        assert!(!end(&registry, &run), "it was over before");

        assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_work_in_flight() {
    for below in [false, true] {
        let registry = RunRegistry::new();
        let run = registry.open(us(), id("r"));
        let agent = run.child();
        let pause = if below { agent.pause() } else { run.pause() };
        for _ in 0..3 {
            sleep(IDLE).await;
            let _tidied = registry.list();
            assert_eq!(run.terminal_reason(), None, "the pause goes on");
        }
        drop(pause);

        sleep(IDLE - secs(1)).await;
        let _tidied = registry.list();
        assert_eq!(run.terminal_reason(), None, "idle since the pause");
        sleep(secs(1)).await;
        let _tidied = registry.list();
        assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_a_call_that_is_over_is_none() {
    let registry = RunRegistry::new();
    let run = leak(&registry, Scope::Found, true).await;
    let call = run.attach(request());
    let call = call.extensions().get::<Run>().unwrap();
    let _pause = call.pause();
    call.end(TerminalReason::Aborted);
    sleep(IDLE + RunRegistry::SAFETY).await;
    let _tidied = registry.list();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_over_long_ago_does_not_keep_its_run_from_being_idle() {
    let registry = RunRegistry::new();
    let run = leak(&registry, Scope::Found, true).await;
    sleep(IDLE - secs(1)).await;
    let again = registry.open(us(), id("r"));
    assert_eq!(again.terminal_reason(), None);
    sleep(secs(1)).await;

    let next = registry.open(us(), id("r"));

    assert_eq!(run.in_flight(), 1, "it never left");
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(next.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_idle_for_too_long_has_completed_before_or_after_its_ceiling() {
    for (ceiling, reason) in [
        (IDLE - secs(1), TerminalReason::Completed),
        (IDLE + secs(1), TerminalReason::Completed),
    ] {
        let registry = RunRegistry::new();
        let run = registry.open(us(), id("r"));
        let layer = HardCeilingLayer::new(ceiling).scope(Scope::Run);
        let service = layer.layer(Upstream::script(healthy()));
        drop(service.oneshot(run.attach(request())).await.unwrap());

        sleep(IDLE + secs(60)).await;
        let _tidied = registry.list();

        assert_eq!(run.terminal_reason(), Some(reason));
    }
}

/// The pump reads a silent upstream on after its caller has left.
#[tokio::test(start_paused = true)]
async fn a_run_is_idle_once_its_abandoned_call_was_drained() {
    const DRAIN: u64 = 60;
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    let layer = PumpLayer::new().drain(Some(secs(DRAIN)));
    let service = layer.layer(Upstream::script(Script::sse().data(chat("a")).never()));
    let answer = service.oneshot(run.attach(request())).await.unwrap();
    let mut body = answer.into_body();
    body.token().await;
    sleep(IDLE - secs(DRAIN / 2)).await;
    drop(body);
    sleep(secs(DRAIN)).await;
    assert_eq!(run.in_flight(), 0);

    for (after, reason) in [
        (IDLE - secs(1), None),
        (secs(1), Some(TerminalReason::Completed)),
    ] {
        sleep(after).await;
        let _tidied = registry.list();
        assert_eq!(run.terminal_reason(), reason);
    }
}
