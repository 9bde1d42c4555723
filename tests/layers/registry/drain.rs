//! covers: C10

use http::Request;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{HardCeilingLayer, RetryBudgetLayer, Run, RunLayer, RunRegistry, TerminalReason};

use super::{id, us};
use crate::support::{
    DONE, ReadExt, Script, Upstream, chat, failure, no_delay, prompt, reason_of, request, secs,
    with_header,
};

const SHUTDOWN: Option<TerminalReason> = Some(TerminalReason::Shutdown);

fn layer(registry: &RunRegistry) -> RunLayer {
    RunLayer::new(registry.clone()).owner_by(|_| us())
}

fn named(id: &str) -> Request<()> {
    with_header(request(), "x-run-id", id)
}

/// An answer that is done after ten seconds.
fn ten_seconds() -> Script {
    Script::sse().data(chat("a")).wait(10.0).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn what_nobody_works_on_ends_at_once_and_nothing_is_admitted_any_more() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    registry.open(us(), id("over")).end(TerminalReason::TurnCap);

    assert_eq!(registry.drain(secs(30)).await, 0);

    assert_eq!(run.terminal_reason(), SHUTDOWN);
    assert_eq!(registry.open(us(), id("s")).terminal_reason(), SHUTDOWN);
    assert!(registry.get(us(), &id("s")).is_none());
    assert!(registry.supersede(us(), &id("r"), id("t")).is_none());
    assert!(registry.reopen(us(), &id("over")).is_none());
    let upstream = Upstream::script(Script::sse().data(DONE));
    let service = layer(&registry).layer(upstream.clone());
    for late in [request(), named("new"), named("r"), request_of_new_run()] {
        let error = service.clone().oneshot(late).await.map(drop).unwrap_err();
        assert_eq!(reason_of(&error), SHUTDOWN);
    }
    assert_eq!(upstream.calls(), 0);
}

fn request_of_new_run() -> Request<()> {
    crate::support::request_of(&Run::open())
}

#[tokio::test(start_paused = true)]
async fn a_run_of_one_call_finishes_and_is_completed() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(ten_seconds());
    let answer = layer(&registry).layer(upstream).oneshot(request()).await;
    let reading = tokio::spawn(answer.unwrap().into_body().read());
    sleep(secs(1)).await;
    let run = registry.find(&registry.list()[0].run).remove(0);

    let began = Instant::now();
    let cut = registry.drain(secs(30)).await;

    assert_eq!((began.elapsed(), cut), (secs(9), 0));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    reading.await.unwrap().whole();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_its_call_finishes_as_well() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(ten_seconds());
    // The first layer opens the run, the one for ids gives it its name.
    let service = HardCeilingLayer::new(secs(60)).layer(layer(&registry).layer(upstream));
    let answer = service.oneshot(request()).await.unwrap();
    let reading = tokio::spawn(answer.into_body().read());
    sleep(secs(1)).await;
    let run = registry.find(&registry.list()[0].run).remove(0);

    assert_eq!(registry.drain(secs(30)).await, 0);

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    reading.await.unwrap().whole();
}

#[tokio::test(start_paused = true)]
async fn the_current_step_of_a_run_of_many_finishes_and_no_other_starts() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(ten_seconds());
    let service = layer(&registry).layer(upstream.clone());
    let answer = service.clone().oneshot(named("r")).await.unwrap();
    let reading = tokio::spawn(answer.into_body().read());
    sleep(secs(1)).await;
    let run = registry.get(us(), &id("r")).unwrap();

    let drained = tokio::spawn(registry.drain(secs(30)));
    sleep(secs(1)).await;
    assert_eq!(run.terminal_reason(), None, "it is under way");
    let error = service.oneshot(named("r")).await.map(drop).unwrap_err();
    assert_eq!(reason_of(&error), SHUTDOWN);
    let tool = run.tool("t").watch(std::future::ready(())).await;
    assert_eq!(tool.unwrap_err().reason, TerminalReason::Shutdown);

    assert_eq!(drained.await.unwrap(), 0);
    reading.await.unwrap().whole();
    assert_eq!(run.terminal_reason(), SHUTDOWN);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_while_it_drains_is_the_last() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(failure(503).delayed(5));
    let service = ServiceBuilder::new()
        .layer(layer(&registry))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    let calling = tokio::spawn(service.oneshot(prompt("m")));
    sleep(secs(1)).await;

    registry.drain(secs(30)).await;

    drop(calling.await.unwrap());
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_at_the_limit_is_cut_whether_the_drain_is_polled_or_not() {
    for polled in [true, false] {
        let registry = RunRegistry::new();
        let upstream = Upstream::script(Script::sse().data(chat("a")).never());
        let answer = layer(&registry)
            .layer(upstream.clone())
            .oneshot(named("r"))
            .await;
        let reading = tokio::spawn(answer.unwrap().into_body().read());
        sleep(secs(1)).await;

        let began = Instant::now();
        let drain = registry.drain(secs(30));
        match polled {
            true => assert_eq!(drain.await, 1),
            false => drop(drain),
        }
        let read = reading.await.unwrap();

        assert_eq!(began.elapsed(), secs(30));
        assert_eq!(read.reason(), SHUTDOWN);
        assert_eq!(upstream.dropped().reason, SHUTDOWN);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_cuts_at_its_limit_what_nobody_reads() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().never());
    let unread = layer(&registry).layer(upstream).oneshot(named("r")).await;
    let run = registry.get(us(), &id("r")).unwrap();
    let draining = tokio::spawn(registry.drain(secs(30)));
    sleep(secs(29)).await;
    assert_eq!(run.terminal_reason(), None);
    sleep(secs(2)).await;

    assert_eq!(run.terminal_reason(), SHUTDOWN);
    assert_eq!(run.elapsed(), secs(30));
    assert!(!draining.is_finished(), "what it held is not given back");
    drop(unread);
    assert_eq!(draining.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cuts_a_drain_short() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().never());
    let answer = layer(&registry).layer(upstream).oneshot(named("r")).await;
    let reading = tokio::spawn(answer.unwrap().into_body().read());
    let drain = registry.drain(secs(30));

    let began = Instant::now();
    assert_eq!(registry.shutdown(), 1);

    assert_eq!(drain.await, 0, "not at the limit");
    assert_eq!(began.elapsed(), secs(0));
    assert_eq!(reading.await.unwrap().reason(), SHUTDOWN);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_keeps_it_no_longer_than_a_second() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let answer = layer(&registry).layer(upstream).oneshot(named("r")).await;
    let began = Instant::now();

    assert_eq!(registry.drain(secs(5)).await, 1);

    assert_eq!(began.elapsed(), secs(6));
    drop(answer);
}
