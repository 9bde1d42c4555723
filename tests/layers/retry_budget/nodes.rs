//! Whose node the call is, who settles it, and with what.

use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::time::timeout;
use tower::{Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, NodeKind, RetryBudgetLayer, Run, TerminalReason,
    llm::failure::FailureClass,
};

use crate::support::{
    ERROR, PRELUDE, ReadExt, Script, Stack, Upstream, attach, chat, failure, healthy, healthy_text,
    later, no_delay, prompt, prompt_json, reason_of, run_on, secs,
};

fn failed() -> Option<TerminalReason> {
    Some(TerminalReason::Failed(FailureClass::Server))
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_found_is_left_to_whoever_opened_it() {
    for (script, text) in [(healthy(), healthy_text()), (failure(500), ERROR.into())] {
        let upstream = Upstream::script(script);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let mut request = prompt("m");
        request.extensions_mut().insert(run.clone());

        let answer = service.oneshot(request).await.unwrap();

        // What it counts is one call's, and others of the run may be under way.
        let call = run_on(&answer);
        assert_eq!((call.kind(), call.run().id()), (NodeKind::Call, run.id()));
        assert_eq!(answer.into_body().read().await.whole(), text);
        assert!(call.terminal_reason().is_some());
        assert_eq!(run.terminal_reason(), None);
        assert_eq!(run.in_flight(), 0);
        let attempt = upstream.requests()[0].run().clone();
        assert_eq!(attempt.kind(), NodeKind::Attempt);
        assert_eq!(attempt.run().id(), run.id());
        assert!(attempt.terminal_reason().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn an_attached_call_is_settled_as_its_last_attempt_was() {
    for (scripts, reason) in [
        ([failure(500), healthy()], Some(TerminalReason::Completed)),
        (
            [failure(400), healthy()],
            Some(TerminalReason::Failed(FailureClass::Caller)),
        ),
        ([failure(500), failure(500)], failed()),
    ] {
        let upstream = Upstream::scripts(scripts);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        let answer = service.oneshot(request).await.unwrap();
        assert_eq!(call.terminal_reason(), None);
        answer.into_body().read().await.whole();

        assert_eq!(call.terminal_reason(), reason);
        assert_eq!(
            upstream.requests().last().unwrap().run().terminal_reason(),
            reason
        );
        assert_eq!(run.terminal_reason(), None);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_opened_here_is_on_the_answer_and_over_with_it() {
    for (script, reason) in [
        (healthy(), Some(TerminalReason::Completed)),
        (failure(500), failed()),
    ] {
        let upstream = Upstream::script(script);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());

        let answer = service.oneshot(prompt("m")).await.unwrap();
        let run = run_on(&answer);

        assert_eq!(run.kind(), NodeKind::Run);
        assert_eq!(run.id(), upstream.requests()[0].run().id());
        assert_eq!(run.terminal_reason(), None);
        answer.into_body().read().await.whole();
        assert_eq!(run.terminal_reason(), reason);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_before_its_end_aborts_the_call() {
    let endless = Script::sse().data(PRELUDE).data(chat("a")).never();
    for read in 0..3 {
        let upstream = Upstream::scripts([failure(500), endless.clone()]);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        let mut body = service.oneshot(request).await.unwrap().into_body();
        for _ in 0..read {
            body.token().await;
        }
        drop(body);

        assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
        let attempt = upstream.requests()[1].run().terminal_reason();
        assert_eq!(attempt, Some(TerminalReason::Aborted));
        assert!(upstream.is_dropped());
        assert_eq!(run.terminal_reason(), None);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn held_bytes_that_nobody_took_are_no_delivery() {
    // The upstream is done, and its caller has not seen a byte.
    for script in [
        healthy().knows_its_end(),
        Script::json().data("{}").knows_its_end(),
    ] {
        let upstream = Upstream::script(script);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        drop(service.oneshot(request).await.unwrap());

        assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivered_answer_that_is_not_polled_to_its_end_is_complete() {
    let upstream = Upstream::script(Script::json().data("{}").size(2));
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt_json("m"));

    let mut body = service.oneshot(request).await.unwrap().into_body();
    assert_eq!(body.token().await, "{}");
    drop(body);

    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_during_an_attempt_leaves_nothing_behind() {
    for script in [
        Script::before_head().never(),
        Script::sse().data(PRELUDE).never(),
        Script::json().data("{").never(),
        Script::json().status(500).data("{").wait(60.0),
        failure(429).header("retry-after", "30"),
    ] {
        let upstream = Upstream::script(script.clone());
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        let left = timeout(secs(1) / 2, service.oneshot(request)).await;

        assert!(left.is_err());
        assert_eq!(upstream.calls(), 1);
        assert_eq!(
            call.terminal_reason(),
            Some(TerminalReason::Aborted),
            "{script:?}"
        );
        assert_eq!(run.terminal_reason(), None);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_during_the_upload_leaves_nothing_behind() {
    let upstream = Upstream::script(healthy());
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let never = stream::pending::<Result<Frame<Bytes>, BoxError>>();
    let request = Request::post("/v1/chat/completions");
    let (request, call) = attach(&run, request.body(StreamBody::new(never)).unwrap());

    assert!(timeout(secs(5), service.oneshot(request)).await.is_err());

    assert_eq!(upstream.calls(), 0);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_while_the_service_is_not_ready_leaves_nothing_behind() {
    let upstream = Upstream::scripts([
        Script::before_head().wait(1.0).fail("reset"),
        Script::before_head().never(),
    ]);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let first = timeout(secs(5), service.clone().oneshot(request));
    let other = timeout(secs(9), service.oneshot(prompt("m")));
    let (first, other) = tokio::join!(first, other);

    assert!(first.is_err() && other.is_err());
    assert_eq!(upstream.calls(), 2);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_never_polled_aborts_its_call() {
    let upstream = Upstream::script(healthy());
    let mut service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    drop(tower::Service::call(&mut service, request));

    assert_eq!(upstream.calls(), 0);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_after_the_commit_lets_nothing_pass_that_is_held() {
    let endless = Script::sse().data(PRELUDE).data(chat("a")).never();
    for read in 0..3 {
        let upstream = Upstream::script(endless.clone());
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));
        let mut body = service.oneshot(request).await.unwrap().into_body();
        for _ in 0..read {
            body.token().await;
        }
        let ended = later(1, {
            let run = run.clone();
            move || run.end(TerminalReason::Shutdown)
        });
        ended.await.unwrap();

        let read = body.read().await;

        assert_eq!(read.text, "");
        assert_eq!(read.reason(), Some(TerminalReason::Shutdown));
        assert_eq!(call.terminal_reason(), Some(TerminalReason::Shutdown));
        let dropped = upstream.dropped();
        assert_eq!(dropped.reason, Some(TerminalReason::Shutdown));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_after_the_commit_fails_the_call() {
    let broken = Script::sse().data(PRELUDE).data(chat("a")).fail("reset");
    let upstream = Upstream::scripts([broken, healthy()]);
    let stack = Stack::default().budget(no_delay()).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.text, [PRELUDE, &chat("a")].concat());
    assert_eq!(outcome.error.unwrap().to_string(), "reset");
    let transport = TerminalReason::Failed(FailureClass::Transport);
    assert_eq!(call.terminal_reason(), Some(transport));
    assert_eq!(upstream.calls(), 1);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reason_of_the_run_is_an_error_of_the_run() {
    let upstream = Upstream::script(Script::before_head().never());
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let ended = later(3, {
        let run = run.clone();
        move || run.end(TerminalReason::Superseded)
    });

    let request = run.attach(prompt("m"));
    let error = service.oneshot(request).await.unwrap_err();

    assert!(ended.await.unwrap());
    assert_eq!(reason_of(&error), Some(TerminalReason::Superseded));
    let ended = tower_agent::Terminated::find(&*error).unwrap();
    assert_eq!((ended.kind, &ended.run), (NodeKind::Run, &run.id()));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_repeated_is_what_it_was_judged() {
    let upstream = Upstream::scripts([Script::answer(200, ERROR), healthy()]);
    let stack = Stack::default().budget(no_delay()).build(&upstream);

    stack.ask(prompt("m")).await.whole();

    let completed = Some(TerminalReason::Completed);
    let judged = [failed(), completed];
    assert_eq!(upstream.reasons(), judged);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_sent_twice_fails_as_the_second_did() {
    for run in [None, Some(Run::open())] {
        let program = service_fn(|request: Request<Full<Bytes>>| async move {
            let broken = Script::sse().data(chat("a")).fail("reset");
            let [first, second] = [failure(500), broken]
                .map(|script| RetryBudgetLayer::new(no_delay()).layer(Upstream::script(script)));
            let failed = first.oneshot(request.clone()).await?;
            assert_eq!(failed.status(), 500);
            failed.into_body().read().await.whole();
            second.oneshot(request).await
        });
        let service = HardCeilingLayer::new(secs(600)).layer(program);
        let request = prompt("m");
        let request = match &run {
            Some(run) => run.attach(request),
            None => request,
        };

        let answer = service.oneshot(request).await.unwrap();
        let call = run_on(&answer);
        answer.into_body().read().await.end.unwrap_err();

        let transport = TerminalReason::Failed(FailureClass::Transport);
        assert_eq!(call.terminal_reason(), Some(transport));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_after_the_error_of_an_attempt() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).fail("reset"));
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let answer = service.oneshot(prompt("m")).await.unwrap();
    let run = upstream.requests()[0].run().run();
    let mut body = answer.into_body();
    body.frame().await.unwrap().unwrap();

    body.frame().await.unwrap().unwrap_err();
    run.end(TerminalReason::Shutdown);

    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_is_over_with_the_last_of_its_body_though_the_body_is_kept() {
    let upstream = Upstream::script(healthy());
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let mut body = service.oneshot(prompt("m")).await.unwrap().into_body();

    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }

    let run = upstream.requests()[0].run().run();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}
