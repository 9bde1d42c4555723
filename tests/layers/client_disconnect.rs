use futures_util::FutureExt;
use http::Method;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::sleep;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{ClientDisconnectLayer, PumpLayer, Run, RunRegistry, Scope, TerminalReason};

use crate::support::{
    DONE, FINISH, Outcome, Place, ReadExt, STOP, Script, Stack, Upstream, call_of, chat,
    content_block, messages, plain, poll_body, poll_once, request, secs,
};

const fn layer() -> ClientDisconnectLayer {
    ClientDisconnectLayer::new()
}

fn gone() -> Option<TerminalReason> {
    Some(TerminalReason::ClientDisconnect)
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_future_dropped_before_its_first_poll_is_a_disconnect() {
    let upstream = Upstream::script(Script::before_head().never());

    drop(layer().layer(upstream.clone()).call(request()));

    assert_eq!(upstream.run().terminal_reason(), gone());
    assert_eq!(upstream.dropped().reason, gone(), "stored before the drop");
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_future_dropped_while_it_waits_is_a_disconnect() {
    let upstream = Upstream::script(Script::before_head().wait(5.0).never());
    let mut call = layer().layer(upstream.clone()).call(request());
    assert!(poll_once(&mut call).is_pending());

    drop(call);

    assert_eq!(upstream.run().terminal_reason(), gone());
    assert_eq!(upstream.dropped().reason, gone());
}

/// A server's task drops what it has while it unwinds.
///
/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_service_is_no_disconnect() {
    for polls in [0, 1] {
        let (sender, runs) = std::sync::mpsc::channel();
        let service = tower::service_fn(move |request: http::Request<_>| {
            let run = request.extensions().get::<Run>().cloned();
            sender.send(run.unwrap()).unwrap();
            async move {
                for _ in 0..polls {
                    sleep(secs(1)).await;
                }
                assert!(polls > 1, "the service's own");
                let body = http_body_util::Empty::<bytes::Bytes>::new();
                Ok::<_, tower_agent::BoxError>(http::Response::new(body))
            }
        });
        let call = layer().layer(service).oneshot(request());

        let panicked = tokio::spawn(call).await.unwrap_err();

        assert!(panicked.is_panic());
        let run = runs.recv().unwrap();
        assert_eq!(run.terminal_reason(), Some(TerminalReason::Aborted));
    }
}

/// A handler ran in a task of its own, whose panic was resumed by the one that waited for it: the log and
/// the probes called that a client that had left.
///
/// <https://github.com/oxidecomputer/dropshot/pull/1677>
///
/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_panic_that_is_resumed_from_another_task_is_no_disconnect() {
    let (sender, runs) = std::sync::mpsc::channel();
    let service = tower::service_fn(move |request: http::Request<_>| {
        let run = request.extensions().get::<Run>().cloned();
        sender.send(run.unwrap()).unwrap();
        async move {
            let task = tokio::spawn(async { panic!("the handler's own") });
            let panicked: tokio::task::JoinError = task.await.map(|(): ()| ()).unwrap_err();
            if panicked.is_panic() {
                std::panic::resume_unwind(panicked.into_panic());
            }
            let body = http_body_util::Empty::<bytes::Bytes>::new();
            Ok::<_, tower_agent::BoxError>(http::Response::new(body))
        }
    });

    let panicked = tokio::spawn(layer().layer(service).oneshot(request())).await;

    assert!(panicked.unwrap_err().is_panic());
    let run = runs.recv().unwrap();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Aborted));
}

async fn is_caught<T>(call: impl Future<Output = T>) -> bool {
    let caught = std::panic::AssertUnwindSafe(call).catch_unwind().await;
    caught.is_err()
}

/// The layer that turns a panic into an answer is the outermost one, and drops what panicked once the
/// unwinding is over.
///
/// <https://github.com/paiml/aprender/pull/2509>
///
/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_panic_that_a_layer_outside_catches_is_no_disconnect() {
    for polls in [0, 1] {
        for drains in [None, Some(false), Some(true)] {
            let script = match polls {
                0 => Script::before_head().panic(),
                _ => Script::before_head().wait(1.0).panic(),
            };
            let upstream = Upstream::script(script);
            let service = upstream.clone();
            // No `async` between the layers, which would drop what it has within the unwinding.
            let is_caught = match drains {
                None => is_caught(layer().layer(service).call(request())).await,
                Some(drains) => {
                    let pump = PumpLayer::new().drain(drains.then(|| secs(9)));
                    is_caught(pump.layer(service).call(request())).await
                }
            };

            assert!(is_caught);
            let reason = upstream.run().terminal_reason();
            let aborted = Some(TerminalReason::Aborted);
            assert_eq!(reason, aborted, "{polls}, {drains:?}");
            assert_eq!(upstream.run().in_flight(), 0);
        }
    }
}

/// The same behind the head of the answer.
///
/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_body_that_is_caught_outside_is_no_disconnect() {
    for drains in [None, Some(false), Some(true)] {
        let upstream = Upstream::script(Script::sse().data(chat("a")).panic());
        let service = upstream.clone();
        let is_caught = match drains {
            None => {
                let answer = layer().layer(service).call(request()).await.unwrap();
                let mut body = Box::pin(answer.into_body());
                body.frame().await.unwrap().unwrap();
                is_caught(body.frame()).await
            }
            Some(drains) => {
                let pump = PumpLayer::new().drain(drains.then(|| secs(9)));
                let answer = pump.layer(service).call(request()).await.unwrap();
                let mut body = Box::pin(answer.into_body());
                body.frame().await.unwrap().unwrap();
                is_caught(body.frame()).await
            }
        };

        assert!(is_caught);
        let reason = upstream.run().terminal_reason();
        assert_eq!(reason, Some(TerminalReason::Aborted), "{drains:?}");
    }
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_future_dropped_after_it_was_ready_is_none() {
    let upstream = Upstream::script(Script::sse().data(DONE));
    let mut call = layer().layer(upstream.clone()).call(request());
    let answer = (&mut call).await.unwrap();

    drop(call);

    assert_eq!(upstream.run().terminal_reason(), None);
    answer.into_body().read().await.whole();
    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_body_dropped_after_any_number_of_polls_but_the_last_is_a_disconnect() {
    let script = Script::sse()
        .wait(1.0)
        .data(chat("a"))
        .wait(1.0)
        .data(chat("b"))
        .wait(1.0)
        .data(DONE);
    for frames in 0..3 {
        for pending in [false, true] {
            let upstream = Upstream::script(script.clone());
            let stack = Stack::default().disconnect().build(&upstream);
            let mut body = stack.oneshot(request()).await.unwrap().into_body();
            for _ in 0..frames {
                body.token().await;
            }
            if pending && frames < 3 {
                assert!(poll_body(&mut body).is_pending());
            }

            drop(body);

            let expected = if frames < 3 {
                TerminalReason::ClientDisconnect
            } else {
                TerminalReason::Completed
            };
            assert_eq!(upstream.run().terminal_reason(), Some(expected));
            assert_eq!(upstream.dropped().reason, gone());
        }
    }
}

/// covers: C3, T6
#[tokio::test(start_paused = true)]
async fn an_announced_length_that_was_handed_over_is_an_answer_delivered() {
    let announced = [
        Script::json().size(4).data("ab").data("cd"),
        Script::json()
            .header("content-length", "4")
            .data("ab")
            .data("cd"),
    ];
    for script in announced {
        let upstream = Upstream::script(script);
        let stack = Stack::default().disconnect().build(&upstream);
        let mut body = stack.oneshot(plain()).await.unwrap().into_body();
        body.token().await;
        body.token().await;

        drop(body);

        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::Completed)
        );
    }
}

/// It announces nothing beside a framing that overrides it.
#[tokio::test(start_paused = true)]
async fn a_length_beside_another_framing_is_not_the_answers() {
    let script = Script::json().header("content-length", "2");
    let script = script.header("transfer-encoding", "chunked");
    let upstream = Upstream::script(script.data("ab").data("cd"));
    let stack = Stack::default().disconnect().build(&upstream);
    let mut body = stack.oneshot(plain()).await.unwrap().into_body();
    body.token().await;

    drop(body);

    assert_eq!(upstream.run().terminal_reason(), gone());
}

#[tokio::test(start_paused = true)]
async fn a_half_read_length_is_a_disconnect() {
    let upstream = Upstream::script(Script::json().size(4).data("ab").data("cd"));
    let stack = Stack::default().disconnect().build(&upstream);
    let mut body = stack.oneshot(plain()).await.unwrap().into_body();
    body.token().await;

    drop(body);

    assert_eq!(upstream.run().terminal_reason(), gone());
}

/// covers: C3
#[tokio::test(start_paused = true)]
async fn answers_without_a_body_need_not_be_polled() {
    let mut head = plain();
    *head.method_mut() = Method::HEAD;
    let cases = [
        (head, Script::json().size(4)),
        (plain(), Script::json().status(204)),
        (plain(), Script::json().status(304)),
        (plain(), Script::json().size(0)),
        (plain(), Script::json().knows_its_end()),
    ];
    for (request, script) in cases {
        let upstream = Upstream::script(script);
        let stack = Stack::default().disconnect().build(&upstream);
        let answer = stack.oneshot(request).await.unwrap();

        drop(answer);

        let reason = upstream.run().terminal_reason();
        assert_eq!(reason, Some(TerminalReason::Completed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_answer_that_was_delivered_is_a_failure_not_a_disconnect() {
    let upstream = Upstream::script(Script::json().status(500).size(2).data("{}"));
    let stack = Stack::default().disconnect().build(&upstream);
    let mut body = stack.oneshot(plain()).await.unwrap().into_body();
    body.token().await;

    drop(body);

    assert_eq!(
        upstream.run().terminal_reason().unwrap().as_str(),
        "upstream_failed"
    );
}

/// covers: C3
#[tokio::test(start_paused = true)]
async fn the_dialects_terminator_completes_an_answer() {
    let cases = [
        (request(), chat("a"), DONE),
        (messages(), content_block("a"), STOP),
    ];
    for (request, token, end) in cases {
        let upstream = Upstream::script(Script::sse().data(token).data(end).never());
        let stack = Stack::default().disconnect().build(&upstream);
        let mut body = stack.oneshot(request).await.unwrap().into_body();
        body.token().await;
        body.token().await;

        drop(body);

        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::Completed)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_finish_reason_alone_does_not_complete_an_answer() {
    let upstream = Upstream::script(
        Script::sse()
            .data(chat("a"))
            .data(FINISH)
            .wait(1.0)
            .data(DONE),
    );
    let stack = Stack::default().disconnect().build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    body.token().await;

    drop(body);

    assert_eq!(upstream.run().terminal_reason(), gone(), "usage may follow");
}

/// covers: C3
#[tokio::test(start_paused = true)]
async fn a_body_that_says_it_has_ended_is_complete() {
    let upstream = Upstream::script(Script::json().knows_its_end().data("ab"));
    let stack = Stack::default().disconnect().build(&upstream);
    let mut body = stack.oneshot(plain()).await.unwrap().into_body();
    body.token().await;
    assert!(body.is_end_stream());

    drop(body);

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_delivered_with_its_trailers() {
    for script in [
        Script::json().data("ab").trailers(),
        Script::sse().data(FINISH).trailers(),
    ] {
        let upstream = Upstream::script(script);
        let stack = Stack::default().disconnect().build(&upstream);
        let mut body = stack.oneshot(request()).await.unwrap().into_body();
        body.token().await;
        assert!(body.frame().await.unwrap().unwrap().is_trailers());

        // A server need not ask for what comes after trailers: nothing does.
        drop(body);

        assert_eq!(
            upstream.run().terminal_reason(),
            Some(TerminalReason::Completed)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_that_is_dropped_before_its_error_is_not_merely_aborted() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).knows_its_end());
    let stack = Stack::default()
        .run(&RunRegistry::new())
        .disconnect()
        .build(&upstream);
    let mut body = stack.oneshot(request()).await.unwrap().into_body();
    body.token().await;
    assert!(!body.is_end_stream());

    drop(body);

    let reason = upstream.run().terminal_reason().unwrap();
    assert_ne!(reason, TerminalReason::Completed);
    assert_ne!(
        reason,
        TerminalReason::Aborted,
        "the caller went away, or upstream.clone() failed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_read_to_its_end_is_complete() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE));

    let stack = Stack::default().disconnect().build(&upstream);
    stack.ask(request()).await.whole();

    assert_eq!(
        upstream.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
    assert!(!upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_reason_stays_and_the_drop_is_not_noted() {
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().disconnect().build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    upstream.run().end(TerminalReason::Shutdown);

    drop(answer);

    let end = upstream.run().terminated().unwrap();
    assert_eq!(end.reason, TerminalReason::Shutdown);
    assert!(end.also.is_empty());
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::Shutdown));
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn a_disconnect_ends_the_call_and_not_its_run() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().disconnect().build(&upstream);
    let answer = stack.oneshot(request).await.unwrap();

    drop(answer);

    assert_eq!(call.terminal_reason(), gone());
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn with_scope_run_a_disconnect_ends_the_run_and_its_other_calls() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default()
        .layer(Place::Disconnect, layer().scope(Scope::Run))
        .build(&upstream);
    let first = stack.clone().oneshot(run.attach(request())).await.unwrap();
    let second = stack.oneshot(run.attach(request())).await.unwrap();

    drop(first);

    assert_eq!(run.terminal_reason(), gone());
    let read = second.into_body().read().await;
    assert_eq!(read.reason(), gone());
    assert!(
        upstream
            .drops()
            .iter()
            .all(|dropped| dropped.reason == gone())
    );
}

/// covers: C1
#[tokio::test(start_paused = true)]
async fn what_hangs_below_the_call_ends_too() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let below = call.child();
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().disconnect().build(&upstream);
    let answer = stack.oneshot(request).await.unwrap();

    drop(answer);

    assert_eq!(below.terminal_reason(), gone());
    assert_eq!(
        call.child().terminal_reason(),
        gone(),
        "also what is opened later"
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_from_below_is_no_disconnect() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).fail("reset"));
    let stack = Stack::default().disconnect().build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert!(outcome.error.is_some());
    assert_eq!(
        upstream.run().terminal_reason().unwrap().as_str(),
        "upstream_failed"
    );
}

#[tokio::test(start_paused = true)]
async fn twice_in_one_stack_it_is_one_disconnect() {
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(layer())
        .service(upstream.clone());
    let answer = service.oneshot(request()).await.unwrap();

    drop(answer);

    let end = upstream.run().terminated().unwrap();
    assert_eq!(end.reason, TerminalReason::ClientDisconnect);
    assert!(end.also.is_empty());
    assert_eq!(upstream.dropped().reason, gone());
}

#[tokio::test(start_paused = true)]
async fn the_message_says_that_the_caller_went_away() {
    let upstream = Upstream::script(Script::sse().never());
    let stack = Stack::default().disconnect().build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();
    sleep(secs(75)).await;

    drop(answer);

    let message = upstream.run().terminated().unwrap().message();
    assert!(
        message.contains("after 1m 15s: the caller went away (client_disconnect)"),
        "{message}"
    );
}

/// covers: T68
#[tokio::test(start_paused = true)]
async fn size_hint_end_and_trailers_are_forwarded() {
    let upstream = Upstream::script(Script::json().size(2).knows_its_end().data("{}"));
    let stack = Stack::default().disconnect().build(&upstream);
    let mut body = stack.oneshot(plain()).await.unwrap().into_body();
    assert_eq!(body.size_hint().exact(), Some(2));
    body.token().await;
    assert!(body.is_end_stream());

    let upstream = Upstream::script(Script::json().data("{}").trailers());
    let stack = Stack::default().disconnect().build(&upstream);
    let outcome = stack.ask(plain()).await;
    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.trailers.unwrap()["x-sum"], "42");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_ended_run_is_not_sent_and_its_drop_is_no_disconnect() {
    let run = Run::open();
    run.end(TerminalReason::Aborted);
    let upstream = Upstream::script(Script::sse());

    let stack = Stack::default().disconnect().build(&upstream);
    let outcome = stack.ask(run.attach(request())).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::Aborted));
    assert_eq!(upstream.calls(), 0);
    assert!(run.terminated().unwrap().also.is_empty());
}
