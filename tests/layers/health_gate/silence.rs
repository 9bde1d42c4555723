//! A call that is silent, and probes beside it.
//!
//! covers: A10

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, HardCeilingLayer, ModelFallbackLayer, ReplayBody, Run, TerminalReason,
    layers::health_gate::HealthGateBody,
};

use super::{Health, down};
use crate::support::{
    Outcome, PING, ReadExt, Script, Upstream, attach, chat, healthy, healthy_text, prompt,
    prompt_json, reason_of, secs,
};

#[test]
fn a_body_is_sync_even_if_the_futures_of_its_probe_are_not() {
    const fn assert_sync<T: Send + Sync>() {}
    assert_sync::<HealthGateBody<ReplayBody>>();
}

fn hung() -> Script {
    Script::before_head().never()
}

#[tokio::test(start_paused = true)]
async fn two_failed_probes_in_a_row_end_a_call_without_a_head() {
    let health = Health::new(|_| false);
    let upstream = Upstream::script(hung());
    let gate = health.gate().watch_silence(secs(20));
    let run = Run::open();
    let (request, call) = attach(&run, prompt_json("m"));

    let service = gate.layer(upstream.clone());
    let outcome = Outcome::of(service.oneshot(request)).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.at, secs(25));
    assert_eq!(health.asked(), [20_000, 25_000]);
    let ended = outcome.terminated();
    assert_eq!(ended.reason, TerminalReason::StepTimeout);
    let told = "nothing came for 25s, and the upstream failed its health probes (step_timeout)";
    assert!(ended.message().contains(told), "{}", ended.message());
    assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(run.terminal_reason(), None);
    assert!(upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stands_still_is_watched_too() {
    let health = Health::new(|_| false);
    let script = Script::sse().wait(15.0).data(chat("a")).wait(19.0);
    let upstream = Upstream::script(script.data(chat("b")).never());
    let gate = health.gate().watch_silence(secs(20));

    let service = gate.layer(upstream.clone());
    let outcome = Outcome::of(service.oneshot(prompt("m"))).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.text, [chat("a"), chat("b")].concat());
    assert_eq!(outcome.at, secs(34 + 25));
    assert_eq!(health.asked(), [54_000, 59_000]);
    assert!(upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_slow_model_that_is_well_is_let_alone() {
    let health = Health::new(|_| true);
    let script = Script::sse().wait(60.0).data(chat("a"));
    let script = script.wait(60.0).data("data: [DONE]\n\n");
    let gate = health.gate().watch_silence(secs(20));

    let service = gate.layer(Upstream::scripts([script.clone(), script.delayed(60)]));
    for _ in 0..2 {
        let outcome = Outcome::of(service.clone().oneshot(prompt("m"))).await;
        let text = outcome.whole();
        assert_eq!(text, [&chat("a"), "data: [DONE]\n\n"].concat());
    }
    assert!(health.asked().len() > 20);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_alone_is_no_death() {
    // Asked every five seconds: every other fails.
    let health = Health::new(|passed| passed.as_secs() % 10 == 0);
    let upstream = Upstream::script(healthy().delayed(120));
    let gate = health.gate().watch_silence(secs(15));

    let service = gate.layer(upstream);
    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
}

#[tokio::test(start_paused = true)]
async fn a_byte_begins_anew_and_forgets_a_failed_probe() {
    let health = Health::new(|_| false);
    // Each comes between the first probe and the second.
    let script = Script::sse().repeat(10, 12.0, PING).never();
    let gate = health.gate().watch_silence(secs(10));

    let service = gate.layer(Upstream::script(script));
    let outcome = Outcome::of(service.oneshot(prompt("m"))).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.frames, 10);
    assert_eq!(outcome.at, secs(120 + 15));
    assert_eq!(health.asked().len(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_is_away_is_no_silence() {
    let health = Health::new(|_| false);
    let script = Script::sse().data(chat("a")).data(chat("b")).never();
    let gate = health.gate().watch_silence(secs(10));
    let service = gate.layer(Upstream::script(script));
    let answer = service.oneshot(prompt("m")).await.unwrap();
    let mut body = answer.into_body();

    body.token().await;
    sleep(secs(100)).await;

    assert_eq!(body.token().await, chat("b"));
    assert_eq!(health.asked(), []);
}

#[tokio::test(start_paused = true)]
async fn it_is_off_unless_set_and_a_ceiling_goes_before_it() {
    let health = Health::new(|_| false);
    for (gate, asked) in [
        (health.gate(), 0),
        (health.gate().watch_silence(secs(20)), 1),
    ] {
        let service = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(secs(25)))
            .layer(gate)
            .service(Upstream::script(hung()));
        let outcome = Outcome::of(service.oneshot(prompt("m"))).await;
        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
        assert_eq!(outcome.at, secs(25));
        assert!(health.asked().len() >= asked);
        assert_eq!(health.asked().is_empty(), asked == 0);
    }
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn the_wait_for_the_upstream_is_no_silence_of_the_call() {
    let health = Health::new(|passed| passed.as_secs() == 46);
    let upstream = Upstream::scripts([down().delayed(1), healthy().delayed(9)]);
    let gate = health.gate().watch_silence(secs(10));
    let start = Instant::now();

    let service = gate.layer(upstream);
    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    assert!(start.elapsed() >= secs(54));
}

#[tokio::test(start_paused = true)]
async fn many_silent_calls_share_their_probes() {
    let health = Health::new(|_| false).takes(Duration::from_millis(10));
    let gate = health.gate().watch_silence(secs(20));
    let service = gate.layer(Upstream::script(hung()));
    let calls = (0..50).map(|_| tokio::spawn(service.clone().oneshot(prompt("m"))));

    for call in futures_util::future::join_all(calls).await {
        let error = call.unwrap().unwrap_err();
        assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    }

    assert_eq!(health.asked(), [20_000, 25_000]);
    assert_eq!(health.most(), 1);
}

#[tokio::test(start_paused = true)]
async fn it_ends_an_attempt_and_another_model_is_tried() {
    let health = Health::new(|_| false);
    let upstream = Upstream::scripts([hung(), healthy()]);
    let service = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new(["m", "n"].map(Candidate::new)))
        .layer(health.gate().watch_silence(secs(20)))
        .service(upstream.clone());

    let outcome = Outcome::of(service.oneshot(prompt("m"))).await;

    assert_eq!(outcome.headers["x-served-model"], "n");
    assert_eq!(outcome.whole(), healthy_text());
}
