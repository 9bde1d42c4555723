//! What calls through one gate know together.
//!
//! covers: E4

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Context,
    time::Duration,
};

use futures_util::future::join_all;
use http::Request;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_agent::{HealthGateLayer, ReplayBody, llm::failure::TransportError};

use super::{Health, down};
use crate::support::{Upstream, healthy, prompt, secs};

#[tokio::test(start_paused = true)]
async fn many_calls_wait_behind_the_first_with_one_probe_at_a_time() {
    let health = Health::new(|passed| passed >= secs(45)).takes(secs(1));
    let upstream = Upstream::scripts([down(), healthy()]);
    let service = health.gate().layer(upstream.clone());
    let start = Instant::now();

    let call = |late: u64| {
        let service = service.clone();
        tokio::spawn(async move {
            sleep(secs(late)).await;
            service.oneshot(prompt("m")).await.unwrap().status()
        })
    };
    let answers = join_all((0..100).map(|number| call(number % 40))).await;

    assert!(answers.into_iter().all(|status| status.unwrap() == 200));
    // Of the hundred only those knocked that came before the gate was closed.
    let times = upstream.times(start);
    let knocked = times.iter().filter(|at| at.is_zero()).count();
    assert_eq!(knocked, 1);
    assert_eq!(times[knocked..], [secs(46); 100]);
    assert_eq!(health.most(), 1);
    let every: Vec<_> = (1..=9).map(|times| times * 5000).collect();
    assert_eq!(health.asked(), every);
}

#[tokio::test(start_paused = true)]
async fn another_asks_when_the_one_who_asked_leaves() {
    // In the middle of its probe, and before it.
    for leaves in [5.5, 2.0] {
        let health = Health::new(|_| true).takes(secs(1));
        let service = health.gate().layer(Upstream::scripts([down(), healthy()]));
        let start = Instant::now();
        let first = tokio::spawn(service.clone().oneshot(prompt("m")));
        sleep(Duration::from_millis(1)).await;
        let others = [(); 5].map(|()| tokio::spawn(service.clone().oneshot(prompt("m"))));

        sleep(Duration::from_secs_f64(leaves) - Duration::from_millis(1)).await;
        first.abort();

        for other in others {
            other.await.unwrap().unwrap();
        }
        assert_eq!(start.elapsed().as_secs_f64(), f64::max(leaves, 5.0) + 1.0);
        assert_eq!(health.most(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_asks_and_is_not_polled_any_more_loses_its_turn() {
    for polled in [1, 2] {
        let health = Health::new(|_| true).takes(secs(1));
        let service = health.gate().layer(Upstream::scripts([down(), healthy()]));
        let start = Instant::now();
        let mut first = pin!(service.clone().oneshot(prompt("m")));
        let mut cx = Context::from_waker(futures_util::task::noop_waker_ref());
        for _ in 0..polled {
            assert!(first.as_mut().poll(&mut cx).is_pending());
            // The second time its probe begins, and never ends.
            sleep(secs(5)).await;
        }

        service.oneshot(prompt("m")).await.unwrap();

        // Due at 5 s, and late by what a probe may take and an interval.
        assert_eq!(start.elapsed(), secs(5 + 10 + 1), "{polled}");
        // It comes back, and finds the news.
        assert!(first.await.is_ok());
        assert_eq!(start.elapsed(), secs(5 + 10 + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_known_once_nobody_waits() {
    let health = Health::new(|_| false);
    let upstream = Upstream::scripts([down(), healthy()]);
    let service = health.gate().layer(upstream.clone());
    let first = service.clone().oneshot(prompt("m"));
    tokio::time::timeout(secs(12), first).await.unwrap_err();
    let start = Instant::now();

    service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(0));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_without_knocking_knocks_when_its_patience_ends() {
    let health = Health::new(|_| false);
    let upstream = Upstream::scripts([down(), down(), healthy()]);
    let gate = health.gate();
    let waiting = gate.clone().layer(upstream.clone());
    let first = tokio::spawn(waiting.oneshot(prompt("m")));
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();

    let hasty = gate.patience(secs(3)).layer(upstream.clone());
    hasty.clone().oneshot(prompt("m")).await.unwrap_err();
    assert_eq!((start.elapsed(), upstream.calls()), (secs(3), 2));

    hasty.oneshot(prompt("m")).await.unwrap();
    assert_eq!((start.elapsed(), upstream.calls()), (secs(6), 3));
    assert!(!first.is_finished());
}

#[tokio::test(start_paused = true)]
async fn two_layers_know_nothing_of_each_other() {
    let health = Health::new(|_| false);
    let one = health.gate().layer(Upstream::script(down()));
    let first = tokio::spawn(one.oneshot(prompt("m")));
    sleep(secs(1)).await;

    let other = health.gate().layer(Upstream::script(healthy()));
    other.oneshot(prompt("m")).await.unwrap();

    assert!(!first.is_finished());
}

/// Threads that come, leave in the middle and take turns lose nobody.
#[test]
fn no_call_is_forgotten_among_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let asked = Arc::new(AtomicUsize::new(0));
        let probe = service_fn({
            let asked = Arc::clone(&asked);
            move |()| {
                let number = asked.fetch_add(1, Ordering::SeqCst);
                async move {
                    tokio::task::yield_now().await;
                    Ok::<_, Infallible>(number % 3 == 2)
                }
            }
        });
        let calls = Arc::new(AtomicUsize::new(0));
        let upstream = service_fn({
            let calls = Arc::clone(&calls);
            move |_: Request<ReplayBody>| {
                let number = calls.fetch_add(1, Ordering::SeqCst);
                async move {
                    match number % 4 {
                        0 => Err::<_, std::io::Error>(std::io::ErrorKind::ConnectionRefused.into()),
                        _ => Ok(http::Response::new(ReplayBody::default())),
                    }
                }
            }
        });
        let gate = HealthGateLayer::new(probe).every(Duration::from_millis(1));
        let service = gate.layer(upstream);
        let calls = (0..2000).map(|number| {
            let service = service.clone();
            tokio::spawn(async move {
                let call = service.oneshot(prompt("m"));
                // Every third leaves, somewhere.
                let patience = if number % 3 == 0 { number % 7 } else { 60_000 };
                let patience = Duration::from_millis(patience);
                let answer = tokio::time::timeout(patience, call).await;
                // Whoever is refused three times behind a healthy probe is told so.
                let is_told = answer.is_ok_and(|answer| match answer {
                    Ok(_) => true,
                    Err(error) => TransportError::is_refused(&*error),
                });
                assert!(number % 3 == 0 || is_told);
            })
        });
        for call in join_all(calls).await {
            call.unwrap();
        }
    });
}
