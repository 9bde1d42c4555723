//! covers: B5

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http_body::Body;
use tokio::time::sleep;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, ProgressNotices,
    PumpLayer, RetryBudgetLayer, Run, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason,
};

use super::{KEEP_ALIVE, LAYER, Noticed, comment, each, timed};
use crate::support::{
    DONE, Outcome, PRELUDE, ReadExt, Script, StackService, Summaries, Upstream, WakeCount, chat,
    failure, no_delay, poll_body, prompt, prompt_json, read_ahead, request, run_on, secs,
};

/// All layers, as a server stacks them, around these scripts.
async fn read(scripts: impl IntoIterator<Item = Script>) -> (Run, Vec<(u64, String)>) {
    let budget = no_delay();
    let candidates = ["a", "b"].map(Candidate::new);
    let service = ServiceBuilder::new()
        .layer(LAYER.comments(true))
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(PumpLayer::new())
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(secs(1800)))
        .layer(StepTimeoutLayer::new(secs(300)))
        .layer(ModelFallbackLayer::new(candidates).budget(budget.clone()))
        .layer(RetryBudgetLayer::new(budget))
        .layer(StepTimeoutLayer::new(secs(120)).first(secs(20)))
        .service(Upstream::scripts(scripts));
    let answer = service.oneshot(prompt("a")).await.unwrap();
    let run = run_on(&answer);
    let (read, end) = timed(answer.into_body()).await;
    end.unwrap();
    (run, read)
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_comments_is_byte_for_byte_the_upstreams_between_them() {
    let served = Script::sse()
        .data(PRELUDE)
        .data(chat("a"))
        .wait(50.0)
        .data(chat("b"))
        .data(DONE);

    let (run, read) = read([failure(529), served]).await;

    let text: String = read.iter().map(|(_, text)| &**text).collect();
    let told = comment(30).replace("llm_call", "llm_call (b)");
    let [a, b] = [chat("a"), chat("b")];
    let whole = [PRELUDE, &a, KEEP_ALIVE, &told, KEEP_ALIVE, &b, DONE];
    assert_eq!(text, whole.concat());
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}

/// covers: B2
#[tokio::test(start_paused = true)]
async fn a_stream_that_falls_silent_between_comments_ends_with_the_frame() {
    let stalled = Script::sse()
        .data(chat("a"))
        .wait(20.0)
        .data(PRELUDE)
        .never();

    let (run, read) = read([stalled]).await;

    let (last, rest) = read.split_last().unwrap();
    let at: Vec<_> = rest.iter().map(|(at, _)| *at).collect();
    assert_eq!(at, [0, 15, 20, 30, 45, 60, 75, 90, 105]);
    let told = |seconds| comment(seconds).replace("llm_call", "llm_call (a)");
    assert_eq!(rest[3].1, told(30));
    assert_eq!(rest[7].1, told(90));
    assert_eq!(last.0, 120, "comments do not reset the window");
    assert!(
        last.1
            .starts_with("event: error\ndata: {\"type\":\"error\"")
    );
    assert!(last.1.contains("step_timeout"), "{}", last.1);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::StepTimeout));
}

/// covers: B2
#[tokio::test(start_paused = true)]
async fn a_stream_that_falls_silent_within_an_event_loses_it_and_gets_the_frame() {
    let half = [&*chat("a"), "data: {\"cho"].concat();
    let stalled = Script::sse().wait(16.0).data(half).never();

    let (_, read) = read([stalled]).await;

    let texts: Vec<_> = read.iter().map(|(at, text)| (*at, &**text)).collect();
    let [(0, content), (120, frame)] = texts[..] else {
        panic!("{texts:?}");
    };
    assert_eq!(content, chat("a"));
    assert!(frame.starts_with("event: error\n"));
}

#[tokio::test(start_paused = true)]
async fn bytes_of_ours_do_not_make_up_for_a_terminator_that_was_not_handed_on() {
    // The judged stream runs ahead of what is handed on.
    let scripted = Script::sse()
        .data(PRELUDE)
        .wait(200.0)
        .data(chat("a"))
        .data(DONE);
    for taken in [1, 2] {
        let told = Summaries::default();
        let service = ServiceBuilder::new()
            .layer(LAYER)
            .layer(told.layer())
            .layer(ClientDisconnectLayer::new())
            .map_response(read_ahead)
            .layer(StepTimeoutLayer::new(secs(300)))
            .service(Upstream::script(scripted.clone()));
        let answer = service.oneshot(request()).await.unwrap();
        let mut body = answer.into_body();
        for _ in 0..1 + 13 + taken {
            body.token().await;
        }
        if taken == 1 {
            tokio::task::yield_now().await;
        }
        drop(body);
        tokio::task::yield_now().await;

        let reason = match taken {
            1 => TerminalReason::ClientDisconnect,
            _ => TerminalReason::Completed,
        };
        assert_eq!(told.one().reason, reason);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_else_judges_is_judged_once_and_its_cut_is_told() {
    let usage = crate::support::USAGE;
    let script = Script::sse().data(chat("a")).wait(20.0).data(usage);
    let told = Summaries::default();
    let upstream = Upstream::script(script);
    let service = ServiceBuilder::new()
        .layer(LAYER)
        .layer(told.layer())
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.status, 200);
    let events = outcome.whole();
    assert_eq!(events.matches("event: error\n").count(), 1, "{events}");
    assert!(events.contains("was cut before its end"), "{events}");
    assert_eq!(told.tokens(), Some((7, 2)));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_when_a_stream_is_over() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(PRELUDE).never());
    let service = LAYER.layer(upstream.clone());
    let request = run.attach(request());
    let mut body = service.oneshot(request).await.unwrap().into_body();
    body.token().await;
    assert!(poll_body(&mut body).is_pending());

    drop(body);

    assert!(upstream.is_dropped());
    assert_eq!(run.in_flight(), 0);
}

/// covers: B4
#[tokio::test(start_paused = true)]
async fn nobody_is_woken_any_more_when_a_stream_is_over() {
    let script = Script::sse().data(chat("a")).wait(20.0).data(DONE);
    let service = LAYER.layer(Upstream::script(script));
    let mut body = service.oneshot(request()).await.unwrap().into_body();
    let wakes = WakeCount::default();
    let waker = wakes.waker();
    loop {
        match Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)) {
            Poll::Ready(None) => break,
            Poll::Ready(Some(frame)) => drop(frame.unwrap()),
            Poll::Pending => sleep(secs(1)).await,
        }
    }
    let before = wakes.count();
    assert!(before > 0, "of the comment and of the end");

    sleep(secs(600)).await;

    assert_eq!(wakes.count(), before);
    drop(body);
}

/// What is read in the very poll in which a notice is due has stopped the window that
/// passes then; a layer that holds the answer has not handed it on.
#[tokio::test(start_paused = true)]
async fn a_notice_comes_after_what_was_read_in_its_instant() {
    let half = Script::json().wait(30.0).data("{\"choices\":");
    let service = ServiceBuilder::new()
        .layer(LAYER.notices(ProgressNotices::new().quiet(secs(0))))
        .layer(StepTimeoutLayer::new(secs(30)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(Upstream::scripts([half.wait(10.0).data("[]}")]));
    let run = Run::open();

    let noticed = Noticed::of(&run);
    let answer = service.oneshot(run.attach(prompt_json("m"))).await;

    let whole = answer.unwrap().into_body().read().await.whole();
    assert_eq!(whole, "{\"choices\":[]}");
    run.end(TerminalReason::Aborted);
    assert_eq!(noticed.all().await, each("llm_call", &[30]));
}

/// Its caller got bytes, though the upstream sent none.
#[tokio::test(start_paused = true)]
async fn a_comment_is_a_byte_for_the_read_timeout_of_the_caller() {
    let script = Script::sse().data(chat("a")).wait(50.0).data(DONE);
    for (every, completes) in [(Some(secs(15)), true), (None, false)] {
        for pumped in [false, true] {
            let ceiling = HardCeilingLayer::optional(None).caller_deadline(true);
            let inner = StackService::new(ceiling.layer(Upstream::script(script.clone())));
            let inner = match pumped {
                true => StackService::new(PumpLayer::new().layer(inner)),
                false => inner,
            };
            let mut request = request();
            let header = "x-stainless-read-timeout";
            request.headers_mut().insert(header, "20".parse().unwrap());

            let service = LAYER.keep_alive(every).layer(inner);
            let answer = service.oneshot(request).await.unwrap();
            let run = run_on(&answer);
            answer.into_body().read().await.end.unwrap();

            let reason = match completes {
                true => TerminalReason::Completed,
                false => TerminalReason::CallerDeadline,
            };
            assert_eq!(run.terminal_reason(), Some(reason), "pumped: {pumped}");
        }
    }
}

/// The offsets of an inner layer would mean other bytes there.
#[tokio::test(start_paused = true)]
async fn a_layer_outside_of_comments_reads_the_stream_anew_and_counts_nothing_twice() {
    let usage = crate::support::USAGE;
    let script = Script::sse()
        .data(chat("a"))
        .wait(200.0)
        .data(usage)
        .data(DONE);
    for read_whole in [false, true] {
        let told = Summaries::default();
        let service = ServiceBuilder::new()
            .layer(ClientDisconnectLayer::new())
            .layer(told.layer())
            .layer(LAYER)
            .layer(StepTimeoutLayer::new(secs(300)))
            .service(Upstream::script(script.clone()));
        let answer = service.oneshot(request()).await.unwrap();
        let mut body = answer.into_body();
        // All but the terminator, in more bytes than the upstream's whole answer has.
        for _ in 0..1 + 13 + 1 {
            body.token().await;
        }
        if read_whole {
            assert_eq!(body.token().await, DONE);
        }
        drop(body);

        let reason = match read_whole {
            true => TerminalReason::Completed,
            false => TerminalReason::ClientDisconnect,
        };
        assert_eq!(told.one().reason, reason);
        assert_eq!(told.tokens(), Some((7, 2)));
    }
}

/// A program's retry between both layers opens a call for each of its tries.
#[tokio::test(start_paused = true)]
async fn comments_go_on_in_the_call_that_is_opened_after_one_that_failed() {
    let slow = Script::sse().data(PRELUDE).wait(20.0).data(DONE);
    let upstream = Upstream::scripts([Script::answer(503, "{}").delayed(10), slow]);
    let calls = RunLayer::new(RunRegistry::new()).layer(upstream);
    let retry = tower::service_fn(move |request: http::Request<()>| {
        let calls = calls.clone();
        async move {
            let first = calls.clone().oneshot(request.clone()).await?;
            assert_eq!(first.status(), 503);
            drop(first);
            calls.oneshot(request).await
        }
    });

    let answer = LAYER.layer(retry).oneshot(request()).await.unwrap();
    let (read, end) = timed(answer.into_body()).await;

    end.unwrap();
    assert_eq!(
        read,
        super::frames([(0, PRELUDE), (15, KEEP_ALIVE), (20, DONE)])
    );
}
