//! Calls that share a service, an upstream or a thread with others.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http_body_util::channel::Channel;
use tokio::{
    task::yield_now,
    time::{Instant, timeout},
};
use tower::{Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer};
use tower_agent::{HardCeilingLayer, RetryBudget, RetryBudgetLayer, Run, TerminalReason};

use crate::support::{
    ReadExt, Upstream, failure, healthy, healthy_text, no_delay, poll_once, prompt, reason_of, secs,
};

#[tokio::test(start_paused = true)]
async fn a_slow_upload_holds_no_place_in_the_service() {
    let upstream = Upstream::scripts([healthy()]);
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

#[tokio::test(start_paused = true)]
async fn calls_of_one_run_that_fail_together_do_not_come_back_together() {
    let mut apart = 0;
    for _ in 0..8 {
        let upstream = Upstream::scripts([failure(429), failure(429), healthy()]);
        let service = RetryBudgetLayer::new(RetryBudget::new()).layer(upstream.clone());
        let run = Run::open();
        let start = Instant::now();

        let calls = [(); 2].map(|()| service.clone().oneshot(run.attach(prompt("m"))));
        let [one, other] = calls;
        let (one, other) = tokio::join!(one, other);

        for answer in [one.unwrap(), other.unwrap()] {
            assert_eq!(answer.status(), 200);
        }
        let times = upstream.times(start);
        assert_eq!(times.len(), 4);
        apart += usize::from(times[2] != times[3]);
    }
    // Of waits of up to two seconds, in milliseconds, two may be the same.
    assert!(apart >= 6, "{apart} of 8");
}

#[tokio::test(start_paused = true)]
async fn what_fails_at_once_again_and_again_leaves_others_a_turn() {
    let upstream = Upstream::scripts([failure(500)]);
    let budget = no_delay().unshared().max_attempts_per_candidate(10_000);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(5)))
        .layer(RetryBudgetLayer::new(budget))
        .service(upstream.clone());
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        for _ in 0..10 {
            yield_now().await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
        tokio::time::advance(secs(6)).await;
    });

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(turns.load(Ordering::SeqCst), 10);
    assert!(upstream.calls() < 10_000, "{}", upstream.calls());
    other.await.unwrap();
}
