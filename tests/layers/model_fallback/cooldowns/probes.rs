//! One call looks whether a candidate serves again, near the end of its window.

use futures_util::future::join_all;
use tokio::time::advance;
use tower::ServiceExt;
use tower_agent::Cooldowns;

use super::{INSTANT, asks, cooled, minutes, of_account, two_accounts, unprobed};
use crate::support::{Script, chat, failure, healthy, prompt, secs};

#[tokio::test(start_paused = true)]
async fn of_many_calls_at_once_exactly_one_probes() {
    let (service, upstream) = cooled(&Cooldowns::new(), two_accounts());
    upstream.play("a", failure(401));
    let ask = || asks(&service, &upstream, prompt("a"));
    assert_eq!(ask().await, ["a", "b"]);
    // Ten minutes, of which two may be probed.
    advance(minutes(8) - INSTANT).await;
    assert_eq!(ask().await, ["b"]);
    advance(INSTANT).await;
    upstream.play("a", healthy().delayed(1));
    let before = upstream.calls();

    join_all((0..20).map(|_| ask())).await;

    let mut asked = upstream.models().split_off(before);
    asked.sort();
    assert_eq!(asked.len(), 20);
    assert_eq!(asked[..2], ["a", "b"]);
    // It has served.
    assert_eq!(ask().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_begins_to_serve_lets_the_others_in_before_its_end() {
    let (service, upstream) = cooled(&Cooldowns::new(), two_accounts());
    upstream.play("a", failure(401));
    let ask = || asks(&service, &upstream, prompt("a"));
    assert_eq!(ask().await, ["a", "b"]);
    advance(minutes(8)).await;
    upstream.play("a", Script::sse().data(chat("a")).never());
    let probe = service.clone().oneshot(prompt("a")).await.unwrap();

    upstream.play("a", healthy());
    assert_eq!(ask().await, ["a"]);

    drop(probe);
    assert_eq!(ask().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_leaves_the_window_and_half_a_minute_of_peace() {
    let (service, upstream) = cooled(&Cooldowns::new(), two_accounts());
    upstream.play("a", failure(401));
    let ask = || asks(&service, &upstream, prompt("a"));
    assert_eq!(ask().await, ["a", "b"]);
    advance(minutes(8)).await;
    for _ in 0..4 {
        assert_eq!(ask().await, ["a", "b"]);
        advance(secs(30) - INSTANT).await;
        assert_eq!(ask().await, ["b"]);
        advance(INSTANT).await;
    }
    // The window has ended; the next is the second in a row, not the sixth.
    assert_eq!(ask().await, ["a", "b"]);
    advance(minutes(18) - INSTANT).await;
    assert_eq!(ask().await, ["b"]);
    advance(INSTANT).await;
    assert_eq!(ask().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn the_candidate_that_is_fallen_back_to_is_probed_as_well() {
    let (service, upstream) = cooled(&Cooldowns::new(), two_accounts());
    upstream.play("b", failure(401));
    let ask = |model| asks(&service, &upstream, prompt(model));
    assert_eq!(ask("b").await, ["b", "a"]);
    upstream.play("a", failure(400));
    assert_eq!(ask("b").await, ["a"]);
    upstream.play("a", failure(500));
    assert_eq!(ask("a").await, ["a"], "nobody is left");

    advance(minutes(8)).await;
    upstream.play("b", healthy());
    assert_eq!(ask("a").await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_margin_nobody_probes() {
    let (service, upstream) = cooled(&unprobed(), two_accounts());
    upstream.play("a", failure(401));
    let ask = || asks(&service, &upstream, prompt("a"));
    assert_eq!(ask().await, ["a", "b"]);

    advance(minutes(10) - INSTANT).await;

    assert_eq!(ask().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_program_has_a_margin_of_its_own() {
    let cooldowns = Cooldowns::new().probe(secs(10), secs(25));
    let (service, upstream) = cooled(&cooldowns, two_accounts());
    upstream.play("a", failure(500));
    let ask = || asks(&service, &upstream, prompt("a"));
    let mut probed = Vec::new();
    for second in 0..30 {
        if ask().await.len() == 2 {
            probed.push(second);
        }
        advance(secs(1)).await;
    }
    assert_eq!(probed, [0, 10, 20]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_finds_no_model_leaves_the_accounts_turn_to_another() {
    let candidates = ["a", "b"].map(|name| of_account(name, "one"));
    let (service, upstream) = cooled(&Cooldowns::new(), candidates);
    upstream.play("a", failure(401));
    let ask = |model| asks(&service, &upstream, prompt(model));
    assert_eq!(ask("a").await, ["a"]);
    advance(minutes(8)).await;
    upstream.play("a", Script::error_code(404, "model_not_found"));

    assert_eq!(ask("a").await, ["a", "b"]);

    // It has served.
    assert_eq!(ask("b").await, ["b"]);
}
