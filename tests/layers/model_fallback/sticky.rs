//! A session stays with the candidate that served it.
//!
//! covers: F12

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use tokio::time::advance;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{CandidateOrder, Cooldowns, ModelFallbackLayer, RunLayer, RunRegistry};

use super::{asks, from, models};
use crate::support::{
    Place, Script, Stack, StackService, Upstream, chat, failure, healthy, prompt, secs, with_header,
};

fn of_session(session: &str, model: &str) -> Request<Full<Bytes>> {
    of(session, from("one", model))
}

fn of(session: &str, request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    with_header(request, "x-session-id", session)
}

fn around(layer: ModelFallbackLayer) -> (StackService, Upstream) {
    let upstream = Upstream::script(healthy());
    let stack = Stack::default().run(&RunRegistry::new());
    let stack = stack.layer(Place::Fallback, layer);
    (stack.build(&upstream), upstream)
}

/// A layer of three whose session `s` has moved from the first to the second.
async fn moved() -> (StackService, Upstream) {
    let (service, upstream) = around(models(["a", "b", "c"]).sticky(true));
    upstream.play("a", failure(500));
    let asked = asks(&service, &upstream, of_session("s", "a")).await;
    assert_eq!(asked, ["a", "b"]);
    upstream.play("a", healthy());
    (service, upstream)
}

#[tokio::test(start_paused = true)]
async fn who_accepted_it_after_a_fallback_goes_first_from_then_on() {
    let (service, upstream) = moved().await;

    for _ in 0..3 {
        let asked = asks(&service, &upstream, of_session("s", "a")).await;
        assert_eq!(asked, ["b"]);
    }
    upstream.play("b", failure(500));
    let asked = asks(&service, &upstream, of_session("s", "a")).await;
    assert_eq!(asked, ["b", "a"], "then the one it names");
}

#[tokio::test(start_paused = true)]
async fn without_it_the_named_one_goes_first_each_time() {
    for layer in [
        models(["a", "b"]),
        models(["a", "b"]).sticky(true).sticky(false),
    ] {
        let (service, upstream) = around(layer);
        upstream.play("a", failure(500));
        for _ in 0..2 {
            let asked = asks(&service, &upstream, of_session("s", "a")).await;
            assert_eq!(asked, ["a", "b"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_session_or_none_is_not_affected() {
    let (service, upstream) = moved().await;
    upstream.play("a", failure(500));

    let asked = asks(&service, &upstream, of_session("t", "a")).await;
    assert_eq!(asked, ["a", "b"]);
    for _ in 0..2 {
        let asked = asks(&service, &upstream, from("one", "a")).await;
        assert_eq!(asked, ["a", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn another_owners_session_of_the_same_name_is_not_affected() {
    let (service, upstream) = moved().await;

    let theirs = asks(&service, &upstream, of("s", from("two", "a"))).await;
    let nobodys = asks(&service, &upstream, of("s", prompt("a"))).await;

    assert_eq!([theirs, nobodys], [["a"], ["a"]]);
}

#[tokio::test(start_paused = true)]
async fn another_model_by_name_is_what_is_wanted() {
    let (service, upstream) = moved().await;

    assert_eq!(asks(&service, &upstream, of_session("s", "c")).await, ["c"]);
    assert_eq!(asks(&service, &upstream, of_session("s", "b")).await, ["b"]);

    // Each stays as it was.
    assert_eq!(asks(&service, &upstream, of_session("s", "a")).await, ["b"]);
    assert_eq!(asks(&service, &upstream, of_session("s", "c")).await, ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_nobody_has_stays_too() {
    let (service, upstream) = around(models(["a", "b"]).sticky(true));
    upstream.play("a", failure(500));
    let ask = || asks(&service, &upstream, of_session("s", "any"));

    assert_eq!(ask().await, ["a", "b"]);
    assert_eq!(ask().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn when_it_fails_the_session_moves_and_stays_again() {
    let (service, upstream) = moved().await;
    upstream.play("a", failure(500));
    upstream.play("b", failure(500));

    let ask = || asks(&service, &upstream, of_session("s", "a"));
    assert_eq!(ask().await, ["b", "a", "c"]);
    upstream.play("a", healthy());
    upstream.play("b", healthy());

    assert_eq!(ask().await, ["c"]);
    assert_eq!(ask().await, ["c"]);
}

#[tokio::test(start_paused = true)]
async fn when_it_is_left_alone_the_session_moves_and_stays_again() {
    let layer = models(["a", "b"]).sticky(true).cooldowns(Cooldowns::new());
    let (service, upstream) = around(layer);
    let ask = |session| asks(&service, &upstream, of_session(session, "a"));
    assert_eq!(ask("s").await, ["a"]);
    // Another session finds out.
    upstream.play("a", failure(500));
    assert_eq!(ask("t").await, ["a", "b"]);

    assert_eq!(ask("s").await, ["b"]);

    upstream.play("a", healthy());
    advance(secs(30)).await;
    assert_eq!(ask("s").await, ["b"], "no way back and forth");
    assert_eq!(ask("u").await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_broke_off_was_accepted_all_the_same() {
    let (service, upstream) = around(models(["a", "b"]).sticky(true));
    upstream.play("a", failure(500));
    upstream.play("b", Script::sse().data(chat("b")).fail("reset"));
    let ask = || asks(&service, &upstream, of_session("s", "a"));

    assert_eq!(ask().await, ["a", "b"]);
    assert_eq!(ask().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn what_everybody_failed_at_stays_with_nobody() {
    let (service, upstream) = around(models(["a", "b"]).sticky(true));
    for model in ["a", "b"] {
        upstream.play(model, failure(500));
    }
    let ask = || asks(&service, &upstream, of_session("s", "a"));

    assert_eq!(ask().await, ["a", "b"]);
    assert_eq!(ask().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_leaves_it_out_goes_before_it() {
    let (service, upstream) = moved().await;
    let listed = |names: &[&str]| {
        let mut request = of_session("s", "a");
        let order = CandidateOrder::new(names.iter().copied());
        request.extensions_mut().insert(order);
        request
    };

    let with = asks(&service, &upstream, listed(&["c", "b"])).await;
    let without = asks(&service, &upstream, listed(&["c"])).await;
    let empty = asks(&service, &upstream, listed(&[])).await;

    assert_eq!([with, without, empty], [["b"], ["a"], ["a"]]);
}

#[tokio::test(start_paused = true)]
async fn clones_of_the_layer_know_the_same_sessions() {
    let layer = models(["a", "b"]).sticky(true);
    let stack = Stack::default().run(&RunRegistry::new());
    let upstream = Upstream::script(healthy());
    upstream.play("a", failure(500));
    let ask = async |layer| {
        let service = stack.clone().layer(Place::Fallback, layer).build(&upstream);
        asks(&service, &upstream, of_session("s", "a")).await
    };

    assert_eq!(ask(layer.clone()).await, ["a", "b"]);

    assert_eq!(ask(layer.clone()).await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_form_names_its_model_itself_and_is_no_part_of_it() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(RunRegistry::new()))
        .service(models(["a", "b"]).sticky(true).layer(upstream));
    // Neither names a model that could be read.
    let unnamed = of_session("s", "a").map(|_| Full::from("{}"));
    let answer = service.clone().oneshot(unnamed).await.unwrap();
    assert_eq!(answer.headers()["x-served-model"], "b");

    let mut form = of_session("s", "a").map(|_| Full::from("--b--\r\n"));
    let kind = HeaderValue::from_static("multipart/form-data; boundary=b");
    form.headers_mut().insert("content-type", kind);
    let answer = service.oneshot(form).await.unwrap();

    assert_eq!(answer.headers()["x-served-model"], "a");
}
