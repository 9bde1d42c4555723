use bytes::Bytes;
use http::Request;
use http_body_util::Channel;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{LoopGuardLayer, Run, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason};

use super::{
    agent::{Agent, Dialect},
    told,
};
use crate::support::{Outcome, ReadExt, Script, Upstream, later, reason_of, secs};

#[tokio::test(start_paused = true)]
async fn a_layer_that_observes_tells_and_ends_nothing() {
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let service = LoopGuardLayer::new()
        .stop(8)
        .observe()
        .layer(upstream.clone());
    let run = Run::open();
    let events = run.subscribe();
    let mut agent = Agent::new(Dialect::Responses);
    for _ in 0..12 {
        let request = run.attach(agent.request());
        Outcome::of(service.clone().oneshot(request)).await.whole();
        agent.does("job_status", "running");
    }

    assert_eq!(upstream.calls(), 12);
    run.end(TerminalReason::Aborted);
    let told = told(events).await;
    assert_eq!(
        told[..3],
        [
            "stuck 5",
            "same call observed job_status 8",
            "same call warned job_status 10"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_that_changes_lets_it_go_on() {
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(LoopGuardLayer::new().any_tool(0))
        .service(upstream.clone());
    let mut agent = Agent::new(Dialect::Chat);
    for turn in 0..60 {
        Outcome::of(service.clone().oneshot(agent.request_of("r")))
            .await
            .whole();
        agent.does("job_status", &"step ".repeat(turn / 10));
    }
    assert_eq!(upstream.calls(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_while_its_request_is_read_is_not_sent_on() {
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let service = LoopGuardLayer::new().layer(upstream.clone());
    let run = Run::open();
    let (_sender, body) = Channel::<Bytes>::new(1);
    let ends = run.clone();
    later(3, move || ends.end(TerminalReason::Aborted));

    let request = Request::post("/v1/chat/completions").body(body).unwrap();
    let error = service.oneshot(run.attach(request)).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!(upstream.calls(), 0);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_is_no_silence_of_the_upstream() {
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(5)))
        .layer(LoopGuardLayer::new())
        .service(upstream.clone());
    let (mut sender, body) = Channel::<Bytes>::new(1);
    tokio::spawn(async move {
        tokio::time::sleep(secs(60)).await;
        sender.send_data(Bytes::from("{}")).await.unwrap();
    });

    let request = Request::post("/v1/chat/completions").body(body).unwrap();
    let answer = service.oneshot(request).await.unwrap();

    answer.into_body().read().await.whole();
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_is_waited_for() {
    let upstream = Upstream::script(Script::answer(200, "{}")).readiness([Some("no".into())]);
    let service = LoopGuardLayer::new().layer(upstream.clone());

    let error = service
        .oneshot(Agent::new(Dialect::Chat).request())
        .await
        .unwrap_err();

    assert_eq!(error.to_string(), "no");
    assert_eq!(upstream.calls(), 0);
}
