//! Whose place is whose while the upstream is down, and from when on silence counts.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt};

use super::{Health, down, refused};
use crate::support::{DONE, Outcome, Script, Upstream, chat, healthy, prompt, prompt_json, secs};

#[tokio::test(start_paused = true)]
async fn who_waits_at_a_closed_gate_holds_no_place_in_the_service() {
    let health = Health::new(|_| true);
    let service = ServiceBuilder::new()
        .layer(health.gate())
        .concurrency_limit(1)
        .service(Upstream::scripts([down(), healthy()]));
    let waiting = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(prompt("m"))));
    sleep(secs(1)).await;

    let mut third = service.clone();
    let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut third);
    assert!(timeout(secs(1), ready).await.is_ok());

    drop(third);
    for call in waiting {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_and_is_not_polled_any_more_keeps_nobody_out() {
    let health = Health::new(|_| true);
    let service = health.gate().layer(Upstream::scripts([down(), healthy()]));
    let start = Instant::now();
    let mut parked = pin!(service.clone().oneshot(prompt("m")));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(parked.as_mut().poll(&mut cx).is_pending());

    service.clone().oneshot(prompt("m")).await.unwrap();
    let healthy = start.elapsed();
    service.oneshot(prompt("m")).await.unwrap();

    assert!(healthy > secs(5), "it waited for its turn to ask");
    assert_eq!(start.elapsed(), healthy, "the next was let through");
}

#[tokio::test(start_paused = true)]
async fn silence_that_begins_anew_is_not_asked_about_sooner() {
    let health = Health::new(|_| true);
    let script = Script::sse().wait(2.0).data(chat("a"));
    let script = script.wait(5.0).data(chat("b")).data(DONE);
    let gate = health.gate().watch_silence(secs(1));

    let service = gate.layer(Upstream::script(script));
    Outcome::of(service.oneshot(prompt("m"))).await.whole();

    assert_eq!(health.asked(), [1000, 6000]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_made_again_is_silent_from_then_on() {
    // Well for as long as it takes to be sent the call again.
    let health = Health::new(|passed| (secs(45)..secs(50)).contains(&passed));
    let late = Script::before_head().wait(8.0).fail_with(refused);
    let hung = Script::before_head().never();
    let gate = health.gate().watch_silence(secs(20));

    let service = gate.layer(Upstream::scripts([late, hung]));
    let outcome = Outcome::of(service.oneshot(prompt_json("m"))).await;

    let again = secs(8 + 8 * 5);
    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.at, again + secs(25));
    let message = outcome.terminated().message();
    assert!(message.contains("nothing came for 25s"), "{message}");
}
