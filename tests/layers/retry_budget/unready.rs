//! The inner service is asked whether it is ready, before each attempt.

use bytes::Bytes;
use http::Request;
use http_body_util::{Full, channel::Channel};
use tokio::{time::Instant, time::timeout};
use tower::{Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer};
use tower_agent::{
    BoxError, HardCeilingLayer, RetryBudgetLayer, Run, TerminalReason,
    llm::failure::{FailureClass, TransportError},
};

use crate::support::{
    ReadExt, Stack, Upstream, attach, failure, healthy, healthy_text, no_delay, poll_once, prompt,
    reason_of, secs,
};

fn gone() -> Option<BoxError> {
    Some("the pool is gone".into())
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_is_a_failed_attempt() {
    let scripts = [failure(500), healthy()];
    let upstream = Upstream::scripts(scripts).readiness([None, gone()]);
    let budget = no_delay().max_attempts_per_candidate(3);
    let stack = Stack::default().budget(budget).build(&upstream);
    let run = Run::open();

    let outcome = stack.ask(run.attach(prompt("m"))).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.calls(), 2);
    assert_eq!(run.in_flight(), 0);
}

/// covers: T36
#[tokio::test(start_paused = true)]
async fn it_uses_up_an_attempt() {
    for most in [2, 4] {
        let never = (0..1_000).map(|at| if at == 0 { None } else { gone() });
        let upstream = Upstream::script(failure(500)).readiness(never);
        let budget = no_delay().max_attempts_per_candidate(most).unshared();
        let service = RetryBudgetLayer::new(budget).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        let error = service.oneshot(request).await.unwrap_err();

        assert!(TransportError::is_in(&*error), "{error}");
        let last = error.source().unwrap().to_string();
        assert!(last.ends_with("the pool is gone"), "{last}");
        let transport = TerminalReason::Failed(FailureClass::Transport);
        assert_eq!(call.terminal_reason(), Some(transport));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(upstream.readiness_polls(), most as usize);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_told_as_a_failure_of_the_transport() {
    let scripts = [failure(500), failure(500)];
    let upstream = Upstream::scripts(scripts).readiness([None, gone()]);
    let budget = no_delay().max_attempts_per_candidate(3);
    let stack = Stack::default().budget(budget).build(&upstream);

    let outcome = stack.ask(prompt("m")).await;

    let [server, transport] = [FailureClass::Server, FailureClass::Transport];
    let told = [server, transport, server].map(|class| (None, class));
    assert_eq!(outcome.tries, told);
}

#[tokio::test(start_paused = true)]
async fn an_unready_service_before_the_first_attempt_is_the_callers_to_see() {
    let upstream = Upstream::script(healthy()).readiness([gone()]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(error.to_string(), "the pool is gone");
    assert_eq!(upstream.calls(), 0);
}

/// covers: T35
#[tokio::test(start_paused = true)]
async fn readiness_is_not_held_during_the_wait() {
    let limited = failure(429).header("retry-after", "5");
    let upstream = Upstream::scripts([limited.clone(), limited, healthy()]);
    // Panics, too, if it is called without having been asked.
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(upstream.clone());
    let start = Instant::now();

    let one = service.clone().oneshot(prompt("m"));
    let other = service.oneshot(prompt("m"));
    let (one, other) = tokio::join!(one, other);

    for answer in [one.unwrap(), other.unwrap()] {
        assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    }
    assert_eq!(start.elapsed(), secs(5));
    let times = upstream.times(start);
    assert_eq!(times, [secs(0), secs(0), secs(5), secs(5)]);
}

/// covers: T34
#[tokio::test(start_paused = true)]
async fn the_first_attempt_is_made_with_the_service_that_was_asked() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(upstream.clone());
    let mut one = service.clone();
    let one = ServiceExt::<Request<Full<Bytes>>>::ready(&mut one);
    let one = one.await.unwrap();

    // Whoever was asked holds the only permit: the other has to wait for it.
    let other = tokio::time::timeout(secs(1), service.oneshot(prompt("m")));
    assert!(other.await.is_err());
    let call = tower::Service::call(one, prompt("m"));
    let answer = call.await.unwrap();

    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_not_ready_for_the_repeat_is_told_as_502() {
    let gone = "the pool is gone".into();
    let upstream = Upstream::script(failure(500)).readiness([None, Some(gone)]);
    let stack = Stack::default().terminal().budget(no_delay());

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.status, 502);
    assert_eq!((upstream.calls(), upstream.readiness_polls()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_ready_at_the_very_deadline_is_not_called() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(5)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone().busy(secs(5)));

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 1);
}

/// covers: T35
#[tokio::test(start_paused = true)]
async fn a_slow_upload_holds_no_place_in_the_service() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(upstream.clone());
    let (mut upload, body) = Channel::<bytes::Bytes>::new(1);
    let slow = prompt("slow").map(|_| body);
    let mut slow = Box::pin(service.clone().oneshot(slow));
    assert!(poll_once(&mut slow).is_pending());

    let other = timeout(secs(1), service.oneshot(prompt("m")));
    let answer = other.await.unwrap().unwrap();

    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    upload
        .send_data(r#"{"model":"slow"}"#.into())
        .await
        .unwrap();
    drop(upload);
    let answer = slow.await.unwrap();
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    assert_eq!(upstream.models(), ["m", "slow"]);
}
