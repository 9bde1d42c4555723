//! Turns that have waited for as long as a turn waits.

use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, RetryBudget, RetryBudgetLayer, Run, TerminalReason,
    TurnCapLayer,
    run::{PauseAtCap, RunCap, RunPaused},
};

use tokio::time::Instant;

use super::{Served, WAIT, turns};
use crate::support::{LogCapture, Place, Script, Stack, Upstream, prompt_json, with_header};

#[tokio::test(start_paused = true)]
async fn it_is_a_503_that_clients_repeat_in_each_dialect() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("a").await.status, 200);
    let paths = ["/v1/chat/completions", "/v1/responses", "/v1/messages"];
    for path in paths {
        let mut request = with_header(prompt_json("a"), "x-run-id", "r");
        *request.uri_mut() = path.parse().unwrap();
        let outcome = served.send(request).await;
        assert_eq!((outcome.status, outcome.at), (503, WAIT), "{path}");
        assert_eq!(outcome.header("retry-after"), Some("30"));
        assert_eq!(outcome.header("x-should-retry"), Some("true"));
        assert_eq!(
            outcome.header("x-terminal-reason"),
            None,
            "it has not ended"
        );
        assert_eq!(outcome.header("x-run-id"), Some("r"));
        let json: serde_json::Value = serde_json::from_str(&outcome.text).unwrap();
        let error = &json["error"];
        assert_eq!(
            error["message"],
            "The run is paused at its cap of 1 turn; its operator was asked (run_paused). Try again \
             later."
        );
        assert_eq!(error["type"], "run_paused", "{path}: {json}");
        if path != "/v1/messages" {
            assert_eq!(error["code"], "run_paused", "{path}: {json}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_counts_nowhere() {
    let logs = LogCapture::start();
    let served = Served::new(Script::json().data("{}"), |stack| {
        let budget = RetryBudget::new().per_run(2).consecutive_errors(2);
        let layer = TurnCapLayer::new(1).pause(PauseAtCap::new());
        stack.max_turns(layer).retry(budget)
    });
    assert_eq!(served.turn("a").await.status, 200);
    let before = served.run().snapshot();
    for _ in 0..5 {
        assert_eq!(served.turn("b").await.status, 503);
    }
    let run = served.run();
    let after = run.snapshot();
    assert_eq!((run.turns(), after.errors, after.in_flight), (1, 0, 0));
    assert_eq!(after.progress.state_changes, before.progress.state_changes);
    assert_eq!(after.reason, None);
    assert_eq!(served.upstream.calls(), 1);
    run.extend(turns(1)).unwrap();
    assert_eq!(served.turn("c").await.status, 200);
    drop(logs);
}

#[tokio::test(start_paused = true)]
async fn a_program_finds_the_error_and_the_reason_of_its_call() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let layer = TurnCapLayer::new(1).pause(PauseAtCap::new());
    let service = Stack::default()
        .layer(Place::TurnCap, layer)
        .build(&upstream);
    let run = tower_agent::Run::open();
    service.ask(run.attach(prompt_json("a"))).await.whole();
    let (request, call) = crate::support::attach(&run, prompt_json("a"));
    let outcome = service.ask(request).await;
    let paused: &RunPaused = outcome.error();
    assert_eq!(paused.cap, Some(RunCap::Turns));
    assert_eq!(
        paused.to_string(),
        "the run is paused at its cap of 1 turn; its operator was asked"
    );
    assert_eq!(call.terminal_reason().unwrap().as_str(), "run_paused");
    assert_eq!(run.last_end(), call.terminal_reason());
    assert_eq!(run.terminal_reason(), None);
    run.end(TerminalReason::Aborted);
}

#[tokio::test(start_paused = true)]
async fn layers_outside_of_the_cap_try_no_other_attempt() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let budget = RetryBudget::new().max_attempts_per_candidate(3);
    let candidates = ["a", "b"].map(Candidate::new);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(budget))
        .layer(ModelFallbackLayer::new(candidates))
        .layer(TurnCapLayer::new(1).pause(PauseAtCap::new()))
        .service(upstream.clone());
    let run = Run::open();
    let ask = || {
        let request = run.attach(prompt_json("a"));
        service.clone().oneshot(request)
    };
    assert_eq!(ask().await.unwrap().status(), 200);
    let sent = Instant::now();

    let error = ask().await.err().unwrap();

    assert_eq!(sent.elapsed(), WAIT, "{error}");
    let mut causes = std::iter::successors(
        Some(&*error as &(dyn std::error::Error + 'static)),
        |error| error.source(),
    );
    assert!(causes.any(|cause| cause.is::<RunPaused>()), "{error:?}");
    assert_eq!(upstream.calls(), 1);
}
