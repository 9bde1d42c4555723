//! One call that waits.
//!
//! covers: E4

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, Candidate, Cooldowns, HardCeilingLayer, HealthGateLayer, ModelFallbackLayer,
    ReplayBody, RetryBudgetLayer, Run, StepTimeoutLayer, TerminalReason, Terminated,
    attempt::FailedAttempts,
    llm::failure::{Classifier, FailureClass, TransportError},
};

use super::{Health, LOADING, down, loading, refused};
use crate::support::{
    Outcome, ReadExt, Script, Upstream, attach, failure, healthy, healthy_text, later, no_delay,
    prompt, reason_of, secs,
};

fn after_45_s(passed: Duration) -> bool {
    passed >= secs(45)
}

fn never(_: Duration) -> bool {
    false
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_is_made_again_once_the_upstream_is_healthy() {
    for first in [down(), loading()] {
        let health = Health::new(after_45_s);
        let upstream = Upstream::scripts([first, healthy()]);
        let service = health.gate().layer(upstream.clone());
        let start = Instant::now();

        let answer = service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(answer.into_body().read().await.whole(), healthy_text());
        assert_eq!(upstream.times(start), [secs(0), secs(45)]);
        let every: Vec<_> = (1..=9).map(|times| times * 5000).collect();
        assert_eq!(health.asked(), every);
        let [first, again] = &upstream.requests()[..] else {
            panic!("two calls");
        };
        assert_eq!(
            (&first.body(), &first.headers, &first.uri),
            (&again.body(), &again.headers, &again.uri)
        );
        assert_eq!(
            first.run().terminal_reason(),
            Some(TerminalReason::Completed),
            "one node, for both"
        );
    }
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn a_step_window_around_it_does_not_fire_and_one_inside_begins_anew() {
    let health = Health::new(after_45_s);
    let upstream = Upstream::scripts([down(), Script::before_head().never()]);
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(30)))
        .layer(health.gate())
        .service(upstream.clone());
    let start = Instant::now();

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    // The pause is over with the wait.
    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(75));
    assert_eq!(upstream.calls(), 2);

    let upstream = Upstream::scripts([down(), healthy()]);
    let service = ServiceBuilder::new()
        .layer(health.gate())
        .layer(StepTimeoutLayer::new(secs(30)))
        .service(upstream.clone());
    service.oneshot(prompt("m")).await.unwrap();
    assert_eq!(upstream.calls(), 2);
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn a_ceiling_around_or_inside_ends_the_wait_and_the_probe() {
    for inside in [false, true] {
        let health = Health::new(never).takes(secs(3));
        let upstream = Upstream::scripts([down(), healthy()]);
        let ceiling = HardCeilingLayer::new(secs(61));
        let outer = HardCeilingLayer::optional((!inside).then_some(secs(61)));
        let service = ServiceBuilder::new()
            .layer(outer)
            .layer(health.gate())
            .service(ceiling.layer(upstream.clone()));

        let outcome = Outcome::of(service.oneshot(prompt("m"))).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
        assert_eq!(outcome.at, secs(61));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(health.under_way(), 0, "begun at 60 s");
        assert_eq!(health.asked().len(), 12);
        let error = outcome.error.unwrap();
        assert!(TransportError::is_refused(&*error), "it says why it waited");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_at_the_instant_of_health_wins() {
    let health = Health::new(after_45_s);
    let upstream = Upstream::scripts([down(), healthy()]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(45)))
        .layer(health.gate())
        .service(upstream.clone());

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_end_from_outside_ends_the_wait_at_once() {
    let health = Health::new(never).takes(secs(3));
    let upstream = Upstream::script(down());
    let service = health.gate().layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));
    later(7, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });

    let outcome = Outcome::of(service.oneshot(request)).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::Aborted));
    assert_eq!(outcome.at, secs(7));
    assert_eq!(health.under_way(), 0);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_in_the_wait_leaves_nothing_behind() {
    let health = Health::new(never).takes(secs(3));
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));
    let service = health.gate().layer(Upstream::script(down()));
    let waiting = tokio::time::timeout(secs(6), service.oneshot(request));

    waiting.await.unwrap_err();

    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(health.under_way(), 0);
    assert_eq!(health.asked(), [5000]);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_budget_pays_for_it_and_no_candidate_is_cooled() {
    let health = Health::new(after_45_s);
    let budget = no_delay().shared(1.0, 0).per_run(1);
    let upstream = Upstream::scripts([down(), healthy()]);
    let service = ServiceBuilder::new()
        .layer(
            ModelFallbackLayer::new([Candidate::new("m")])
                .budget(budget.clone())
                .cooldowns(Cooldowns::new()),
        )
        .layer(RetryBudgetLayer::new(
            budget.clone().max_attempts_per_candidate(1),
        ))
        .layer(health.gate())
        .service(upstream.clone());
    let run = Run::open();
    let (request, _) = attach(&run, prompt("m"));

    let answer = service.clone().oneshot(request).await.unwrap();

    assert!(answer.extensions().get::<FailedAttempts>().is_none());
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    let first = Some("1".to_owned());
    assert_eq!(upstream.header("x-attempt"), [first.clone(), first]);
    assert!(
        budget.withdraw(Some("m")).is_some(),
        "what the call paid in is there"
    );
    assert_eq!(run.terminal_reason(), None);
    // Nobody has to wait for a cooldown.
    service.oneshot(prompt("m")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn patience_hands_on_the_failure_as_it_was() {
    let health = Health::new(never);
    let start = Instant::now();
    let service = health.gate().patience(secs(20));

    let gate = service.layer(Upstream::script(down()));
    let error = gate.oneshot(prompt("m")).await.unwrap_err();
    assert!(TransportError::is_refused(&*error));
    assert!(Terminated::find(&*error).is_none());
    assert_eq!(start.elapsed(), secs(20));

    let gate = service.layer(Upstream::script(loading()));
    let answer = gate.oneshot(prompt("m")).await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.into_body().read().await.whole(), LOADING);
    assert_eq!(start.elapsed(), secs(40));
}

#[tokio::test(start_paused = true)]
async fn patience_is_for_all_waits_of_a_call_together() {
    // Health is no promise: the call is refused again, and again.
    let health = Health::new(|_| true);
    let upstream = Upstream::script(down());
    let service = health.gate().patience(secs(12)).layer(upstream.clone());
    let start = Instant::now();

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert!(TransportError::is_refused(&*error));
    assert_eq!(upstream.times(start), [secs(0), secs(5), secs(10)]);
    assert_eq!(start.elapsed(), secs(12));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_has_failed_at_its_timeout() {
    let health = Health::new(|_| true).takes(secs(600));
    let gate = health.gate().timeout(secs(2)).patience(secs(23));
    let start = Instant::now();

    let service = gate.layer(Upstream::script(down()));
    service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(health.asked(), [5000, 10_000, 15_000, 20_000]);
    assert_eq!(health.most(), 1);
    assert_eq!(start.elapsed(), secs(23));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_is_no_health() {
    let probe = service_fn(|()| async { Err::<bool, _>("no route") });
    let gate = HealthGateLayer::new(probe).patience(secs(11));
    let upstream = Upstream::scripts([down(), healthy()]);

    let service = gate.layer(upstream.clone());
    service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_reached_the_model_is_not_sent_again() {
    let reset = Script::before_head().fail("reset");
    let cut = Script::sse().data("data: {").fail_with(refused);
    let others = [
        (reset, None),
        (cut, Some(200)),
        (failure(503), Some(503)),
        (failure(500), Some(500)),
        (failure(429), Some(429)),
        (Script::answer(200, LOADING), Some(200)),
    ];
    for (script, status) in others {
        let health = Health::new(|_| true);
        let upstream = Upstream::scripts([script, healthy()]);
        let start = Instant::now();

        let answer = health.gate().layer(upstream.clone());
        let answer = answer.oneshot(prompt("m")).await;

        let came = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        assert_eq!(came, status);
        assert_eq!(upstream.calls(), 1, "{status:?}");
        assert_eq!(start.elapsed(), secs(0));
        assert_eq!(health.asked(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_not_waited_for_is_handed_on_byte_for_byte() {
    let script = Script::json().status(500).data("{\"a\":");
    let script = script.wait(0.5).data("1}").trailers();
    let health = Health::new(|_| true);
    let service = health.gate().layer(Upstream::script(script));

    let outcome = Outcome::of(service.oneshot(prompt("m"))).await;

    assert_eq!(outcome.trailers.as_ref().unwrap()["x-sum"], "42");
    assert_eq!(outcome.whole(), "{\"a\":1}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_does_not_end_is_judged_by_its_head_after_a_second() {
    let script = Script::json().status(503).data("{\"error\":").never();
    let health = Health::new(|_| true);
    let service = health.gate().layer(Upstream::script(script));
    let start = Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(1));
    assert_eq!(answer.into_body().token().await, "{\"error\":");
}

/// The gate holds the head of a failed answer while it reads the body. A window that passes
/// meanwhile must not cost the retry what the head says.
#[tokio::test(start_paused = true)]
async fn a_window_that_passes_while_a_failure_is_read_does_not_hide_its_head() {
    for (head_at, inside) in [(2.0, false), (1.5, false), (2.0, true), (1.5, true)] {
        let limited = Script::before_head().wait(head_at).head("application/json");
        let limited = limited.status(429).header("retry-after", "3").never();
        let upstream = Upstream::scripts([limited, healthy()]);
        let (outer, inner) = if inside { (9, 2) } else { (2, 9) };
        let service = ServiceBuilder::new()
            .layer(RetryBudgetLayer::new(no_delay()))
            .layer(StepTimeoutLayer::new(secs(outer)))
            .layer(Health::new(never).gate())
            .layer(StepTimeoutLayer::new(secs(inner)))
            .service(upstream.clone());
        let start = Instant::now();

        let outcome = Outcome::of(service.oneshot(prompt("m"))).await;

        assert_eq!(outcome.status, 200);
        let times = upstream.times(start);
        assert_eq!(times, [secs(0), secs(5)], "{head_at}, {inside}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_the_program_says_what_is_loading() {
    let health = Health::new(|_| true);
    let rule = Classifier::new().rule(|answered| {
        let is_proxy = answered.headers.get("server")? == "proxy";
        is_proxy.then_some(FailureClass::NotReady)
    });
    let upstream = Upstream::scripts([failure(502).header("server", "proxy"), healthy()]);
    let service = health.gate().classifier(rule).layer(upstream.clone());

    let outcome = Outcome::of(service.oneshot(prompt("m"))).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_to_another_upstream_pass() {
    let health = Health::new(never);
    let gate = health.gate().upstream("here:8080".parse().unwrap());
    let upstream = Upstream::script(down());
    let service = gate.layer(upstream.clone());
    let to = |uri: &'static str, host: &str| {
        let body = Full::new(Bytes::from_static(b"{}"));
        let request = Request::post(Uri::from_static(uri)).header("host", host);
        request.body(body).unwrap()
    };

    for other in [to("http://there/v1", "here:8080"), to("/v1", "there")] {
        service.clone().oneshot(other).await.unwrap_err();
    }
    assert_eq!(health.asked(), []);

    for meant in [to("http://here:8080/v1", "x"), to("/v1", "here:8080")] {
        let call = service.clone().oneshot(meant);
        tokio::time::timeout(secs(9), call).await.unwrap_err();
    }
    assert_eq!(health.asked(), [5000, 14_000]);
}

#[tokio::test(start_paused = true)]
async fn two_in_one_stack_wait_for_two_upstreams() {
    let [one, two] = [Health::new(after_45_s), Health::new(|t| t >= secs(70))];
    let upstream = Upstream::scripts([down(), loading(), healthy()]);
    // The inner one knows the first upstream, and lets the second pass.
    let service = ServiceBuilder::new()
        .layer(two.gate().every(secs(7)))
        .layer(one.gate().patience(secs(50)))
        .service(upstream.clone());
    let start = Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    // Refused; loading, for which patience is up 5 s later; healthy at last.
    let third = *upstream.times(start).last().unwrap();
    assert_eq!(upstream.calls(), 3);
    assert_eq!(third, secs(50));
    assert_eq!(two.asked(), []);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_not_held_in_the_wait() {
    let health = Health::new(after_45_s);
    let upstream = Upstream::scripts([down(), healthy()]);
    let service = ServiceBuilder::new()
        .layer(health.gate())
        .concurrency_limit(1)
        .service(upstream.clone());
    let start = Instant::now();

    let call = || async {
        let answer = service.clone().oneshot(prompt("m")).await.unwrap();
        answer.into_body().read().await.whole()
    };
    let (a, b, c) = tokio::join!(call(), call(), call());

    assert_eq!([a, b, c], [(); 3].map(|()| healthy_text()));
    assert_eq!(start.elapsed(), secs(45));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_connect_again_waits_again() {
    let health = Health::new(|_| true);
    let upstream = Upstream::scripts([down(), healthy()]).readiness([None, Some(refused()), None]);
    let service = health.gate().layer(upstream.clone());
    let start = Instant::now();

    service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_http_probe_takes_2xx_for_health() {
    let asked = Upstream::scripts([failure(503), Script::json().status(204)]);
    let gate = HealthGateLayer::get(
        service_fn({
            let asked = asked.clone();
            move |mut request: Request<ReplayBody>| {
                assert_eq!(request.method(), "GET");
                // The scripted upstream wants to know whose call it is.
                request.extensions_mut().insert(Run::open());
                asked.clone().oneshot(request)
            }
        }),
        Uri::from_static("http://here/health"),
    );
    let upstream = Upstream::scripts([down(), healthy()]);
    let service = gate.layer(upstream.clone());
    let start = Instant::now();

    service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(asked.requests()[0].uri, "http://here/health");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_too_large_reaches_nobody() {
    let health = Health::new(|_| true);
    let upstream = Upstream::script(healthy());
    let service = health.gate().max_body(3).layer(upstream.clone());

    let error: BoxError = service.oneshot(prompt("m")).await.unwrap_err();

    assert!(error.is::<http_body_util::LengthLimitError>());
    assert_eq!(upstream.calls(), 0);
}

#[test]
#[should_panic(expected = "a probe interval must be longer than zero")]
fn an_interval_of_zero_is_refused() {
    drop(HealthGateLayer::new(()).every(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_contradicted_three_times_is_not_believed() {
    let sent = [0, 5, 10, 15].map(secs);
    for first in [down(), loading()] {
        let health = Health::new(|_| true);
        let upstream = Upstream::script(first);
        let service = health.gate().layer(upstream.clone());
        let start = Instant::now();

        match service.oneshot(prompt("m")).await {
            Ok(answer) => assert_eq!(answer.into_body().read().await.whole(), LOADING),
            Err(error) => assert!(TransportError::is_refused(&*error)),
        }

        assert_eq!(upstream.times(start), sent);
    }

    // Unhealthy probes between do not count, and the third time it is well.
    let health = Health::new(after_45_s);
    let upstream = Upstream::scripts([down(), loading(), down(), healthy()]);
    let service = health.gate().layer(upstream.clone());
    let start = Instant::now();
    let answer = service.oneshot(prompt("m")).await.unwrap();
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    assert_eq!(upstream.times(start), [0, 45, 50, 55].map(secs));
}

#[tokio::test(start_paused = true)]
async fn behind_such_a_probe_the_budget_pays_again() {
    let health = Health::new(|_| true);
    let upstream = Upstream::script(down());
    let budget = no_delay().shared(1.0, 0).per_run(1);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(24 * 3600)))
        .layer(RetryBudgetLayer::new(budget))
        .layer(health.gate())
        .service(upstream.clone());

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert!(TransportError::is_refused(&*error), "{error}");
    assert!(upstream.calls() <= 8, "{}", upstream.calls());
}
