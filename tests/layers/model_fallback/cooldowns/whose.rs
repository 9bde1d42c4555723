//! What a failure is about: the model, the account, or the host.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::time::advance;
use tower_agent::{Candidate, Cooldowns, llm::failure::ActiveCooldown};

use super::{asks, at, cooled, from, of_account, unprobed};
use crate::support::{Script, failure, healthy, prompt, secs};

#[tokio::test(start_paused = true)]
async fn a_rate_limit_or_a_missing_model_leaves_the_accounts_other_models() {
    for script in [
        failure(429),
        Script::error_code(404, "model_not_found"),
        failure(500),
    ] {
        let candidates = ["a", "b", "c"].map(|name| of_account(name, "one"));
        let (service, upstream) = cooled(&Cooldowns::new(), candidates);
        upstream.play("a", script);
        let ask = |model| asks(&service, &upstream, prompt(model));

        assert_eq!(ask("a").await, ["a", "b"]);
        assert_eq!(ask("a").await, ["b"]);
        assert_eq!(ask("c").await, ["c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_or_empty_account_takes_all_its_models_along_and_no_other() {
    for script in [
        failure(401),
        failure(402),
        Script::error_code(429, "insufficient_quota"),
        Script::error_code(400, "insufficient_quota"),
    ] {
        let candidates = [
            of_account("a", "one"),
            of_account("b", "one"),
            of_account("c", "two"),
        ];
        let (service, upstream) = cooled(&Cooldowns::new(), candidates);
        upstream.play("a", script);
        let ask = |model| asks(&service, &upstream, prompt(model));

        assert_eq!(ask("a").await, ["a", "c"]);
        assert_eq!(ask("b").await, ["c"]);
        assert_eq!(ask("c").await, ["c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn accounts_are_told_apart_by_upstream_and_key_if_they_have_no_id() {
    let keyed = |name: &str, uri, key| at(name, uri).api_key(key).unwrap();
    let candidates = [
        keyed("a", "http://one.test/v1", "k1"),
        keyed("b", "http://one.test/v2", "k1"),
        keyed("c", "http://one.test/v1", "k2"),
        keyed("d", "http://two.test/v1", "k1"),
    ];
    let (service, upstream) = cooled(&Cooldowns::new(), candidates);
    upstream.play("a", failure(401));
    let ask = |model| asks(&service, &upstream, prompt(model));

    assert_eq!(ask("a").await, ["a", "c"]);

    assert_eq!(ask("b").await, ["c"]);
    assert_eq!(ask("c").await, ["c"]);
    assert_eq!(ask("d").await, ["d"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_region_takes_the_host_along() {
    let keyed = |name: &str, uri| at(name, uri).api_key(name).unwrap();
    let candidates = [
        keyed("a", "http://one.test/v1"),
        keyed("b", "http://one.test/v2"),
        keyed("c", "http://two.test/v1"),
    ];
    let (service, upstream) = cooled(&Cooldowns::new(), candidates);
    upstream.play(
        "a",
        Script::error_code(403, "unsupported_country_region_territory"),
    );
    let ask = |model| asks(&service, &upstream, prompt(model));

    assert_eq!(ask("a").await, ["a", "c"]);
    assert_eq!(ask("b").await, ["c"]);
}

/// covers: T63
#[tokio::test(start_paused = true)]
async fn what_befalls_one_callers_account_is_no_other_callers() {
    for (script, model) in [
        (failure(401), "a"),
        (failure(402), "a"),
        (failure(429), "b"),
        (Script::error_code(404, "model_not_found"), "b"),
    ] {
        let told = Arc::new(AtomicUsize::new(0));
        let cooldowns = Cooldowns::new().on_begin(counting(&told));
        let (service, upstream) = cooled(&cooldowns, ["a", "b"].map(Candidate::new));
        upstream.play("a", script);
        let ask = |caller| asks(&service, &upstream, from(caller, "a"));
        // Another model of the same account serves only if the account may.
        let (first, again) = match model {
            "a" => (vec!["a"], vec![]),
            _ => (vec!["a", "b"], vec!["b"]),
        };

        assert_eq!(ask("one").await, first);
        assert_eq!(ask("one").await, again);
        assert_eq!(ask("two").await, first);
        assert_eq!(ask("two").await, again);
        assert_eq!(
            told.load(Ordering::Relaxed),
            0,
            "the candidate serves others"
        );
    }
}

fn counting(told: &Arc<AtomicUsize>) -> impl Fn(&ActiveCooldown) + Send + Sync + 'static {
    let told = Arc::clone(told);
    move |_| {
        told.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_everybodys() {
    let told = Arc::new(AtomicUsize::new(0));
    let cooldowns = Cooldowns::new().on_begin(counting(&told));
    let (service, upstream) = cooled(&cooldowns, ["a", "b"].map(Candidate::new));
    upstream.play("a", Script::before_head().fail("reset"));
    let ask = |caller| asks(&service, &upstream, from(caller, "a"));

    assert_eq!(ask("one").await, ["a", "b"]);
    assert_eq!(ask("two").await, ["b"]);
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn where_callers_accounts_are_not_sent_there_is_one_account() {
    for script in [failure(401), failure(429)] {
        let candidates = [at("a", "http://one.test/v1"), at("b", "http://two.test/v1")];
        let (service, upstream) = cooled(&Cooldowns::new(), candidates);
        upstream.play("a", script);
        let ask = |caller| asks(&service, &upstream, from(caller, "a"));

        assert_eq!(ask("one").await, ["a", "b"]);
        assert_eq!(ask("two").await, ["b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn where_they_are_forwarded_each_is_its_own() {
    let candidates = [at("a", "http://one.test/v1"), at("b", "http://two.test/v1")];
    let forwarded = candidates.map(|it| it.forward_credentials(true));
    let (service, upstream) = cooled(&Cooldowns::new(), forwarded);
    upstream.play("a", failure(401));
    let ask = |caller| asks(&service, &upstream, from(caller, "a"));

    assert_eq!(ask("one").await, ["a", "b"]);
    assert_eq!(ask("one").await, ["b"]);
    assert_eq!(ask("two").await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn two_rate_limited_models_of_an_account_take_the_others_along() {
    let candidates = [
        of_account("a", "one"),
        of_account("b", "one"),
        of_account("c", "one"),
        of_account("d", "two"),
    ];
    let (service, upstream) = cooled(&unprobed(), candidates);
    let limited = || failure(429).header("retry-after", "100");
    upstream.play("a", limited());
    upstream.play("b", failure(500));
    let ask = |model| asks(&service, &upstream, prompt(model));
    // Other failures of another model say nothing of the account.
    assert_eq!(ask("a").await, ["a", "b", "c"]);
    advance(secs(31)).await;
    upstream.play("b", limited());

    assert_eq!(ask("b").await, ["b", "d"]);
    assert_eq!(ask("c").await, ["d"]);

    advance(secs(100)).await;
    upstream.play("a", healthy());
    assert_eq!(ask("c").await, ["c"]);
    assert_eq!(ask("a").await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_is_not_hidden_by_the_rate_limit_of_its_account() {
    let candidates = ["a", "b", "c"].map(|name| of_account(name, "one"));
    let (service, upstream) = cooled(&unprobed(), candidates);
    upstream.play("a", failure(429));
    upstream.play("b", failure(429).delayed(1));
    // The call at c is on its way when the account's window begins.
    upstream.play("c", failure(401).delayed(2));
    let ask = |model| asks(&service, &upstream, prompt(model));
    tokio::join!(ask("a"), ask("b"), ask("c"));
    advance(secs(60)).await;
    upstream.play("a", healthy());

    assert!(ask("a").await.is_empty(), "the key was refused");
}
