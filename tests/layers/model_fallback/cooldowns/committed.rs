//! What a candidate fails with after the first of its answer was handed on.

use std::time::Duration;

use tokio::time::{Instant, advance, sleep_until};
use tower_agent::ModelFallbackLayer;

use super::{INSTANT, minutes, two_accounts, unprobed};
use crate::{
    model_fallback::{asks, both},
    support::{DONE, Script, chat, healthy, prompt, secs},
};

fn error_event(code: &str) -> String {
    format!("data: {{\"error\":{{\"message\":\"no\",\"type\":\"x\",\"code\":\"{code}\"}}}}\n\n")
}

fn begun() -> Script {
    Script::sse().data(chat("a"))
}

/// Two accounts, both ways: the layers must not differ.
fn layer() -> ModelFallbackLayer {
    ModelFallbackLayer::new(two_accounts()).cooldowns(unprobed())
}

#[tokio::test(start_paused = true)]
async fn it_is_left_alone_as_if_it_had_failed_before() {
    for (script, lasts, window) in [
        (begun().fail("reset"), 0, secs(30)),
        (begun(), 0, secs(30)),
        (begun().never(), 10, secs(30)),
        (begun().data(error_event("overloaded_error")), 0, secs(30)),
        (
            begun().data(error_event("rate_limit_exceeded")),
            0,
            secs(30),
        ),
        (begun().data(error_event("invalid_api_key")), 0, minutes(10)),
        (
            begun().data(error_event("insufficient_quota")),
            0,
            minutes(300),
        ),
        (begun().data(error_event("model_not_found")), 0, minutes(10)),
    ] {
        // Each has a layer of its own, for both would share what they know.
        for which in 0..2 {
            let (service, upstream) = both(&layer())[which].clone();
            upstream.play("a", script.clone());
            let ask = || asks(&service, &upstream, prompt("a"));
            let start = Instant::now();

            assert_eq!(ask().await, ["a"], "{script:?}");

            assert_eq!(start.elapsed(), secs(lasts));
            assert_eq!(ask().await, ["b"], "{which} {script:?}");
            advance(window - INSTANT).await;
            assert_eq!(ask().await, ["b"], "{which} {script:?}");
            advance(INSTANT).await;
            upstream.play("a", healthy());
            assert_eq!(ask().await, ["a"], "{which} {script:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_break_in_a_row_is_left_alone_for_longer() {
    for which in 0..2 {
        let (service, upstream) = both(&layer())[which].clone();
        upstream.play("a", begun().fail("reset"));
        let ask = || asks(&service, &upstream, prompt("a"));
        for window in [30, 60, 300] {
            assert_eq!(ask().await, ["a"]);
            advance(secs(window) - INSTANT).await;
            assert_eq!(ask().await, ["b"]);
            advance(INSTANT).await;
        }
        assert_eq!(ask().await, ["a"]);
    }
}

/// covers: F8
#[tokio::test(start_paused = true)]
async fn what_says_nothing_of_the_next_request_cools_nothing() {
    for code in [
        "context_length_exceeded",
        "content_filter",
        "invalid_request_error",
    ] {
        for which in 0..2 {
            let cooldowns = unprobed();
            let layer = layer().cooldowns(cooldowns.clone());
            let (service, upstream) = both(&layer)[which].clone();
            upstream.play("a", begun().data(error_event(code)));

            let asked = asks(&service, &upstream, prompt("a")).await;

            assert_eq!(asked, ["a"]);
            assert!(cooldowns.is_empty(), "{which} {code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_begins_with_the_failure_and_not_with_the_answer() {
    for which in 0..2 {
        let (service, upstream) = both(&layer())[which].clone();
        let slow = begun().wait(9.0).data(chat("b")).wait(9.0).fail("reset");
        upstream.play("a", slow);
        let start = Instant::now();
        let ask = || asks(&service, &upstream, prompt("a"));

        assert_eq!(ask().await, ["a"]);

        let end = start + secs(18 + 30);
        sleep_until(end - Duration::from_secs(1)).await;
        assert_eq!(ask().await, ["b"]);
        sleep_until(end).await;
        upstream.play("a", Script::sse().data(chat("a")).data(DONE));
        assert_eq!(ask().await, ["a"]);
    }
}
