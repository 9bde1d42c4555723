//! For how long.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt};
use tower_agent::{Cooldowns, TerminalReason, llm::failure::FailureClass};

use super::{INSTANT, asks, cooled, minutes, models, two_accounts, unprobed};
use crate::support::{Script, Upstream, chat, failure, healthy, prompt, secs};

/// covers: T61
#[tokio::test(start_paused = true)]
async fn after_a_failure_calls_go_straight_to_the_next_until_the_window_ends() {
    let (service, upstream) = cooled(&Cooldowns::new(), two_accounts());
    upstream.play("a", failure(500));
    let ask = || asks(&service, &upstream, prompt("a"));

    assert_eq!(ask().await, ["a", "b"]);
    assert_eq!(ask().await, ["b"]);
    advance(secs(30) - INSTANT).await;
    assert_eq!(ask().await, ["b"]);
    upstream.play("a", healthy());
    advance(INSTANT).await;
    assert_eq!(ask().await, ["a"]);
}

/// Fails the first candidate once a window, each as soon as the one before it
/// has ended, and looks a moment before and at its end.
async fn is_left_alone_for(script: Script, windows: impl IntoIterator<Item = Duration>) {
    let (service, upstream) = cooled(&unprobed(), two_accounts());
    upstream.play("a", script);
    let ask = || asks(&service, &upstream, prompt("a"));
    for window in windows {
        assert_eq!(ask().await, ["a", "b"], "{window:?}");
        advance(window - INSTANT).await;
        assert_eq!(ask().await, ["b"], "{window:?}");
        advance(INSTANT).await;
    }
    assert_eq!(ask().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn what_passes_by_itself_half_a_minute_then_one_then_five() {
    let ladder = [30, 60, 300, 300, 300].map(secs);
    for script in [
        failure(500),
        failure(429),
        failure(529),
        Script::before_head().fail("reset"),
        Script::sse(),
    ] {
        is_left_alone_for(script, ladder).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_or_a_model_that_is_gone_ten_minutes_doubling_to_a_day() {
    let ladder = [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440].map(minutes);
    for script in [
        failure(401),
        Script::error_code(403, "invalid_api_key"),
        Script::error_code(404, "model_not_found"),
    ] {
        is_left_alone_for(script, ladder).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_quota_five_hours_doubling_to_a_day() {
    let ladder = [5, 10, 20, 24, 24].map(|hours| minutes(60 * hours));
    for script in [failure(402), Script::error_code(429, "insufficient_quota")] {
        is_left_alone_for(script, ladder).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_has_windows_of_its_own() {
    let cooldowns = unprobed()
        .short([1, 2, 3].map(secs))
        .long(secs(10))
        .quota(secs(100))
        .most(secs(150));
    let ladders = [
        (failure(500), [1, 2, 3, 3].as_slice()),
        (failure(401), &[10, 20, 40, 80, 150]),
        (failure(402), &[100, 150]),
        (failure(429).header("retry-after", "9999"), &[150]),
    ];
    for (script, ladder) in ladders {
        // Its clones share what is known, so each has one of its own.
        let cooldowns = cooldowns.clone();
        let (service, upstream) = cooled(&cooldowns, two_accounts());
        upstream.play("a", script);
        let ask = || asks(&service, &upstream, prompt("a"));
        for window in ladder {
            assert_eq!(ask().await, ["a", "b"]);
            advance(secs(*window) - INSTANT).await;
            assert_eq!(ask().await, ["b"]);
            advance(INSTANT).await;
        }
        upstream.play("a", healthy());
        assert_eq!(ask().await, ["a"]);
        assert!(cooldowns.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_left_alone_for_as_long_as_it_asks_for() {
    for (asked, window) in [("1", 1), ("100", 100), ("1000000", 24 * 3600)] {
        let limited = failure(429).header("retry-after", asked);
        is_left_alone_for(limited, [secs(window)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_began_before_extend_no_running_window() {
    let (service, upstream) = cooled(&unprobed(), two_accounts());
    upstream.play("a", failure(500).delayed(20));
    let slow = tokio::spawn({
        let (service, upstream) = (service.clone(), upstream.clone());
        async move { asks(&service, &upstream, prompt("a")).await }
    });
    sleep(secs(5)).await;
    upstream.play("a", failure(500));
    let ask = || asks(&service, &upstream, prompt("a"));
    let end = Instant::now() + secs(30);

    assert_eq!(ask().await, ["a", "b"]);
    // Fails after 15 s of the window.
    slow.await.unwrap();
    advance(end - Instant::now() - INSTANT).await;
    assert_eq!(ask().await, ["b"]);
    advance(INSTANT).await;
    assert_eq!(ask().await, ["a", "b"]);
    // The second in a row, not the third.
    advance(secs(60) - INSTANT).await;
    assert_eq!(ask().await, ["b"]);
    advance(INSTANT).await;
    assert_eq!(ask().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_served_to_its_end_starts_the_row_anew() {
    let cooldowns = unprobed();
    let (service, upstream) = cooled(&cooldowns, two_accounts());
    let ask = || asks(&service, &upstream, prompt("a"));
    for _ in 0..3 {
        upstream.play("a", failure(500));
        assert_eq!(ask().await, ["a", "b"]);
        assert_eq!(cooldowns.len(), 1);
        advance(secs(30) - INSTANT).await;
        assert_eq!(ask().await, ["b"]);
        advance(INSTANT).await;
        upstream.play("a", healthy());
        assert_eq!(ask().await, ["a"]);
        assert!(cooldowns.is_empty());
    }
}

/// covers: T62
#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_reads_to_its_end_leaves_the_row() {
    let (service, upstream) = cooled(&unprobed(), two_accounts());
    let ask = || asks(&service, &upstream, prompt("a"));
    upstream.play("a", failure(500));
    assert_eq!(ask().await, ["a", "b"]);
    advance(secs(30)).await;
    upstream.play("a", Script::sse().data(chat("a")).never());
    let answer = service.clone().oneshot(prompt("a")).await.unwrap();
    assert_eq!(answer.headers()["x-served-model"], "a");
    drop(answer);

    upstream.play("a", failure(500));
    assert_eq!(ask().await, ["a", "b"]);

    advance(secs(60) - INSTANT).await;
    assert_eq!(ask().await, ["b"]);
    advance(INSTANT).await;
    assert_eq!(ask().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_success_that_began_before_the_failure_says_nothing() {
    let (service, upstream) = cooled(&unprobed(), two_accounts());
    upstream.play("a", healthy().delayed(10));
    let slow = tokio::spawn({
        let (service, upstream) = (service.clone(), upstream.clone());
        async move { asks(&service, &upstream, prompt("a")).await }
    });
    sleep(secs(5)).await;
    upstream.play("a", failure(500));
    let ask = || asks(&service, &upstream, prompt("a"));
    let end = Instant::now() + secs(30);
    assert_eq!(ask().await, ["a", "b"]);

    slow.await.unwrap();

    assert_eq!(upstream.reasons()[0], Some(TerminalReason::Completed));
    assert_eq!(ask().await, ["b"]);
    advance(end - Instant::now() - INSTANT).await;
    assert_eq!(ask().await, ["b"]);
    advance(INSTANT).await;
    assert_eq!(ask().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn layers_with_clones_of_one_handle_know_the_same() {
    let cooldowns = Cooldowns::new();
    let upstream = Upstream::script(healthy());
    upstream.play("a", failure(500));
    let layer = || models(["a", "b"]).layer(upstream.clone());
    let with = |cooldowns: &Cooldowns| {
        let layer = models(["a", "b"]).cooldowns(cooldowns.clone());
        layer.layer(upstream.clone())
    };
    let ask = async |service| asks(&service, &upstream, prompt("a")).await;

    assert_eq!(ask(with(&cooldowns)).await, ["a", "b"]);

    assert_eq!(ask(with(&cooldowns)).await, ["b"]);
    assert_eq!(ask(with(&Cooldowns::new())).await, ["a", "b"]);
    assert_eq!(ask(layer()).await, ["a", "b"], "off by default");
}

#[tokio::test(start_paused = true)]
async fn the_hook_hears_of_each_window_once_as_it_begins() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let cooldowns = unprobed().on_begin(move |cooling| {
        hears.lock().unwrap().push(cooling.clone());
        panic!("a hook's panic is not the call's");
    });
    let (service, upstream) = cooled(&cooldowns, two_accounts());
    upstream.play("a", failure(429));
    for _ in 0..3 {
        asks(&service, &upstream, prompt("a")).await;
    }
    {
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 1);
        assert_eq!((&*heard[0].candidate, heard[0].left), ("a", secs(30)));
        assert_eq!(heard[0].class, FailureClass::RateLimit);
    }
    advance(secs(31)).await;
    asks(&service, &upstream, prompt("a")).await;
    let lefts: Vec<_> = heard.lock().unwrap().iter().map(|it| it.left).collect();
    assert_eq!(lefts, [secs(30), minutes(1)]);
}
