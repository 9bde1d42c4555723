//! Other operations than answers of a model.
//!
//! covers: F15

use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::time::advance;
use tower::{Layer, ServiceExt};
use tower_agent::{
    Candidate, CandidateDialect, Cooldowns, ModelFallbackLayer, TerminalResponseLayer,
    llm::failure::AllCandidatesCoolingDown,
};

use super::{asks, at, models, of_account};
use crate::support::{
    ERROR, LogCapture, ReadExt, Script, Stack, Upstream, failure, healthy, prompt, prompt_json,
    secs,
};

const OPERATIONS: [(&str, &str, &str); 3] = [
    (
        "embeddings",
        r#"{"input":["a","b"],"model":"a","dimensions":1.50}"#,
        r#"{"object":"list","data":[{"embedding":[0.1],"index":0}],"model":"x"}"#,
    ),
    (
        "images/generations",
        r#"{"model":"a","prompt":"a cat","n":1,"size":"1024x1024"}"#,
        r#"{"created":1,"data":[{"b64_json":"AAAA"}]}"#,
    ),
    (
        "images/variations",
        r#"{"model":"a","image":"data:"}"#,
        r#"{"created":1,"data":[{"url":"http://one.test/1.png"}]}"#,
    ),
];

fn asking(operation: &str, body: &'static str) -> Request<Full<Bytes>> {
    let mut request = prompt_json("a").map(|_| Full::from(body));
    *request.uri_mut() = format!("/v1/{operation}?tier=1").parse().unwrap();
    request
}

#[tokio::test(start_paused = true)]
async fn each_moves_on_with_the_same_bytes_but_for_the_model() {
    for (operation, body, served) in OPERATIONS {
        let upstream = Upstream::scripts([failure(500), Script::answer(200, served)]);
        let candidates = [Candidate::new("a"), at("bb", "http://two.test/api")];
        let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

        let answer = service.oneshot(asking(operation, body)).await.unwrap();

        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["x-served-model"], "bb");
        assert_eq!(answer.into_body().read().await.whole(), served);
        let [first, second] = &upstream.requests()[..] else {
            panic!("{operation}")
        };
        assert_eq!(first.body(), body);
        assert_eq!(
            second.body(),
            body.replace(r#""model":"a""#, r#""model":"bb""#)
        );
        assert_eq!(first.uri, *format!("/v1/{operation}?tier=1"));
        let elsewhere = format!("http://two.test/api/{operation}?tier=1");
        assert_eq!(second.uri, *elsewhere);
    }
}

#[tokio::test(start_paused = true)]
async fn each_leaves_alone_who_failed() {
    for (operation, body, served) in OPERATIONS {
        let upstream = Upstream::script(Script::answer(200, served));
        let layer = models(["a", "b"]).cooldowns(Cooldowns::new());
        let service = layer.layer(upstream.clone());
        upstream.play("a", failure(503));
        let ask = || asks(&service, &upstream, asking(operation, body));

        assert_eq!(ask().await, ["a", "b"]);
        assert_eq!(ask().await, ["b"]);
        advance(secs(30)).await;
        assert_eq!(ask().await, ["a", "b"]);
        // A model may offer one operation and not another.
        assert_eq!(asks(&service, &upstream, prompt("a")).await[0], "a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_a_filter_refused_goes_nowhere_and_cools_nothing() {
    let (operation, body, _) = OPERATIONS[1];
    let upstream = Upstream::script(Script::error_code(400, "content_policy_violation"));
    let cooldowns = Cooldowns::new();
    let layer = models(["a", "b"]).cooldowns(cooldowns.clone());
    let service = layer.layer(upstream.clone());

    let asked = asks(&service, &upstream, asking(operation, body)).await;

    assert_eq!(asked, ["a"]);
    assert!(cooldowns.is_empty());
}

#[tokio::test(start_paused = true)]
async fn they_are_in_openais_dialect() {
    for (operation, body, served) in OPERATIONS {
        let candidates = [
            Candidate::new("a").dialect(CandidateDialect::Anthropic),
            Candidate::new("b").dialect(CandidateDialect::OpenAi),
        ];
        let upstream = Upstream::script(Script::answer(200, served));
        let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

        let asked = asks(&service, &upstream, asking(operation, body)).await;

        assert_eq!(asked, ["b"]);
    }
}

/// A form without a model.
const FORM: &str = "--b\r\ncontent-disposition: form-data; name=\"prompt\"\r\n\r\na\r\n\
                    --b\r\ncontent-disposition: form-data; name=\"image\"; filename=\"i\"\r\n\
                    content-type: image/png\r\n\r\n\u{0}\u{1}\u{7f}\r\n--b--\r\n";

fn form() -> Request<Full<Bytes>> {
    Request::post("/v1/images/edits")
        .header("content-type", "multipart/form-data; boundary=b")
        .body(Full::from(FORM))
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_form_moves_on_with_the_same_bytes_but_for_the_model() {
    let upstream = Upstream::scripts([failure(500), Script::answer(200, OPERATIONS[2].2)]);
    let candidates = [Candidate::new("a"), at("bb", "http://two.test/api")];
    let layer = ModelFallbackLayer::new(candidates).json_only();
    let named = FORM.replace("prompt", "model");
    let request = form().map(|_| Full::from(named.clone()));

    let answer = layer.layer(upstream.clone()).oneshot(request).await;

    assert_eq!(answer.unwrap().headers()["x-served-model"], "bb");
    let requests = upstream.requests();
    assert_eq!(requests[0].body(), named);
    assert_eq!(requests[1].body(), named.replace("\r\na\r\n", "\r\nbb\r\n"));
    assert_eq!(requests[1].uri, "http://two.test/api/images/edits");
}

#[tokio::test(start_paused = true)]
async fn a_form_without_a_model_goes_to_the_first_as_it_is_and_to_nobody_else() {
    let failed = failure(503).header("x-request-id", "r");
    let failed = failed.header("retry-after", "30");
    let upstream = Upstream::scripts([failed, healthy()]);
    let candidates = [of_account("a", "one"), of_account("b", "two")];
    let layer = ModelFallbackLayer::new(candidates).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());

    let answer = service.clone().oneshot(form()).await.unwrap();

    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["x-request-id"], "r");
    assert_eq!(answer.headers()["x-served-model"], "a");
    assert_eq!(answer.into_body().read().await.whole(), ERROR);
    let [seen] = &upstream.requests()[..] else {
        panic!("one call")
    };
    assert_eq!(seen.body(), FORM);
    assert_eq!(
        seen.headers["content-type"],
        "multipart/form-data; boundary=b"
    );
    assert_eq!(
        seen.headers["content-length"],
        FORM.len().to_string().as_str()
    );

    // It is left alone now, and nobody takes its place.
    let error = service.clone().oneshot(form()).await.unwrap_err();
    let error = error.downcast::<AllCandidatesCoolingDown>().unwrap();
    assert_eq!(error.candidates.len(), 1);
    assert_eq!(error.soonest(), secs(30));
    assert_eq!(upstream.calls(), 1);

    advance(secs(30)).await;
    let answer = service.oneshot(form()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(upstream.requests()[1].body(), FORM);
}

#[tokio::test(start_paused = true)]
async fn a_form_whose_first_is_left_alone_for_another_reason_asks_nobody() {
    let upstream = Upstream::script(healthy());
    let layer = models(["a", "b"]).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    upstream.play("a", failure(401));
    asks(&service, &upstream, prompt("a")).await;

    let error = service.oneshot(form()).await.unwrap_err();

    assert!(error.is::<AllCandidatesCoolingDown>());
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_upstream_served_is_not_read_for_a_failure_that_it_quotes() {
    let (operation, body, _) = OPERATIONS[0];
    let served = json!({"data": [], "note": {"error": {"message": "overloaded_error"}}});
    let upstream = Upstream::script(Script::answer(200, served.to_string()));
    let cooldowns = Cooldowns::new();
    let layer = models(["a", "b"]).cooldowns(cooldowns.clone());

    let answer = layer
        .layer(upstream.clone())
        .oneshot(asking(operation, body));

    let told = answer.await.unwrap().into_body().read().await.whole();
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), served);
    assert_eq!(upstream.calls(), 1);
    assert!(cooldowns.is_empty());
}

/// To a path at which no operation is known.
fn unknown() -> Request<Full<Bytes>> {
    let mut request = prompt_json("a");
    *request.uri_mut() = Uri::from_static("/v1/threads");
    request
}

#[tokio::test(start_paused = true)]
async fn where_no_operation_is_known_only_the_callers_own_upstream_is_asked() {
    let [near, far] = [Candidate::new("a"), at("b", "http://b.test/v1")];
    for candidates in [[near.clone(), far.clone()], [far, near]] {
        let upstream = Upstream::script(failure(500));
        let stack = Stack::default().fallback(candidates).build(&upstream);

        let outcome = stack.ask(unknown()).await;

        assert_eq!(outcome.status, 500);
        assert_eq!(outcome.whole(), ERROR);
        assert_eq!(upstream.models(), ["a"]);
        assert_eq!(upstream.requests()[0].uri, "/v1/threads");
    }
}

#[tokio::test(start_paused = true)]
async fn where_no_operation_is_known_and_all_are_elsewhere_the_request_is_refused() {
    let upstream = Upstream::script(healthy());
    let service = ModelFallbackLayer::new([at("b", "http://b.test/v1")]).layer(upstream.clone());

    let heard = LogCapture::start();
    let service = TerminalResponseLayer::new().layer(service);

    let answer = service.oneshot(unknown()).await.unwrap();

    assert_eq!(answer.status(), 500);
    let body = answer.into_body().read().await.whole();
    assert!(
        body.contains("The server failed to process the request."),
        "{body}"
    );
    let [failed] = &heard.events("call failed")[..] else {
        panic!("one line")
    };
    assert_eq!(failed["level"], "WARN");
    assert_eq!(
        failed["error"],
        "no operation of a model is known at \"/v1/threads\": set \
         `ModelFallbackLayer::operation`, or add a candidate without a base URL"
    );
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_operation_of_another_path_can_be_set() {
    let anthropic = at("c", "http://c.test/v1").dialect(CandidateDialect::Anthropic);
    let layer = ModelFallbackLayer::new([anthropic, at("b", "http://b.test/v1")]);
    let upstream = Upstream::script(healthy());
    let service = layer
        .operation("/v1/chat/completions")
        .layer(upstream.clone());

    service.clone().oneshot(unknown()).await.unwrap();
    // A known path keeps its own operation.
    service.oneshot(prompt("b")).await.unwrap();

    let uris: Vec<_> = upstream
        .requests()
        .iter()
        .map(|it| it.uri.to_string())
        .collect();
    assert_eq!(uris, ["http://b.test/v1/chat/completions"; 2]);
}

#[test]
#[should_panic = "\"chat\" is not a known operation"]
fn an_unknown_operation_cannot_be_set() {
    drop(models(["a"]).operation("chat"));
}

/// A program whose callers send JSON only refuses what names no model, and asks nobody.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_no_json_is_refused_if_the_program_says_so() {
    for (kind, body, what) in [
        ("application/json", "", "empty"),
        ("multipart/form-data; boundary=b", "--b--", "a form"),
    ] {
        for refuses in [false, true] {
            let upstream = Upstream::script(healthy());
            let layer = models(["a", "b"]);
            let layer = if refuses { layer.json_only() } else { layer };
            let mut request = asking("audio/transcriptions", body);
            let kind = kind.parse().unwrap();
            request
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, kind);

            let answer = layer.layer(upstream.clone()).oneshot(request).await;

            assert_eq!(upstream.calls(), usize::from(!refuses), "{what}");
            assert_eq!(answer.is_err(), refuses, "{what}");
            if let Err(error) = answer {
                let told = format!("the request body is not JSON: it is {what}");
                assert!(error.to_string().contains(&told), "{error}");
            }
        }
    }
}
