use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_agent::{HardCeilingLayer, NodeKind, Run, Scope, StepTimeoutLayer, TerminalReason};

use crate::support::{
    DONE, Outcome, ReadExt, Script, Stack, Upstream, call_of, later, poll_once, request, secs,
};

#[tokio::test(start_paused = true)]
async fn an_attached_call_is_settled_by_the_first_layer_and_by_no_other() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(Script::sse().data(DONE));
    let inner = StepTimeoutLayer::new(secs(10)).layer(upstream);
    let service = HardCeilingLayer::new(secs(10)).layer(inner);

    let mut body = service.oneshot(request).await.unwrap().into_body();
    assert_eq!(run.in_flight(), 1);
    body.token().await;
    assert_eq!(call.terminal_reason(), None);
    assert!(body.next().await.is_none());

    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn the_run_keeps_the_reason_of_its_last_call() {
    let run = Run::open();
    assert_eq!(run.last_end(), None);
    let stack = Stack::default().step(10);
    let ask = async |script| {
        let stack = stack.build(&Upstream::script(script));
        stack.ask(run.attach(request())).await;
        run.last_end()
    };

    let cut = ask(Script::sse().never()).await;
    let whole = ask(Script::sse().data(DONE)).await;

    assert_eq!(cut, Some(TerminalReason::StepTimeout));
    assert_eq!(whole, Some(TerminalReason::Completed));
    assert_eq!(run.terminal_reason(), None);
    let child = run.child();
    assert_eq!(child.last_end(), None);
    assert_eq!(
        run.attach(request())
            .extensions()
            .get::<Run>()
            .unwrap()
            .last_end(),
        whole
    );
    assert_eq!(
        run.last_end(),
        Some(TerminalReason::Aborted),
        "nobody took it"
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_end_of_a_run_that_is_one_call_is_its_own() {
    let upstream = Upstream::script(Script::sse().never());
    let answer = Stack::default()
        .step(10)
        .build(&upstream)
        .oneshot(request());
    let answer = answer.await.unwrap();
    let run = answer.extensions().get::<Run>().unwrap().clone();

    answer.into_body().read().await;

    assert_eq!(run.last_end(), Some(TerminalReason::StepTimeout));
}

#[tokio::test(start_paused = true)]
async fn a_scope_is_its_futures_alone_in_polls_and_drops() {
    let [outer, inner] = [Run::open(), Run::open()];
    let current = || Run::current().map(|run| run.id());
    struct AtDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for AtDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let dropped = Mutex::new(None);

    let mut scope = Box::pin(outer.scope(async {
        let _at_drop = AtDrop(|| *dropped.lock().unwrap() = current());
        sleep(secs(1)).await;
        assert_eq!(current(), Some(outer.id()));
        inner
            .scope(async { assert_eq!(current(), Some(inner.id())) })
            .await;
        assert_eq!(current(), Some(outer.id()));
        let spawned = tokio::spawn(async { Run::current().is_none() });
        assert!(spawned.await.unwrap());
        std::future::pending::<()>().await;
    }));
    assert!(poll_once(&mut scope).is_pending());
    assert_eq!(current(), None);
    tokio::time::timeout(secs(5), &mut scope).await.unwrap_err();
    drop(scope);

    assert_eq!(*dropped.lock().unwrap(), Some(outer.id()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_no_layer_took_is_aborted_with_the_last_clone_of_its_request() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let clone = request.clone();

    drop(request);
    assert_eq!(call.terminal_reason(), None);
    assert_eq!(run.in_flight(), 1);
    drop(clone);

    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn clones_of_an_attached_request_are_claimed_once() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(Script::sse().data(DONE));
    let stack = Stack::default().step(10).build(&upstream);

    let first = stack.clone().oneshot(request.clone()).await.unwrap();
    let second = stack.oneshot(request).await.unwrap();
    drop(second);
    assert_eq!(call.terminal_reason(), None, "the second has not taken it");
    first.into_body().read().await.whole();

    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_under_an_ended_run() {
    let run = Run::open();
    run.end(TerminalReason::Stuck);
    let upstream = Upstream::script(Script::sse().data(DONE));

    let stack = Stack::default().step(10).build(&upstream);
    let outcome = stack.ask(run.attach(request())).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::Stuck));
    assert_eq!(upstream.calls(), 0);
    assert_eq!(run.child().terminal_reason(), Some(TerminalReason::Stuck));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_parents_end_ends_its_children_and_those_opened_later_and_not_the_other_way() {
    let parent = Run::open();
    let child = parent.child();
    let grandchild = child.child();
    let other = parent.child();

    assert!(child.end(TerminalReason::Aborted));
    assert_eq!(grandchild.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(parent.terminal_reason(), None);
    assert_eq!(other.terminal_reason(), None);
    assert!(parent.end(TerminalReason::Shutdown));

    assert_eq!(
        child.terminal_reason(),
        Some(TerminalReason::Aborted),
        "the first stays"
    );
    assert_eq!(other.terminal_reason(), Some(TerminalReason::Shutdown));
    assert_eq!(
        parent.child().terminal_reason(),
        Some(TerminalReason::Shutdown)
    );
}

#[tokio::test(start_paused = true)]
async fn scope_run_of_a_sub_agent_is_the_sub_agents_run() {
    let parent = Run::open();
    let child = parent.child();
    let upstream = Upstream::script(Script::sse().never());
    let service = HardCeilingLayer::new(secs(10))
        .scope(Scope::Run)
        .layer(upstream);

    let outcome = Outcome::of(service.oneshot(child.attach(request()))).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
    assert_eq!(child.terminal_reason(), Some(TerminalReason::HardCeiling));
    assert_eq!(parent.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_parents_end_drops_the_upstream_of_a_sub_agents_call() {
    let parent = Run::open();
    let child = parent.child();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().ceiling(100).build(&upstream);
    let body = stack
        .oneshot(child.attach(request()))
        .await
        .unwrap()
        .into_body();
    let start = Instant::now();

    later(5, {
        let parent = parent.clone();
        move || parent.end(TerminalReason::Aborted)
    });
    let read = body.read().await;

    assert_eq!(read.reason(), Some(TerminalReason::Aborted));
    assert_eq!(upstream.dropped().at, start + secs(5));
}

#[tokio::test(start_paused = true)]
async fn ended_resolves_at_the_end_and_settled_when_the_work_is_gone() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().step(100).build(&upstream);
    let answer = stack.oneshot(run.attach(request())).await.unwrap();
    let mut ended = run.ended();
    let mut settled = run.settled();
    assert!(poll_once(&mut ended).is_pending());
    assert!(poll_once(&mut settled).is_pending());

    run.end(TerminalReason::Aborted);

    assert_eq!(ended.await, TerminalReason::Aborted);
    assert!(
        poll_once(&mut settled).is_pending(),
        "the body is still there"
    );
    drop(answer);
    assert_eq!(settled.await, TerminalReason::Aborted);
    assert_eq!(
        run.ended().await,
        TerminalReason::Aborted,
        "also for who comes late"
    );
}

#[tokio::test(start_paused = true)]
async fn ended_wakes_every_waiter() {
    let run = Run::open();
    let waiters: Vec<_> = (0..5).map(|_| tokio::spawn(run.ended())).collect();
    sleep(secs(1)).await;

    run.end(TerminalReason::Stuck);

    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), TerminalReason::Stuck);
    }
}

#[tokio::test(start_paused = true)]
async fn check_latches_the_outermost_clock_that_has_passed() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(Script::sse().never());
    let inner = HardCeilingLayer::new(secs(10)).layer(upstream);
    let _pending = HardCeilingLayer::new(secs(20))
        .scope(Scope::Run)
        .layer(inner)
        .call(request);
    assert!(call.check().is_ok());
    advance(secs(20)).await;

    let end = call.check().unwrap_err();

    assert_eq!(
        (end.kind, end.reason),
        (NodeKind::Run, TerminalReason::HardCeiling)
    );
    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_node_opens_a_run_that_is_its_call() {
    let upstream = Upstream::script(Script::json().data("{}"));

    let stack = Stack::default().disconnect().build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    assert_eq!(
        answer.extensions().get::<Run>().unwrap().id(),
        upstream.run().id()
    );
    answer.into_body().read().await.whole();

    let run = upstream.run();
    assert_eq!(run.kind(), NodeKind::Run);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn judged_failures_settle_as_failed_with_their_class() {
    let error_event = "data: {\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n";
    let cases = [
        (Script::json().status(429).data("{}"), "rate_limit"),
        (Script::json().status(500).data("{}"), "server"),
        (Script::sse().data(error_event), "overloaded"),
        (Script::before_head().fail("reset"), "transport"),
        (
            Script::before_head().fail_with(|| "no idea".into()),
            "server",
        ),
    ];
    for (script, class) in cases {
        let upstream = Upstream::script(script);
        let answer = StepTimeoutLayer::new(secs(10))
            .layer(upstream.clone())
            .oneshot(request())
            .await;
        if let Ok(answer) = answer {
            answer.into_body().read().await;
        }
        match upstream.run().terminal_reason() {
            Some(TerminalReason::Failed(found)) => assert_eq!(found.as_str(), class),
            other => panic!("{other:?} in place of {class}"),
        }
    }
}

/// covers: E3
#[tokio::test(start_paused = true)]
async fn a_snapshot_serializes_to_what_an_operator_reads() {
    let run = Run::open();
    advance(secs(2)).await;
    run.heartbeat();
    run.end(TerminalReason::Aborted);

    let json = serde_json::to_value(run.snapshot()).unwrap();

    assert_eq!(json["reason"], "aborted");
    assert_eq!(json["elapsed_ms"], 2000);
    assert_eq!(json["kind"], "run");
    assert_eq!(json["progress"]["heartbeats"], 1);
    assert_eq!(json["in_flight"], 0);
}

/// A call that fails at its first poll, and notes the reason of its node when it drops.
struct Fails {
    call: Run,
    seen: Arc<Mutex<Vec<Option<TerminalReason>>>>,
}

impl Future for Fails {
    type Output = Result<Response<Full<Bytes>>, io::Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Err(io::Error::other("reset")))
    }
}

impl Drop for Fails {
    fn drop(&mut self) {
        self.seen.lock().unwrap().push(self.call.terminal_reason());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_failed_drops_before_its_node_settles() {
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let (request, call) = call_of(&Run::open());
    let fails = service_fn(|_| Fails {
        call: call.clone(),
        seen: Arc::clone(&seen),
    });

    let failed = HardCeilingLayer::new(secs(10))
        .layer(fails)
        .oneshot(request);

    assert!(failed.await.is_err());
    assert_eq!(*seen.lock().unwrap(), [None]);
    assert!(call.terminal_reason().is_some());
}
