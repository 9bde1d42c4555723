//! covers: C6

use std::time::Duration;

use http::{HeaderValue, Response};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, Run, RunLayer, RunRegistry, Scope,
    TerminalReason, registry::WaitOutcome,
};

use super::{ended, id, us};
use crate::support::{ReadExt, Script, Upstream, WakeCount, healthy, request, run_on, secs};

const LIMIT: Duration = RunRegistry::WAIT;

#[tokio::test(start_paused = true)]
async fn the_limit_passes_and_ends_nothing() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));

    let began = Instant::now();
    let waited = registry.wait(us(), &id("r"), LIMIT).await;

    assert!(matches!(waited, WaitOutcome::Open), "{waited:?}");
    assert_eq!(began.elapsed(), secs(30));
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_what_is_unknown_or_somebody_elses() {
    let registry = RunRegistry::new();
    let _run = registry.open(us(), id("r"));
    let began = Instant::now();
    for (owner, name) in [(us(), "s"), (tower_agent::Owner::of(b"key"), "r")] {
        let waited = registry.wait(owner, &id(name), LIMIT).await;
        assert!(matches!(waited, WaitOutcome::Unknown), "{waited:?}");
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn each_of_those_who_wait_is_answered_once_when_it_ends() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    let waits: Vec<_> = (0..100)
        .map(|_| tokio::spawn(registry.wait(us(), &id("r"), LIMIT)))
        .collect();
    sleep(secs(7)).await;

    let at = Instant::now();
    run.end(TerminalReason::TurnCap);

    for wait in waits {
        let (reason, snapshot) = ended(wait.await.unwrap());
        assert_eq!(reason, TerminalReason::TurnCap);
        assert_eq!(snapshot.elapsed, secs(7));
    }
    assert_eq!(at.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_ended_within_ten_minutes_is_answered_at_once_and_then_unknown() {
    let registry = RunRegistry::new();
    for reason in [TerminalReason::Completed, TerminalReason::Aborted] {
        registry.open(us(), id("r")).end(reason.clone());
        sleep(secs(599)).await;
        let began = Instant::now();
        let waited = registry.wait(us(), &id("r"), LIMIT).await;
        assert_eq!(ended(waited).0, reason);
        assert_eq!(began.elapsed(), Duration::ZERO);
        sleep(secs(600)).await;
        let waited = registry.wait(us(), &id("r"), LIMIT).await;
        assert!(matches!(waited, WaitOutcome::Unknown), "{waited:?}");
    }
}

/// A stream that says nothing behind a ceiling of 20 s.
async fn unread(registry: &RunRegistry, scope: Scope, id: Option<&str>) -> impl Sized {
    let upstream = Upstream::script(Script::sse().never());
    let ceiling = HardCeilingLayer::new(secs(20)).scope(scope);
    let layer = RunLayer::new(registry.clone()).owner_by(|_| us());
    let service = layer.layer(ceiling.layer(upstream));
    let mut request = request();
    if let Some(id) = id {
        let id = HeaderValue::from_str(id).unwrap();
        request.headers_mut().insert("x-run-id", id);
    }
    service.oneshot(request).await.unwrap().into_body()
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_drives_a_ceiling_that_nobody_else_polls() {
    for scope in [Scope::Run, Scope::Found] {
        let registry = RunRegistry::new();
        let _unread = unread(&registry, scope, None).await;
        let id = registry.list()[0].run.clone();

        let began = Instant::now();
        let waited = registry.wait(us(), &id, LIMIT).await;

        assert_eq!(ended(waited).0, TerminalReason::HardCeiling, "{scope:?}");
        assert_eq!(began.elapsed(), secs(20), "{scope:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_that_is_set_while_somebody_waits_is_seen() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    let began = Instant::now();
    let waited = tokio::spawn(run.child().wait(LIMIT));
    let below = tokio::spawn(run.wait(LIMIT));
    sleep(secs(3)).await;
    let _unread = unread(&registry, Scope::Run, Some("r")).await;

    for waited in [waited, below] {
        let ended = waited.await.unwrap().expect("before the limit");
        assert_eq!(ended.reason, Some(TerminalReason::HardCeiling));
        assert_eq!(began.elapsed(), secs(20), "counted from the run's opening");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_drives_the_end_of_an_idle_run() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    sleep(secs(60)).await;
    run.heartbeat();

    let began = Instant::now();
    let wait = registry.wait(us(), &id("r"), Duration::MAX);
    let waited = tokio::time::timeout(RunRegistry::IDLE * 2, wait).await;

    assert_eq!(ended(waited.unwrap()).0, TerminalReason::Completed);
    assert_eq!(began.elapsed(), RunRegistry::IDLE);
}

#[tokio::test(start_paused = true)]
async fn an_end_at_the_limit_is_answered() {
    let registry = RunRegistry::new();
    let _unread = unread(&registry, Scope::Run, Some("r")).await;

    let waited = registry.wait(us(), &id("r"), secs(20)).await;

    assert_eq!(ended(waited).0, TerminalReason::HardCeiling);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_or_has_passed_is_called_no_more() {
    let run = Run::open();
    let (dropped, passed) = (WakeCount::default(), WakeCount::default());
    let mut first = run.wait(LIMIT);
    assert!(dropped.poll(&mut first).is_pending());
    let mut second = run.wait(secs(1));
    assert!(passed.poll(&mut second).is_pending());
    sleep(secs(1)).await;
    assert!(passed.poll(&mut second).is_ready());
    assert_eq!(dropped.wakers(), 2, "the node's and the timer's");

    drop(first);

    assert_eq!((dropped.wakers(), passed.wakers()), (0, 0));
    run.end(TerminalReason::Aborted);
    assert_eq!(dropped.count(), 0);
    assert_eq!(passed.count(), 1, "by its timer alone");
}

/// A layer of the program collects the answer, whose reader is late: so the call is over, and the
/// run is not.
#[tokio::test(start_paused = true)]
async fn a_ceiling_of_a_call_that_is_over_is_not_waited_for() {
    let calls = HardCeilingLayer::new(secs(5)).layer(Upstream::script(healthy()));
    let calls = RunLayer::new(RunRegistry::new()).layer(calls);
    let collects = service_fn(|request| {
        let calls = calls.clone();
        async move {
            let (head, body) = calls.oneshot(request).await?.into_parts();
            let body = Full::new(body.collect().await?.to_bytes());
            Ok::<_, BoxError>(Response::from_parts(head, body))
        }
    });
    let service = ClientDisconnectLayer::new().layer(collects);
    let answer = service.oneshot(request()).await.unwrap();
    let run = run_on(&answer).run();
    let waited = tokio::spawn(run.wait(secs(60)));

    sleep(secs(10)).await;
    assert_eq!(run.terminal_reason(), None, "the answer is not read yet");
    drop(answer.into_body().read().await);

    let ended = waited.await.unwrap().expect("before the limit");
    assert_eq!(ended.reason, Some(TerminalReason::Completed));
}
