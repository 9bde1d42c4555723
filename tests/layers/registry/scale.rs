//! A session of ten thousand runs, each with a call under way and somebody who
//! waits for it.
//!
//! covers: C4

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request};
use http_body_util::BodyExt;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::Instant,
};
use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, PumpLayer, RunEvent, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason,
};

use super::{id, us};
use crate::support::{Script, Upstream, chat, poll_once, reason_of, request, secs};

const RUNS: usize = 10_000;

fn request_of(n: usize) -> Request<()> {
    let mut request = request();
    let headers = request.headers_mut();
    let value = |text: &str| HeaderValue::from_str(text).unwrap();
    headers.insert("x-run-id", value(&format!("r-{n}")));
    headers.insert("x-session-id", value("s"));
    request
}

/// The levels of the runtime's wheel of timers: with none but its own a long sleep
/// wakes up at most once on each.
const LEVELS: usize = 6;

/// A runtime on a paused clock, and how often it went to sleep: at least once for
/// each time at which a timer is set.
fn counting() -> (Runtime, Arc<AtomicUsize>) {
    let parks = Arc::new(AtomicUsize::new(0));
    let counted = parks.clone();
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.on_thread_park(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    (builder.build().unwrap(), parks)
}

/// How often the runtime wakes up in the time to come.
async fn wakes(parks: &AtomicUsize, time: Duration) -> usize {
    tokio::task::yield_now().await;
    let before = parks.load(Ordering::Relaxed);
    tokio::time::sleep(time).await;
    parks.load(Ordering::Relaxed) - before
}

#[test]
fn timers_that_are_left_show() {
    let (runtime, parks) = counting();
    runtime.block_on(async {
        assert!(wakes(&parks, secs(3600)).await <= LEVELS);
        let mut left = Vec::new();
        for n in 1..=2 * LEVELS {
            let mut sleep = Box::pin(tokio::time::sleep(secs(n as u64)));
            assert!(poll_once(&mut sleep).is_pending());
            left.push(sleep);
        }
        assert!(wakes(&parks, secs(3600)).await >= 2 * LEVELS);
    });
}

#[test]
fn ten_thousand_runs_of_a_session_end_in_one_call_and_nothing_is_left() {
    let (runtime, parks) = counting();
    runtime.block_on(ten_thousand(&parks));
}

async fn ten_thousand(parks: &AtomicUsize) {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).owner_by(|_| us()))
        .layer(PumpLayer::new())
        .layer(HardCeilingLayer::new(secs(600)))
        .layer(StepTimeoutLayer::new(secs(120)))
        .service(upstream.clone());
    let other = super::opened(&registry, us(), "other", "t").await;
    let before = Handle::current().metrics().num_alive_tasks();
    let (mut bodies, mut waits) = (Vec::new(), Vec::new());
    for n in 0..RUNS {
        // Each has timers at times of its own.
        tokio::time::advance(Duration::from_millis(1)).await;
        let answer = service.clone().oneshot(request_of(n)).await;
        let mut body = answer.unwrap().into_body();
        body.frame().await.unwrap().unwrap();
        bodies.push(tokio::spawn(async move {
            let error = body.frame().await.unwrap().unwrap_err();
            (reason_of(&error), body.frame().await.is_none())
        }));
        let wait = registry.wait(us(), &id(&format!("r-{n}")), secs(60));
        waits.push(tokio::spawn(wait));
    }
    tokio::task::yield_now().await;
    let mut events = registry.subscribe();
    let alive = Handle::current().metrics().num_alive_tasks();
    assert_eq!(alive - before, 2 * RUNS, "a reader and a wait each");

    let began = Instant::now();
    let aborted = registry.abort_session(us(), "s");

    assert_eq!(aborted.len(), RUNS);
    let in_order = aborted.iter().enumerate();
    assert!(
        in_order
            .clone()
            .all(|(n, run)| *run == id(&format!("r-{n}")))
    );
    assert!(registry.find_session("s").is_empty());
    for wait in waits {
        let (reason, _) = super::ended(wait.await.unwrap());
        assert_eq!(reason, TerminalReason::Aborted);
    }
    for body in bodies {
        assert_eq!(body.await.unwrap(), (Some(TerminalReason::Aborted), true));
    }
    assert_eq!(began.elapsed(), secs(0));
    let dropped = upstream.drops();
    assert_eq!(dropped.len(), RUNS);
    let knew = |reason| reason == Some(TerminalReason::Aborted);
    assert!(dropped.into_iter().all(|dropped| knew(dropped.reason)));
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
    assert_eq!(other.terminal_reason(), None);
    // An observer that did not keep up knows exactly how many it missed.
    let Some(RunEvent::Lost { events: lost }) = events.next().await else {
        panic!()
    };
    assert_eq!(lost as usize, RUNS - RunRegistry::EVENTS);
    assert!(upstream.runs().iter().all(|run| run.run().in_flight() == 0));

    let woken = wakes(parks, RunRegistry::REMEMBERED).await;
    assert!(woken <= LEVELS, "timers are left: {woken}");
    assert_eq!(registry.list().len(), 1, "the other one");
}
