//! Who is asked, and in which order.
//!
//! covers: F5

use http::{Method, Request, Uri};
use http_body_util::Full;
use tower::{Layer, ServiceExt};
use tower_agent::{
    Candidate, CandidateDialect, Limits, ModelFallbackLayer, Run, TerminalReason,
    error::InvalidRequest, llm::failure::FailureClass, run::Price,
};

use super::{at, models};
use crate::support::{
    ReadExt, STOP, Script, Stack, Upstream, attach, content_block, failure, healthy, healthy_text,
    prompt, prompt_json, secs, tries,
};

#[tokio::test(start_paused = true)]
async fn the_requested_model_is_first_and_the_others_follow_as_listed() {
    for (asked, order) in [
        ("a", ["a", "b", "c"]),
        ("b", ["b", "a", "c"]),
        ("c", ["c", "a", "b"]),
        ("unknown", ["a", "b", "c"]),
    ] {
        let upstream = Upstream::script(failure(500));
        let service = models(["a", "b", "c"]).layer(upstream.clone());

        let answer = service.oneshot(prompt(asked)).await.unwrap();

        assert_eq!(upstream.models(), order);
        let names: Vec<_> = tries(&answer)
            .into_iter()
            .filter_map(|(name, _)| name)
            .collect();
        assert_eq!(names, order);
    }
}

/// covers: F9
#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_listed_twice_is_asked_once() {
    let upstream = Upstream::script(failure(500));
    let service = models(["a", "b", "a", "b"]).layer(upstream.clone());

    service.oneshot(prompt("b")).await.unwrap();

    assert_eq!(upstream.models(), ["b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_asks_by_name_and_the_upstream_gets_the_model() {
    let candidates = [
        Candidate::new("gpt-1").name("large"),
        Candidate::new("gpt-2").name("small"),
    ];
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().fallback(candidates).build(&upstream);

    let outcome = stack.ask(prompt("small")).await;

    assert_eq!(upstream.models(), ["gpt-2", "gpt-1"]);
    assert_eq!(outcome.headers["x-served-model"], "gpt-1");
    assert_eq!(outcome.headers["x-served-candidate"], "large");
}

/// Two candidates may have one model, and a name may be one that no header can hold.
#[tokio::test(start_paused = true)]
async fn the_candidate_that_served_is_named_beside_its_model() {
    for (name, told) in [
        ("eu", Some("eu")),
        ("straße", Some("straße")),
        ("a\nb", None),
    ] {
        let candidates = [
            Candidate::new("m")
                .name("us")
                .base_url("http://us/v1")
                .unwrap(),
            Candidate::new("m")
                .name(name)
                .base_url("http://eu/v1")
                .unwrap(),
        ];
        let upstream = Upstream::scripts([failure(500), healthy()]);
        let stack = Stack::default().fallback(candidates).build(&upstream);

        let outcome = stack.ask(prompt("us")).await;

        assert_eq!(outcome.headers["x-served-model"], "m");
        let served = outcome.headers.get("x-served-candidate");
        assert_eq!(served.map(|it| it.as_bytes()), told.map(str::as_bytes));
    }
}

#[tokio::test(start_paused = true)]
async fn without_candidates_requests_pass_as_they_are() {
    for script in [healthy(), failure(500)] {
        let upstream = Upstream::script(script);
        let service = models([]).layer(upstream.clone());
        // No JSON: nobody has to read it.
        let request = prompt("m").map(|_| Full::from("not json"));

        let answer = service.oneshot(request).await.unwrap();

        assert!(!answer.headers().contains_key("x-served-model"));
        answer.into_body().read().await.whole();
        let seen = &upstream.requests()[0];
        assert_eq!(seen.body(), "not json");
        assert_eq!(seen.uri, "/v1/chat/completions");
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn candidates_at_places_of_their_own_are_asked_there() {
    let candidates = [
        at("a", "http://one.test/v1"),
        at("b", "http://two.test/api/"),
    ];
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());
    let mut request = prompt("a");
    let secret = http::HeaderValue::from_static("Bearer secret");
    request.headers_mut().insert("authorization", secret);

    service.oneshot(request).await.unwrap();

    let targets: Vec<_> = upstream
        .requests()
        .iter()
        .map(|seen| seen.uri.to_string())
        .collect();
    assert_eq!(
        targets,
        [
            "http://one.test/v1/chat/completions",
            "http://two.test/api/chat/completions"
        ]
    );
    assert_eq!(upstream.header("authorization"), [None, None]);
}

#[tokio::test(start_paused = true)]
async fn candidates_of_another_dialect_are_skipped() {
    let candidates = || {
        [
            Candidate::new("claude").dialect(CandidateDialect::Anthropic),
            Candidate::new("gpt").dialect(CandidateDialect::OpenAi),
            Candidate::new("local").dialect(CandidateDialect::Any),
        ]
    };
    for (path, asked, order) in [
        ("/v1/chat/completions", "unknown", ["gpt", "local"]),
        ("/v1/chat/completions", "claude", ["gpt", "local"]),
        ("/v1/responses", "local", ["local", "gpt"]),
        ("/v1/messages", "gpt", ["claude", "local"]),
        ("/v1/messages/count_tokens", "local", ["local", "claude"]),
    ] {
        let upstream = Upstream::script(failure(500));
        let service = ModelFallbackLayer::new(candidates()).layer(upstream.clone());
        let mut request = prompt_json(asked);
        *request.uri_mut() = Uri::from_static(path);

        service.oneshot(request).await.unwrap();

        assert_eq!(upstream.models(), order, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn if_nobody_speaks_the_dialect_the_error_names_both() {
    let upstream = Upstream::script(healthy());
    let candidates = [Candidate::new("claude").dialect(CandidateDialect::Anthropic)];
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("claude"));

    let error = service.oneshot(request).await.unwrap_err();

    let error = error.downcast::<InvalidRequest>().unwrap().to_string();
    assert!(
        error.contains("openai") && error.contains("anthropic"),
        "{error}"
    );
    assert!(error.contains("claude"), "{error}");
    assert_eq!(upstream.calls(), 0);
    let reason = TerminalReason::Failed(FailureClass::Caller);
    assert_eq!(call.terminal_reason(), Some(reason));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_no_json_reaches_nobody() {
    for body in [
        "not json",
        "[1]",
        "{\"model\":\"a\",\"model\":\"b\"}",
        "{\"model\":7}",
    ] {
        let upstream = Upstream::script(healthy());
        let service = models(["a", "b"]).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("a").map(|_| Full::from(body)));

        let error = service.oneshot(request).await.unwrap_err();

        assert!(error.is::<InvalidRequest>(), "{error:?}");
        assert_eq!(upstream.calls(), 0);
        let reason = TerminalReason::Failed(FailureClass::Caller);
        assert_eq!(call.terminal_reason(), Some(reason));
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: F15
#[tokio::test(start_paused = true)]
async fn a_form_goes_to_the_candidate_that_it_names_and_then_to_others() {
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nb\r\n--b--\r\n";
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let request = Request::post("/v1/images/edits")
        .header("content-type", "multipart/form-data; boundary=b")
        .body(Full::from(form))
        .unwrap();

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, 200);
    let sent: Vec<_> = upstream
        .requests()
        .iter()
        .map(|it| it.body().to_owned())
        .collect();
    assert_eq!(sent, [form, &form.replace("\r\nb\r\n", "\r\na\r\n")]);
}

#[tokio::test(start_paused = true)]
async fn embeddings_and_requests_without_a_model_fall_back_too() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let mut request = prompt_json("a");
    *request.uri_mut() = Uri::from_static("/v1/embeddings");
    stack.oneshot(request).await.unwrap();
    assert_eq!(upstream.models(), ["a", "b"]);

    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let request = Request::builder()
        .method(Method::GET)
        .uri("/v1/models")
        .body(Full::default())
        .unwrap();
    let outcome = stack.ask(request).await;
    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn hop_by_hop_headers_are_stripped_both_ways() {
    let script = healthy().header("connection", "x-hop").header("x-hop", "1");
    let upstream = Upstream::script(script.header("x-kept", "1"));
    let service = models(["a"]).layer(upstream.clone());
    let mut request = prompt("a");
    for (name, value) in [("connection", "x-mine"), ("x-mine", "1"), ("x-kept", "1")] {
        let value = http::HeaderValue::from_static(value);
        request.headers_mut().insert(name, value);
    }

    let answer = service.oneshot(request).await.unwrap();

    for headers in [&upstream.requests()[0].headers, answer.headers()] {
        assert!(!headers.contains_key("connection"));
        assert!(!headers.contains_key("x-hop") && !headers.contains_key("x-mine"));
        assert!(headers.contains_key("x-kept"));
    }
    assert_eq!(
        upstream.header("accept-encoding"),
        [Some("identity".into())]
    );
}

/// covers: G6
#[tokio::test(start_paused = true)]
async fn a_prompt_of_five_megabytes_falls_back_byte_for_byte() {
    let rest = ",\"prompt\":\"".to_owned() + &"0123456789abcdef".repeat(5 << 16) + "\"}";
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = models(["a", "bb"]).layer(upstream.clone());
    let body = "{\"model\":\"a\"".to_owned() + &rest;

    let request = prompt("a").map(|_| Full::from(body));
    service.oneshot(request).await.unwrap();

    let [first, second] = &upstream.requests()[..] else {
        panic!()
    };
    assert!(first.body().len() > 5_000_000);
    // Compared at once: a failure need not print them.
    assert!(first.body().strip_prefix("{\"model\":\"a\"") == Some(&*rest));
    assert!(second.body().strip_prefix("{\"model\":\"bb\"") == Some(&*rest));
}

/// covers: T54
#[tokio::test(start_paused = true)]
async fn one_model_at_two_upstreams_is_two_candidates() {
    for urls in [
        ["http://one.test/v1", "http://two.test/v1"],
        ["http://one.test/v1", "http://one.test/backup/v1"],
    ] {
        let upstream = Upstream::scripts([failure(500), healthy()]);
        let service = ModelFallbackLayer::new(urls.map(|url| at("m", url)));
        let service = service.layer(upstream.clone());

        let answer = service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(answer.status(), 200);
        let asked: Vec<_> = upstream
            .requests()
            .iter()
            .map(|it| it.uri.to_string())
            .collect();
        assert_eq!(asked, urls.map(|url| format!("{url}/chat/completions")));
    }
}

/// covers: T54
#[tokio::test(start_paused = true)]
async fn one_model_in_two_dialects_is_two_candidates() {
    let dialects = [CandidateDialect::OpenAi, CandidateDialect::Anthropic];
    let candidates = dialects.map(|dialect| Candidate::new("m").dialect(dialect));
    let upstream = Upstream::script(Script::sse().data(content_block("a")).data(STOP));
    let stack = Stack::default().fallback(candidates).build(&upstream);
    let mut request = prompt("m");
    *request.uri_mut() = Uri::from_static("/v1/messages");

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_twice_exactly_is_one_candidate() {
    for candidate in [Candidate::new("m"), at("m", "http://one.test/v1")] {
        let upstream = Upstream::script(failure(500));
        let twice = [candidate.clone(), candidate];
        let service = ModelFallbackLayer::new(twice).layer(upstream.clone());

        service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn candidates_that_differ_in_any_setting_are_two() {
    let one = || at("m", "http://one.test/v1").credential("id");
    let limits = Limits {
        ceiling: Some(secs(9)),
        ..Limits::default()
    };
    for other in [
        one().trusted(true),
        one().forward_credentials(true),
        one().context_window(9),
        one().api_key("k").unwrap(),
        one().limits(limits),
        one().price(Price::per_million(1.0, 2.0)),
    ] {
        let upstream = Upstream::script(failure(500));
        let service = ModelFallbackLayer::new([one(), other.clone()]).layer(upstream.clone());

        service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(upstream.calls(), 2, "{other:?}");
    }
}
