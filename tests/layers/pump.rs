mod drain;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http_body::Body;
use http_body_util::BodyExt;
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{HardCeilingLayer, PumpLayer, Run, Scope, StepTimeoutLayer, TerminalReason};

use crate::support::{
    DONE, Outcome, ReadExt, Script, Stack, Upstream, call_of, chat, poll_body, poll_once,
    reason_of, request, secs,
};

const LIMIT: Duration = secs(30);

const fn layer() -> PumpLayer {
    PumpLayer::new()
}

/// Yields to the other tasks without letting time pass: a task that has to stop has
/// stopped then.
async fn turns() {
    for _ in 0..4 {
        yield_now().await;
    }
}

async fn dropped_soon(upstream: &Upstream) -> Instant {
    let start = Instant::now();
    turns().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    upstream.dropped().at
}

/// covers: T17
#[tokio::test(start_paused = true)]
async fn a_reader_that_never_reads_does_not_stop_the_ceiling() {
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let stack = Stack::default().pump().ceiling(30).build(&upstream);
    let start = Instant::now();
    let mut body = stack.oneshot(request()).await.unwrap().into_body();

    sleep(LIMIT * 2).await;

    assert_eq!(upstream.dropped().at, start + LIMIT);
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::HardCeiling));
    let error = body.next().await.unwrap().unwrap_err();
    assert_eq!(
        reason_of(&error),
        Some(TerminalReason::HardCeiling),
        "no frame wins over it"
    );
    assert!(body.next().await.is_none());
}

/// covers: T17
#[tokio::test(start_paused = true)]
async fn a_ceiling_holds_for_a_reader_that_has_yet_to_take_the_error() {
    let upstream = Upstream::script(Script::sse().wait(10.0).fail("reset"));
    let stack = Stack::default().pump().ceiling(30).build(&upstream);
    let (request, node) = call_of(&Run::open());
    let start = Instant::now();
    let _unread = stack.oneshot(request).await.unwrap();

    let ended = timeout(LIMIT * 2, node.ended()).await;

    assert_eq!(ended, Ok(TerminalReason::HardCeiling));
    assert_eq!(start.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_outside_the_pump_holds_for_a_reader_that_never_reads() {
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(layer())
        .service(upstream.clone());
    let start = Instant::now();
    let _body = service.oneshot(request()).await.unwrap().into_body();

    sleep(LIMIT * 2).await;

    assert_eq!(upstream.dropped().at, start + LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_elsewhere_drops_upstream_though_nobody_reads() {
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let stack = Stack::default().pump().build(&upstream);
    let _body = stack.oneshot(request()).await.unwrap();
    sleep(secs(7)).await;

    upstream.run().end(TerminalReason::Shutdown);

    let now = Instant::now();
    assert_eq!(dropped_soon(&upstream).await, now);
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::Shutdown));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_all_bytes_in_order() {
    let texts: Vec<String> = (0..40).map(|n| chat(&n.to_string())).collect();
    let script = texts
        .iter()
        .fold(Script::sse(), |script, text| script.data(text))
        .data(DONE);
    let upstream = Upstream::script(script);
    let stack = Stack::default().pump().build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    let mut seen = Vec::new();

    while let Some(frame) = body.next().await {
        seen.push(frame.unwrap());
        sleep(secs(3)).await;
    }

    assert_eq!(seen.concat(), texts.concat() + DONE);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn upstream_is_read_as_fast_as_its_reader_reads() {
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let stack = Stack::default().pump().build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    for frames in 0..3 {
        turns().await;
        assert_eq!(upstream.frames(), frames);
        body.token().await;
    }
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_dropped_future_is_a_disconnect_and_drops_upstream_in_one_turn() {
    let upstream = Upstream::script(Script::before_head().never());
    let mut call = Stack::default().pump().build(&upstream).call(request());
    assert!(poll_once(&mut call).is_pending());
    turns().await;

    drop(call);

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::ClientDisconnect)
    );
    dropped_soon(&upstream).await;
    assert_eq!(
        upstream.dropped().reason,
        Some(TerminalReason::ClientDisconnect)
    );
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_never_polled_is_a_disconnect_too() {
    let upstream = Upstream::script(Script::before_head().never());

    drop(Stack::default().pump().build(&upstream).call(request()));

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::ClientDisconnect)
    );
    dropped_soon(&upstream).await;
    assert_eq!(upstream.run().in_flight(), 0);
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_dropped_body_is_a_disconnect_at_every_point() {
    for frames in 0..3 {
        let upstream = Upstream::script(Script::sse().repeat(3, 1.0, chat("a")).never());
        let stack = Stack::default().pump().build(&upstream);
        let mut body = stack.oneshot(request()).await.unwrap().into_body();
        for _ in 0..frames {
            body.token().await;
        }

        drop(body);

        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::ClientDisconnect)
        );
        dropped_soon(&upstream).await;
        assert_eq!(
            upstream.dropped().reason,
            Some(TerminalReason::ClientDisconnect)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_leaves_ends_its_call_and_not_the_run() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().repeat(3, 1.0, chat("a")).never());
    let stack = Stack::default().pump().build(&upstream);
    let stays = stack.clone().oneshot(run.attach(request())).await;
    let (leaves, call) = call_of(&run);
    let leaves = stack.oneshot(leaves).await.unwrap();

    drop(leaves);

    assert_eq!(
        call.terminal_reason(),
        Some(TerminalReason::ClientDisconnect)
    );
    turns().await;
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 1));
    assert_eq!(upstream.calls(), 2);
    stays.unwrap().into_body().token().await;
}

/// covers: C3
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_handed_over_is_complete_though_not_polled_to_its_end() {
    for script in [
        Script::sse().data(DONE),
        Script::json().size(4).data("abcd"),
        Script::json().knows_its_end().data("x"),
    ] {
        let upstream = Upstream::script(script);
        let stack = Stack::default().pump().build(&upstream);
        let mut body = stack.oneshot(request()).await.unwrap().into_body();
        body.token().await;

        drop(body);

        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::Completed)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_hand_an_answer_over() {
    let upstream = Upstream::script(Script::json().data("ab").trailers());
    let stack = Stack::default().pump().build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    assert!(body.frame().await.unwrap().unwrap().is_trailers());

    drop(body);

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_that_follows_frames_is_delivered_after_them() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(chat("b")).fail("reset"));
    let stack = Stack::default().pump().build(&upstream);
    let body = stack.oneshot(request()).await.unwrap().into_body();
    turns().await;

    let read = body.read().await;

    assert_eq!(read.text, chat("a") + &chat("b"));
    assert_eq!(read.end.unwrap_err().to_string(), "reset");
}

#[tokio::test(start_paused = true)]
async fn a_stored_reason_wins_over_a_frame_that_is_ready() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(chat("b")).never());
    let stack = Stack::default().pump().build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    assert_eq!(body.token().await, chat("a"));
    turns().await;
    upstream.run().end(TerminalReason::Aborted);

    let error = body.next().await.unwrap().unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert!(body.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_error_before_the_head_comes_through() {
    let upstream = Upstream::script(Script::before_head().wait(1.0).fail("refused"));

    let stack = Stack::default().pump().build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.error.unwrap().to_string(), "refused");
    assert_eq!(
        upstream.run().terminal_reason().unwrap().as_str(),
        "upstream_failed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_inside_is_the_readers() {
    std::panic::set_hook(Box::new(|_| {}));
    let upstreams = [
        Script::before_head().panic(),
        Script::json().data("ab").panic(),
    ]
    .map(Upstream::script);
    for upstream in &upstreams {
        let call = Stack::default().pump().build(upstream).ask(request());
        assert!(tokio::spawn(call).await.unwrap_err().is_panic());
    }
    let _ = std::panic::take_hook();

    for upstream in upstreams {
        let left = Some(TerminalReason::Aborted);
        assert_eq!(upstream.run().terminal_reason(), left);
        assert_eq!(upstream.run().in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn size_hint_end_and_trailers_come_through() {
    let upstream = Upstream::script(Script::json().size(3).knows_its_end().data("ab").data("c"));
    let stack = Stack::default().pump().build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    assert_eq!(body.size_hint().exact(), Some(3));
    body.token().await;
    assert_eq!(body.size_hint().exact(), Some(1));
    assert!(!body.is_end_stream());
    body.token().await;
    assert!(body.is_end_stream());

    let upstream = Upstream::script(Script::json().knows_its_end());
    let stack = Stack::default().pump().build(&upstream);
    let body = stack.oneshot(request()).await.unwrap().into_body();
    assert!(body.is_end_stream(), "a body born ended");

    let upstream = Upstream::script(Script::json().data("ab").trailers());
    let stack = Stack::default().pump().build(&upstream);
    let outcome = stack.ask(request()).await;
    assert_eq!(outcome.trailers.as_ref().unwrap()["x-sum"], "42");
    assert_eq!(outcome.whole(), "ab");
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_is_an_error_through_the_pump() {
    for script in [
        Script::sse().data(chat("a")),
        Script::sse().data(chat("a")).knows_its_end(),
    ] {
        let upstream = Upstream::script(script);

        let stack = Stack::default().pump().build(&upstream);
        let outcome = stack.ask(request()).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.text, chat("a"));
        assert!(
            outcome
                .error
                .unwrap()
                .is::<tower_agent::llm::dialect::Truncated>()
        );
        assert_eq!(
            upstream.run().terminal_reason().unwrap().as_str(),
            "upstream_failed"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_window_inside_runs_while_the_reader_waits() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let stack = Stack::default().pump().step(10).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    sleep(secs(60)).await;
    assert!(!upstream.is_dropped(), "nobody waits for it");
    let asked = Instant::now();

    let error = body.next().await.unwrap().unwrap_err();

    assert_eq!(upstream.dropped().at, asked + secs(10));
    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_no_silence() {
    let upstream = Upstream::script(Script::sse().repeat(20, 1.0, chat("a")).data(DONE));
    let service = ServiceBuilder::new()
        .layer(PumpLayer::new())
        .layer(StepTimeoutLayer::new(secs(10)))
        .service(upstream.clone());
    let body = service.oneshot(request()).await.unwrap().into_body();
    sleep(secs(200)).await;

    let read = body.read().await;

    assert_eq!(read.whole(), chat("a").repeat(20) + DONE);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn a_step_window_further_out_still_sees_progress_and_silence() {
    let upstream = Upstream::script(Script::sse().repeat(5, 8.0, chat("a")).never());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(10)))
        .layer(layer())
        .service(upstream.clone());
    let start = Instant::now();

    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.frames, 5);
    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(start.elapsed(), secs(50));
    turns().await;
    assert_eq!(upstream.dropped().at, start + secs(50));
}

#[tokio::test(start_paused = true)]
async fn a_window_on_the_run_outside_and_inside_the_pump_ends_the_run() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let window = StepTimeoutLayer::new(secs(10)).scope(Scope::Run);
    let service = ServiceBuilder::new()
        .layer(window)
        .layer(layer())
        .layer(window)
        .service(upstream.clone());
    let start = Instant::now();

    let outcome = Outcome::of(service.oneshot(run.attach(request()))).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(start.elapsed(), secs(10));
    turns().await;
    assert_eq!(upstream.dropped().at, start + secs(10));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::StepTimeout));
}

#[tokio::test(start_paused = true)]
async fn two_pumps_in_one_stack_hand_everything_on() {
    let upstream = Upstream::script(Script::sse().repeat(30, 0.1, chat("a")).data(DONE));
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(layer())
        .service(upstream.clone());

    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.whole(), chat("a").repeat(30) + DONE);
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
    assert_eq!(upstream.run().in_flight(), 0);
}

fn tasks() -> usize {
    let runtime = tokio::runtime::Handle::current();
    runtime.metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_well_spawns_nothing() {
    let upstream = Upstream::script(Script::sse().repeat(3, 1.0, chat("a")).data(DONE));
    let stack = Stack::default().pump().ceiling(30).build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();

    while let Some(frame) = body.next().await {
        frame.unwrap();
        assert_eq!(tasks(), 0);
    }
    drop(body);

    assert_eq!(tasks(), 0);
    assert!(!upstream.is_dropped());
    sleep(LIMIT).await;
    assert_eq!(tasks(), 0, "no timer is left");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_ended_run_spawns_nothing() {
    let run = Run::open();
    run.end(TerminalReason::Aborted);
    let upstream = Upstream::script(Script::sse());

    let stack = Stack::default().pump().build(&upstream);
    let outcome = stack.ask(run.attach(request())).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::Aborted));
    assert_eq!(upstream.calls(), 0);
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_was_read_halfway_waits_for_its_reader_without_spinning() {
    let upstream = Upstream::script(Script::sse().repeat(20, 0.0, chat("a")).data(DONE));
    let stack = Stack::default().pump().build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    sleep(secs(1)).await;
    let polls = upstream.polls();

    sleep(secs(3600)).await;

    assert_eq!(upstream.polls(), polls);
    assert!(poll_body(&mut body).is_ready());
}

#[tokio::test(start_paused = true)]
async fn the_callers_span_is_kept() {
    use tracing::Instrument;
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry());
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let inner = tower::service_fn(move |_: http::Request<()>| {
        let seen = Arc::clone(&seen);
        async move {
            let span = tracing::Span::current();
            seen.lock()
                .unwrap()
                .extend(span.metadata().map(tracing::Metadata::name));
            Ok::<_, tower_agent::BoxError>(http::Response::new(Script::json().data("x").body()))
        }
    });

    let call = async {
        let answer = layer().layer(inner).oneshot(request()).await.unwrap();
        answer.into_body().read().await.whole()
    };
    call.instrument(tracing::info_span!("the_callers")).await;

    assert_eq!(*names.lock().unwrap(), ["the_callers"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_complete_inside_is_read_to_its_end_outside() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE));
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(tower_agent::RunLayer::new(tower_agent::RunRegistry::new()))
        .service(upstream.clone());
    let body = service.oneshot(request()).await.unwrap().into_body();
    turns().await;

    let read = body.read().await;

    assert_eq!(read.whole(), chat("a") + DONE);
    assert_eq!(
        upstream.run().run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

/// Two calls of one run: the second lowers the ceiling while the first has no reader.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_lowered_while_nobody_reads_holds() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().flood(chat("a")));
    let ceiling = |limit| {
        let ceiling = HardCeilingLayer::new(secs(limit)).scope(Scope::Run);
        layer().layer(ceiling.layer(upstream.clone()))
    };
    let start = Instant::now();
    let _first = ceiling(60).oneshot(run.attach(request())).await.unwrap();
    sleep(secs(5)).await;
    let _second = ceiling(30).oneshot(run.attach(request())).await.unwrap();

    sleep(secs(60)).await;

    for dropped in upstream.drops() {
        assert_eq!(dropped.at, start + LIMIT);
    }
    assert_eq!(upstream.drops().len(), 2);
}

/// Behind an early head the reader of a body polls the future.
#[tokio::test(start_paused = true)]
async fn a_ceiling_holds_though_nobody_polls_the_future() {
    let upstream = Upstream::script(Script::before_head().wait(100.0));
    let stack = Stack::default().pump().ceiling(30).build(&upstream);
    let start = Instant::now();
    let mut call = stack.oneshot(request());
    assert!(poll_once(&mut call).is_pending());

    sleep(LIMIT * 2).await;

    assert_eq!(upstream.dropped().at, start + LIMIT);
    let error = call.await.unwrap_err();
    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_ready_at_the_deadline_beats_it_for_a_reader_that_waits() {
    let upstream = Upstream::script(Script::sse().wait(30.0).data(chat("a")).never());
    let stack = Stack::default().pump().ceiling(30).build(&upstream);

    let read = stack.oneshot(request()).await.unwrap().into_body().read();
    let read = read.await;

    assert_eq!(read.text, chat("a"));
    assert_eq!(read.reason(), Some(TerminalReason::HardCeiling));
}

/// A body that panics when it is dropped.
struct Grenade;

impl Body for Grenade {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("this body does not like to be dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_in_its_drop_disturbs_no_other_call() {
    std::panic::set_hook(Box::new(|_| {}));
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().pump().build(&upstream);
    let grenade = tower::service_fn(|_| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(Grenade))
    });
    let before = stack.clone().oneshot(run.attach(request())).await;
    let broken = layer().layer(grenade).oneshot(run.attach(request())).await;
    let after = stack.oneshot(run.attach(request())).await;

    run.end(TerminalReason::Aborted);
    turns().await;
    let _ = std::panic::take_hook();

    assert_eq!(upstream.drops().len(), 2);
    drop((before, broken, after));
    assert_eq!(run.settled().await, TerminalReason::Aborted);
    assert_eq!(run.in_flight(), 0);
}

/// The guard of a call and its reader meet on two threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_end_that_meets_the_reader_on_another_thread_leaves_nothing() {
    for round in 0..200 {
        let run = Run::open();
        let upstream = Upstream::script(Script::sse().repeat(3, 0.0, chat("a")).never());
        let stack = Stack::default().pump().ceiling(600).build(&upstream);
        let mut readers = Vec::new();
        for n in 0..4 {
            let call = stack.clone().oneshot(run.attach(request()));
            readers.push(tokio::spawn(async move {
                let mut body = call.await?.into_body();
                // The last one does not read.
                if n < 3 {
                    while let Some(frame) = body.frame().await {
                        frame?;
                    }
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok::<_, tower_agent::BoxError>(())
            }));
        }
        for _ in 0..round % 7 {
            yield_now().await;
        }

        run.end(TerminalReason::Aborted);
        let settled = timeout(secs(10), run.settled()).await;

        assert_eq!(settled, Ok(TerminalReason::Aborted), "round {round}");
        assert_eq!(upstream.drops().len(), upstream.calls());
        for reader in readers {
            drop(reader.await.unwrap());
        }
    }
}

/// A body that drops its reader when it drops, and notes whether its run has settled then.
struct Entangled {
    reader: Arc<Mutex<Option<Box<dyn Send>>>>,
    run: Run,
    settled: Arc<Mutex<Vec<bool>>>,
}

impl Body for Entangled {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

impl Drop for Entangled {
    fn drop(&mut self) {
        let reader = self.reader.lock().unwrap().take();
        drop(reader);
        let settled = poll_once(&mut self.run.settled()).is_ready();
        self.settled.lock().unwrap().push(settled);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_settles_after_its_work_though_the_reader_leaves_first() {
    let run = Run::open();
    let reader = Arc::<Mutex<Option<Box<dyn Send>>>>::default();
    let settled = Arc::<Mutex<Vec<bool>>>::default();
    let body = Entangled {
        reader: Arc::clone(&reader),
        run: run.clone(),
        settled: Arc::clone(&settled),
    };
    let mut body = Some(body);
    let upstream = tower::service_fn(|_| {
        let body = body.take().unwrap();
        async { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
    });
    let answer = layer().layer(upstream).oneshot(run.attach(request())).await;
    *reader.lock().unwrap() = Some(Box::new(answer.unwrap()));

    run.end(TerminalReason::Aborted);
    turns().await;

    assert_eq!(*settled.lock().unwrap(), [false]);
    assert_eq!(run.settled().await, TerminalReason::Aborted);
}
