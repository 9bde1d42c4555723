//! What a call came to: told once, when nothing of it is left.
//!
//! covers: H5

mod not_counted;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::HeaderValue;
use tokio::{task::yield_now, time::sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, HardCeilingLayer, ModelFallbackLayer, PumpLayer, RetryBudgetLayer, Run, RunLayer,
    RunRegistry, StepTimeoutLayer, TerminalReason, llm::failure::FailureClass,
};

use crate::support::{
    DONE, FINISH, Outcome, PRELUDE, ReadExt, Script, Stack, Summaries, USAGE, Upstream, chat,
    failure, later, messages, no_delay, poll_once, prompt, prompt_json, request, secs,
};

const ANTHROPIC_START: &str = "event: message_start\ndata: {\"type\":\"message_start\",\
     \"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n";

const OVERLOADED: &str =
    "event: error\ndata: {\"error\":{\"message\":\"busy\",\"type\":\"overloaded_error\"}}\n\n";

/// A stream that took 7 tokens and made 2, in three seconds.
fn counted() -> Script {
    Script::sse()
        .data(PRELUDE)
        .repeat(3, 1.0, chat("a"))
        .data(FINISH)
        .data(USAGE)
        .data(DONE)
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_read_is_told_once_with_all_that_is_known() {
    let told = Summaries::default();
    let upstream = Upstream::script(counted());
    let mut request = request();
    let id = HeaderValue::from_static("r-1");
    request.headers_mut().insert("x-run-id", id);
    let session = HeaderValue::from_static("s-1");
    request.headers_mut().insert("x-session-id", session);

    let answer = told.layer().layer(upstream).oneshot(request).await.unwrap();
    let mut body = answer.into_body();
    while body.next().await.is_some() {}
    let when_it_ended = told.all().len();
    drop(body);

    assert_eq!(when_it_ended, 1);
    let summary = told.one();
    assert_eq!(summary.run.to_string(), "r-1");
    assert_eq!(summary.session.as_deref(), Some("s-1"));
    assert_eq!(summary.reason, TerminalReason::Completed);
    assert_eq!(summary.elapsed, secs(3));
    assert_eq!((summary.attempts, summary.candidate), (0, None));
    assert_eq!(summary.stop_reason.as_deref(), Some("stop"));
    assert_eq!(told.tokens(), Some((7, 2)));
    assert_eq!(
        serde_json::to_value(told.one()).unwrap(),
        serde_json::json!({
            "run": "r-1", "session": "s-1", "owner": "anonymous", "reason": "completed", "elapsed_ms": 3000,
            "attempts": 0, "candidate": null, "stop_reason": "stop",
            "usage": {"input_tokens": 7, "output_tokens": 2},
        })
    );
}

#[tokio::test(start_paused = true)]
async fn the_time_is_that_of_the_call_and_not_of_its_run() {
    let told = Summaries::default();
    let service = told.layer().layer(Upstream::script(counted()));

    for _ in 0..2 {
        let mut request = request();
        let id = HeaderValue::from_static("r-1");
        request.headers_mut().insert("x-run-id", id);
        Outcome::of(service.clone().oneshot(request)).await.whole();
        sleep(secs(10)).await;
    }

    let told = told.all();
    let each = told
        .iter()
        .map(|summary| (summary.run.to_string(), summary.elapsed));
    let expected = ("r-1".to_owned(), secs(3));
    assert_eq!(each.collect::<Vec<_>>(), [expected.clone(), expected]);
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_attempts_that_failed_count_and_the_candidate_is_the_last() {
    let told = Summaries::default();
    let failed = Script::sse().data(PRELUDE).data(USAGE).data(OVERLOADED);
    let upstream = Upstream::scripts([failed, counted()]);
    let service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(ModelFallbackLayer::new(["a", "b"].map(Candidate::new)).budget(no_delay()))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());

    Outcome::of(service.oneshot(prompt("a"))).await.whole();

    let summary = told.one();
    assert_eq!(summary.reason, TerminalReason::Completed);
    assert_eq!((summary.attempts, upstream.calls()), (2, 2));
    assert_eq!(summary.candidate.as_deref(), Some("b"));
    assert_eq!(told.tokens(), Some((14, 4)));
    let each = upstream.requests();
    let each = each
        .iter()
        .map(|seen| seen.run().usage().unwrap().input_tokens);
    assert_eq!(each.collect::<Vec<_>>(), [7, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_that_is_held_is_read_for_its_usage() {
    let answers = [
        r#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#,
        r#"{"usage":{"input_tokens":3,"output_tokens":4},"content":[{"text":"x"}]}"#,
        r#"{"content":[{"type":"tool_use","input":{"usage":{"input_tokens":9}}}],"usage":{"input_tokens":3,"output_tokens":4}}"#,
    ];
    for answer in answers {
        let told = Summaries::default();
        let service = ServiceBuilder::new()
            .layer(told.layer())
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(Upstream::script(Script::answer(200, answer)));

        let got = service.oneshot(prompt_json("m")).await.unwrap();
        assert_eq!(got.into_body().read().await.whole(), answer);

        assert_eq!(told.tokens(), Some((3, 4)), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_under_a_good_status_costs_what_it_says() {
    let told = Summaries::default();
    let refused = r#"{"choices":[{"finish_reason":"content_filter"}],"usage":{"prompt_tokens":3,"completion_tokens":0}}"#;
    let service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(
            ModelFallbackLayer::new(["a", "b"].map(Candidate::new))
                .budget(no_delay())
                .also_after(FailureClass::ContentFilter),
        )
        .service(Upstream::scripts([Script::answer(200, refused), counted()]));

    Outcome::of(service.oneshot(prompt("a"))).await.whole();

    assert_eq!(told.tokens(), Some((10, 2)));
}

/// The stop reason of an answer that is no stream, as each API writes it.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_stream_says_why_the_model_stopped() {
    for (body, reason) in [
        (
            r#"{"choices":[{"message":{},"finish_reason":"length"}]}"#,
            "length",
        ),
        (
            r#"{"content":[],"stop_reason":"end_turn","usage":{"input_tokens":1}}"#,
            "end_turn",
        ),
        (
            r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#,
            "max_output_tokens",
        ),
    ] {
        let told = Summaries::default();
        let service = ServiceBuilder::new()
            .layer(told.layer())
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(Upstream::script(Script::answer(200, body)));

        Outcome::of(service.oneshot(prompt_json("a"))).await.whole();

        assert_eq!(told.one().stop_reason.as_deref(), Some(reason));
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_answer_said_is_not_known() {
    for (body, tokens) in [
        ("{}", None),
        ("{\"usage\":null}", None),
        (
            "{\"choices\":[{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}]}",
            None,
        ),
        (
            "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}",
            Some((1, 2)),
        ),
    ] {
        let told = Summaries::default();
        let service = ServiceBuilder::new()
            .layer(told.layer())
            .layer(RetryBudgetLayer::new(crate::support::no_delay()))
            .service(Upstream::script(Script::answer(200, body)));

        Outcome::of(service.oneshot(prompt_json("a"))).await.whole();

        assert_eq!((told.tokens(), told.one().stop_reason), (tokens, None));
    }
}

/// covers: C2, T12
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_cut_costs_what_it_had_said_by_then() {
    for pump in [false, true] {
        let told = Summaries::default();
        let upstream = Upstream::script(Script::sse().data(ANTHROPIC_START).never());
        let service = told.layer().layer(upstream.clone());
        let pumped = told.layer().layer(PumpLayer::new().layer(upstream));
        if pump {
            let mut body = pumped.oneshot(messages()).await.unwrap().into_body();
            body.token().await;
            drop(body);
        } else {
            let mut body = service.oneshot(messages()).await.unwrap().into_body();
            body.token().await;
            drop(body);
        }
        for _ in 0..4 {
            yield_now().await;
        }

        assert_eq!(told.tokens(), Some((25, 1)));
        let cut = match pump {
            true => TerminalReason::ClientDisconnect,
            false => TerminalReason::Aborted,
        };
        assert_eq!(told.one().reason, cut);
    }
}

/// covers: C2
#[tokio::test(start_paused = true)]
async fn every_way_to_end_is_told_once() {
    let failed = |class| TerminalReason::Failed(class);
    let ways = [
        (counted(), TerminalReason::Completed),
        (Script::json().data("x"), TerminalReason::Completed),
        (failure(500), failed(FailureClass::Server)),
        (
            Script::before_head().fail("reset"),
            failed(FailureClass::Transport),
        ),
        (
            Script::sse().data(chat("a")),
            failed(FailureClass::Transport),
        ),
        (
            Script::sse().data(chat("a")).fail("x"),
            failed(FailureClass::Transport),
        ),
        (Script::before_head().never(), TerminalReason::HardCeiling),
        (Script::sse().never(), TerminalReason::HardCeiling),
        (
            Script::sse().repeat(40, 1.0, chat("a")),
            TerminalReason::HardCeiling,
        ),
    ];
    for (script, expected) in ways {
        for pump in [false, true] {
            let told = Summaries::default();
            let upstream = Upstream::script(script.clone());
            let inner = HardCeilingLayer::new(secs(30)).layer(upstream);
            let plain = told.layer().layer(inner.clone());
            let pumped = told.layer().layer(PumpLayer::new().layer(inner));
            if pump {
                if let Ok(answer) = pumped.oneshot(request()).await {
                    drop(answer.into_body().read().await);
                }
            } else if let Ok(answer) = plain.oneshot(request()).await {
                drop(answer.into_body().read().await);
            }
            sleep(secs(60)).await;

            assert_eq!(told.one().reason, expected, "{script:?}, pump: {pump}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_before_it_answers_is_told() {
    let told = Summaries::default();
    let upstream = Upstream::script(Script::before_head().never());
    let mut service = told.layer().layer(upstream);

    drop(service.call(request()));
    assert_eq!(told.one().reason, TerminalReason::Aborted);

    let mut call = service.call(request());
    assert!(poll_once(&mut call).is_pending());
    assert_eq!(told.all().len(), 1);
    drop(call);
    assert_eq!(told.all().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_run_that_is_over_is_told_and_reaches_nobody() {
    let told = Summaries::default();
    let registry = RunRegistry::new();
    let upstream = Upstream::script(counted());
    let layer = RunLayer::new(registry.clone()).on_end(told.hook());
    let run = registry.open(tower_agent::Owner::anonymous(), "r-1".parse().unwrap());
    run.end(TerminalReason::TurnCap);
    let mut request = request();
    let id = HeaderValue::from_static("r-1");
    request.headers_mut().insert("x-run-id", id);

    layer
        .layer(upstream.clone())
        .oneshot(request)
        .await
        .unwrap_err();

    assert_eq!(upstream.calls(), 0);
    let summary = told.one();
    assert_eq!(
        (summary.reason, summary.elapsed),
        (TerminalReason::TurnCap, secs(0))
    );
    assert_eq!((summary.attempts, summary.usage), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_for_its_id_is_no_call() {
    let told = Summaries::default();
    let upstream = Upstream::script(counted());
    let mut request = request();
    let id = HeaderValue::from_static("no spaces");
    request.headers_mut().insert("x-run-id", id);

    told.layer()
        .layer(upstream)
        .oneshot(request)
        .await
        .unwrap_err();

    assert!(told.is_empty());
}

/// covers: T12
#[tokio::test(start_paused = true)]
async fn an_abort_from_outside_is_told_when_the_call_is_gone_and_not_before() {
    let told = Summaries::default();
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(ANTHROPIC_START).never());
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).on_end(told.hook()))
        .layer(PumpLayer::new())
        .layer(StepTimeoutLayer::new(secs(900)))
        .service(upstream);
    let mut body = service.oneshot(messages()).await.unwrap().into_body();
    body.token().await;

    assert_eq!(registry.shutdown(), 1);
    assert!(told.is_empty(), "its body is still there");
    assert!(body.next().await.unwrap().is_err());
    for _ in 0..4 {
        yield_now().await;
    }

    assert_eq!(told.one().reason, TerminalReason::Shutdown);
    assert_eq!(told.tokens(), Some((25, 1)));
}

#[tokio::test(start_paused = true)]
async fn a_hook_may_look_at_everything_and_whoever_waits_hears_of_it_after_it() {
    let registry = RunRegistry::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let hook = {
        let (registry, seen) = (registry.clone(), Arc::clone(&seen));
        move |summary: &tower_agent::CallSummary| {
            let listed = registry.list();
            assert_eq!(listed[0].run, summary.run);
            assert_eq!(listed[0].usage, summary.usage);
            let [run] = &registry.find(&summary.run)[..] else {
                panic!("the registry has one run");
            };
            let mut settled = Box::pin(run.settled());
            assert!(poll_once(&mut settled).is_pending(), "this hook still runs");
            seen.fetch_add(1, Ordering::SeqCst);
        }
    };
    let upstream = Upstream::script(counted());
    let layer = RunLayer::new(registry.clone()).on_end(hook);
    let answer = layer.layer(upstream).oneshot(request()).await.unwrap();
    let run = registry.find(
        &answer.headers()["x-run-id"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap(),
    );
    let waited = {
        let seen = Arc::clone(&seen);
        let run = run[0].clone();
        tokio::spawn(async move {
            run.settled().await;
            seen.load(Ordering::SeqCst)
        })
    };

    answer.into_body().read().await.whole();

    assert_eq!(waited.await.unwrap(), 1);
}

/// covers: T13
#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_disturbs_nobody() {
    std::panic::set_hook(Box::new(|_| {}));
    let told = Summaries::default();
    let registry = RunRegistry::new();
    let upstream = Upstream::script(counted());
    let mut service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).on_end(|_| panic!("of the program's")))
        .layer(RunLayer::new(registry.clone()).on_end(told.hook()))
        .service(upstream.clone());
    for calls in 1..=2 {
        let answer = service.call(request()).await.unwrap();
        answer.into_body().read().await.whole();
        assert_eq!((told.all().len(), upstream.calls()), (calls, calls));
    }
    let _ = std::panic::take_hook();

    assert_eq!(upstream.run().in_flight(), 0);
    assert!(registry.list().iter().all(|run| run.in_flight == 0));
}

#[tokio::test(start_paused = true)]
async fn layers_in_one_another_each_tell_and_one_that_is_met_twice_tells_once() {
    let [outer, inner] = [Summaries::default(), Summaries::default()];
    let layer = outer.layer();
    let upstream = Upstream::script(counted());
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(inner.layer())
        .layer(layer)
        .service(upstream);

    Outcome::of(service.oneshot(request())).await.whole();

    assert_eq!(
        (outer.tokens(), inner.tokens()),
        (Some((7, 2)), Some((7, 2)))
    );
}

#[tokio::test(start_paused = true)]
async fn below_a_layer_that_tries_again_it_is_one_call() {
    let told = Summaries::default();
    let upstream = Upstream::scripts([failure(503), failure(503)]);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(told.layer())
        .service(upstream.clone());

    let answer = service.oneshot(prompt("m")).await.unwrap();
    assert!(told.is_empty());
    answer.into_body().read().await.whole();

    assert_eq!((upstream.calls(), told.one().attempts), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn an_attached_call_that_is_sent_twice_is_told_once() {
    let told = Summaries::default();
    let run = Run::open();
    let upstream = Upstream::script(counted());
    let service = told.layer().layer(upstream.clone());
    let request = run.attach(request());

    Outcome::of(service.clone().oneshot(request.clone()))
        .await
        .whole();
    service.oneshot(request).await.unwrap_err();

    assert_eq!(upstream.calls(), 1);
    assert_eq!(told.tokens(), Some((7, 2)));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_below_a_call_that_is_over_tells_nobody_again() {
    let told = Summaries::default();
    let upstream = Upstream::script(counted());
    let answer = told
        .layer()
        .layer(upstream.clone())
        .oneshot(request())
        .await;
    answer.unwrap().into_body().read().await.whole();
    assert_eq!(told.all().len(), 1);

    let late = upstream.run().tool("late").watch(sleep(secs(1))).await;

    assert!(late.is_err());
    assert_eq!(told.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_runs_usage_is_that_of_all_its_calls_and_sub_agents() {
    let run = Run::open();
    let upstream = Upstream::script(counted());
    let stack = Stack::default().step(60).build(&upstream);
    assert_eq!(run.snapshot().usage, None);

    for owner in [run.clone(), run.child(), run.clone()] {
        let request = owner.attach(request());
        let call = request.extensions().get::<Run>().unwrap().clone();
        stack.ask(request).await.whole();
        assert_eq!(call.usage().unwrap().input_tokens, 7);
    }

    let usage = run.snapshot().usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens), (21, 6));
    assert_eq!(run.usage(), Some(usage));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_while_its_attempt_is_held_is_told_with_what_that_cost() {
    let told = Summaries::default();
    let held = Script::sse().data(PRELUDE).data(USAGE).never();
    let registry = RunRegistry::new();
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).on_end(told.hook()))
        .layer(PumpLayer::new())
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(Upstream::script(held));
    let ended = later(5, move || registry.shutdown());

    service.oneshot(prompt("m")).await.unwrap_err();
    ended.await.unwrap();
    for _ in 0..4 {
        yield_now().await;
    }

    assert_eq!(told.one().reason, TerminalReason::Shutdown);
    assert_eq!((told.tokens(), told.one().attempts), (Some((7, 2)), 1));
}
