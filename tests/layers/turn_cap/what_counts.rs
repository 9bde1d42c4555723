//! What is a turn, and of whom.

use http::Request;
use tower::{Layer, ServiceBuilder};
use tower_agent::{
    Candidate, ModelFallbackLayer, RetryBudgetLayer, Run, TerminalReason, TurnCapLayer,
};

use super::{CAPPED, end_of, turn, upstream};
use crate::support::{Upstream, failure, healthy, no_delay, prompt, request};

fn asks(method: &str, path: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(path)
        .body(())
        .unwrap()
}

/// covers: D6
#[tokio::test(start_paused = true)]
async fn what_has_no_model_write_is_no_turn_and_what_is_not_known_is_one() {
    let upstream = upstream();
    let service = TurnCapLayer::new(100).layer(upstream);
    for (method, path, turns) in [
        ("POST", "/v1/chat/completions", 1),
        ("POST", "/v1/responses", 1),
        ("POST", "/v1/messages", 1),
        ("POST", "/v1/completions", 1),
        ("POST", "/v1beta/models/gemini:generateContent", 1),
        ("POST", "/v1/models", 1),
        ("GET", "/anything", 1),
        ("POST", "/v1/embeddings", 0),
        ("POST", "/v1/images/generations", 0),
        ("POST", "/v1/images/edits", 0),
        ("POST", "/v1/images/variations/", 0),
        ("POST", "/v1/messages/count_tokens", 0),
        ("GET", "/v1/models", 0),
        ("GET", "/v1/models/", 0),
        ("GET", "/v1/models/gpt", 0),
        ("POST", "/v1//embeddings/?for=/chat/completions", 0),
        // What a caller might write in place of a path that counts.
        ("POST", "/v1//chat/completions/?path=/embeddings", 1),
        ("POST", "/V1/Chat/Completions", 1),
        ("POST", "/v1/chat%2Fcompletions", 1),
        ("POST", "/v1/chat/completions%2Fembeddings", 1),
        ("POST", "/v1/chat/completions/embeddings", 1),
        ("POST", "/v1/responses/messages/count_tokens/", 1),
        ("POST", "/v1/chat/completions/images/edits", 1),
        ("POST", "/v1/embeddings/../chat/completions", 1),
        ("POST", "/v1/%65mbeddings", 1),
        ("GET", "/v1/chat/completions", 1),
        ("GET", "/v1/models/responses", 1),
        ("HEAD", "/models/messages/", 1),
    ] {
        let run = Run::open();
        turn(&service, run.attach(asks(method, path)))
            .await
            .unwrap();
        assert_eq!(run.turns(), turns, "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_turn_passes_as_often_as_it_likes_but_not_after_the_end() {
    let upstream = upstream();
    let service = TurnCapLayer::new(1).layer(upstream.clone());
    let run = Run::open();
    let embeddings = || run.attach(asks("POST", "/v1/embeddings"));
    for _ in 0..20 {
        turn(&service, embeddings()).await.unwrap();
    }
    turn(&service, run.attach(request())).await.unwrap();
    turn(&service, embeddings()).await.unwrap();
    turn(&service, run.attach(request())).await.unwrap_err();
    assert_eq!(upstream.calls(), 22);

    let retries = RetryBudgetLayer::new(no_delay()).layer(Upstream::script(healthy()));
    let late = run.attach(prompt("m"));
    let error = turn(&TurnCapLayer::new(1).layer(retries), late)
        .await
        .unwrap_err();
    assert_eq!(end_of(&error).reason, TerminalReason::TurnCap);
}

#[tokio::test(start_paused = true)]
async fn the_program_may_say_what_counts() {
    let upstream = upstream();
    let service = TurnCapLayer::new(2)
        .counts(|parts| parts.headers.contains_key("x-turn"))
        .layer(upstream);
    let run = Run::open();
    for _ in 0..5 {
        turn(&service, run.attach(request())).await.unwrap();
    }
    assert_eq!(run.turns(), 0);
    for admitted in [true, true, false] {
        let mut request = run.attach(asks("POST", "/v1/embeddings"));
        request.headers_mut().insert("x-turn", "1".parse().unwrap());
        assert_eq!(turn(&service, request).await.is_ok(), admitted);
    }
}

#[tokio::test(start_paused = true)]
async fn some_agents_may_have_more_or_fewer_turns() {
    let upstream = upstream();
    let by_key = |parts: &http::request::Parts| match parts.headers.get("x-api-key")?.as_bytes() {
        b"coder" => Some(4),
        b"look-up" => Some(1),
        b"zero" => Some(0),
        _ => None,
    };
    for (own, key, cap) in [
        (Some(2), "coder", Some(4)),
        (Some(2), "look-up", Some(1)),
        (Some(2), "zero", Some(2)),
        (Some(2), "other", Some(2)),
        (None, "coder", Some(4)),
        (None, "other", None),
    ] {
        let layer = TurnCapLayer::optional(own).per_agent(by_key);
        let service = layer.layer(upstream.clone());
        let run = Run::open();
        let mut admitted = 0;
        for _ in 0..10 {
            let mut request = run.attach(request());
            request
                .headers_mut()
                .insert("x-api-key", key.parse().unwrap());
            admitted += u32::from(turn(&service, request).await.is_ok());
        }
        assert_eq!(admitted, cap.unwrap_or(10), "{key}");
        let at = run.terminated().and_then(|end| end.at_turn());
        assert_eq!(at, cap, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_and_fallbacks_are_no_turns_wherever_the_layer_stands() {
    let scripts = || Upstream::scripts([failure(500), failure(500), failure(500), healthy()]);
    let fallback = || ModelFallbackLayer::new(["a", "b"].map(Candidate::new)).budget(no_delay());
    let outer = scripts();
    let outermost = ServiceBuilder::new()
        .layer(TurnCapLayer::new(2))
        .layer(fallback())
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(outer.clone());
    let inner = scripts();
    let innermost = ServiceBuilder::new()
        .layer(fallback())
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(TurnCapLayer::new(2))
        .service(inner.clone());
    let run = [Run::open(), Run::open()];
    for number in 1..=2 {
        turn(&outermost, run[0].attach(prompt("a"))).await.unwrap();
        turn(&innermost, run[1].attach(prompt("a"))).await.unwrap();
        assert_eq!((run[0].turns(), run[1].turns()), (number, number));
    }
    assert_eq!(
        (outer.calls(), inner.calls()),
        (5, 5),
        "four tries, then one"
    );

    turn(&outermost, run[0].attach(prompt("a")))
        .await
        .unwrap_err();
    let error = turn(&innermost, run[1].attach(prompt("a")))
        .await
        .unwrap_err();

    assert_eq!(end_of(&error).at_turn(), Some(2), "nobody tries that again");
    assert_eq!((outer.calls(), inner.calls()), (5, 5));
    assert_eq!(run.map(|run| run.terminal_reason()), [CAPPED, CAPPED]);
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_has_turns_of_its_own() {
    let upstream = upstream();
    let service = TurnCapLayer::new(1).layer(upstream);
    let run = Run::open();
    let child = run.child();
    turn(&service, child.attach(request())).await.unwrap();
    turn(&service, child.attach(request())).await.unwrap_err();
    assert_eq!(
        (child.terminal_reason(), run.terminal_reason()),
        (CAPPED, None)
    );
    assert_eq!((child.turns(), run.turns()), (1, 0));
    turn(&service, run.attach(request())).await.unwrap();
}

/// The layer refuses nothing, also if it opened the run itself or stands outside of a cap.
#[tokio::test(start_paused = true)]
async fn a_layer_without_a_cap_counts_turns_only_if_it_is_told_to() {
    let upstream = upstream();
    let silent = TurnCapLayer::optional(None);
    for (layer, turns) in [(silent.clone(), 0), (silent.clone().always_count(), 3)] {
        let service = layer.layer(upstream.clone());
        let run = Run::open();
        for path in [
            "/v1/messages",
            "/v1/embeddings",
            "/v1/responses",
            "/anything",
        ] {
            let request = run.attach(asks("POST", path));
            turn(&service, request).await.unwrap();
        }
        assert_eq!((run.turns(), run.snapshot().turns), (turns, turns));
        turn(&service, asks("POST", "/v1/messages")).await.unwrap();
    }

    let per_agent = silent.always_count().per_agent(|_| None);
    let inside = TurnCapLayer::new(2).layer(upstream.clone());
    let service = per_agent.counts(|_| true).layer(inside);
    let run = Run::open();
    for _ in 0..2 {
        turn(&service, run.attach(request())).await.unwrap();
    }
    let error = turn(&service, run.attach(request())).await.unwrap_err();
    assert_eq!((end_of(&error).at_turn(), run.turns()), (Some(2), 2));
    assert_eq!(run.terminal_reason(), CAPPED);
    turn(&service, run.attach(request())).await.unwrap_err();
    assert_eq!(run.turns(), 2);
}
