//! covers: B2

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, HardCeilingLayer, InvalidRunId, Run, RunId, StepTimeoutLayer, TerminalReason,
    TerminalResponseLayer,
    error::InvalidRequest,
    llm::{dialect::Dialect, sse::Splitter},
};

use crate::{
    reasons::all,
    support::{
        DONE, FINISH, Outcome, PING, ReadExt, STOP, Script, Stack, USAGE, Upstream, UpstreamBody,
        chat, content_block, later, messages, plain, prompt, request, request_of, secs,
    },
};

const fn layer() -> TerminalResponseLayer {
    TerminalResponseLayer::new()
}

fn responses() -> Request<()> {
    Request::post("/v1/responses").body(()).unwrap()
}

async fn body_of<B>(answer: Response<B>) -> Value
where
    B: Body<Data = bytes::Bytes> + Unpin + Send,
    B::Error: Into<BoxError> + Send,
{
    serde_json::from_str(&answer.into_body().read().await.whole()).unwrap()
}

/// Further bytes would be an answer to the caller's next request.
/// covers: T70
#[tokio::test(start_paused = true)]
async fn a_length_that_is_not_the_bodys_is_removed() {
    let answered = async |script: Script, head: bool| {
        let upstream = Upstream::script(script);
        let mut request = request();
        if head {
            *request.method_mut() = Method::HEAD;
        }
        layer().layer(upstream).oneshot(request).await.unwrap()
    };
    let length = async |script: Script, head| {
        let answer = answered(script, head).await;
        let length = answer.headers().get("content-length").cloned();
        length.map(|length| length.to_str().unwrap().to_owned())
    };
    let said = |length| Script::json().header("content-length", length).data("{}");
    assert_eq!(length(said("2").size(2), false).await.unwrap(), "2");
    for wrong in [
        "0",
        "1",
        "3",
        "",
        "+2",
        "2,2",
        "2, 2",
        "0x2",
        "two",
        "99999999999999999999",
    ] {
        assert_eq!(length(said(wrong).size(2), false).await, None, "{wrong:?}");
        // How long this one is nobody knows.
        assert_eq!(length(said(wrong), false).await, None, "{wrong:?}");
    }
    assert_eq!(length(said("2"), false).await, None);
    assert_eq!(
        length(said("2").size(2).status(500), false).await.unwrap(),
        "2"
    );
    assert_eq!(length(said("1").size(2).status(500), false).await, None);

    // Without a body they say how long it would be.
    for (head, status) in [(true, 200), (false, 304), (true, 404)] {
        for (length_said, kept) in [("99", true), ("+2", false), ("2, 2", false)] {
            let script = Script::json().header("content-length", length_said);
            let kept_length = length(script.status(status).size(0), head).await;
            assert_eq!(kept_length.is_some(), kept, "{status}, {length_said:?}");
        }
    }
    let none = Script::json().header("content-length", "9").status(204);
    assert_eq!(length(none.size(0), false).await, None);

    let upstream = Upstream::script(said("2").size(2));
    let service = ServiceBuilder::new()
        .layer(layer())
        .map_response(|mut answer: Response<UpstreamBody>| {
            let twice = "2".parse().unwrap();
            answer.headers_mut().append("content-length", twice);
            answer
        })
        .service(upstream);
    let answer = service.oneshot(request()).await.unwrap();
    assert!(!answer.headers().contains_key("content-length"));
}

/// It is of the upstream's connection, and overrides the length beside it.
#[tokio::test(start_paused = true)]
async fn the_framing_of_another_connection_is_removed() {
    for coding in ["chunked", "gzip, chunked", "identity"] {
        let script = Script::json().header("transfer-encoding", coding);
        let script = script.header("content-length", "2").size(2).data("{}");
        let upstream = Upstream::script(script);

        let stack = Stack::default().terminal().build(&upstream);
        let outcome = stack.ask(request()).await;

        assert!(!outcome.headers.contains_key("transfer-encoding"));
        assert!(!outcome.headers.contains_key("content-length"));
        assert_eq!(outcome.whole(), "{}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_reason_before_the_head_is_its_status_shape_and_headers() {
    for (reason, name, status, _) in all() {
        for (mut request, anthropic) in
            [(request(), false), (messages(), true), (responses(), false)]
        {
            let run = Run::open();
            run.end(reason.clone());
            request.extensions_mut().insert(run.clone());
            let upstream = Upstream::script(Script::sse().data(DONE));
            let stack = Stack::default().terminal().step(5).build(&upstream);

            let answer = stack.oneshot(request).await.unwrap();

            assert_eq!(upstream.calls(), 0);
            assert_eq!(answer.status().as_u16(), status, "{name}");
            let headers = answer.headers().clone();
            assert_eq!(headers["content-type"], "application/json");
            assert_eq!(headers["x-run-id"], run.id().to_string().as_str());
            if name == "upstream_failed" {
                assert!(!headers.contains_key("x-terminal-reason"));
                assert!(!headers.contains_key("x-should-retry"));
            } else {
                assert_eq!(headers["x-terminal-reason"], name);
                let retry = if name == "shutdown" { "true" } else { "false" };
                assert_eq!(headers["x-should-retry"], retry);
            }
            assert_eq!(
                headers.get("retry-after").map(|v| v.to_str().unwrap()),
                (name == "shutdown").then_some("1")
            );
            assert_eq!(answer.extensions().get(), Some(&reason));
            let message = run.terminated().unwrap().message();
            let expected = if anthropic {
                json!({"type": "error", "error": {"type": name, "message": message}})
            } else {
                json!({"error": {"message": message, "type": name, "code": name, "param": null}})
            };
            assert_eq!(body_of(answer).await, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_anthropic_caller_is_known_by_its_header_or_by_the_programs_word() {
    let mut by_header = plain();
    by_header
        .headers_mut()
        .insert("anthropic-version", "2023-06-01".parse().unwrap());
    let mut by_word = plain();
    by_word.extensions_mut().insert(Dialect::Anthropic);
    for request in [by_header, by_word] {
        let upstream = Upstream::script(Script::before_head().fail("refused"));
        let stack = Stack::default().terminal().build(&upstream);
        let answer = stack.oneshot(request).await.unwrap();
        assert_eq!(body_of(answer).await["type"], "error");
    }
}

fn frame(name: &str, message: &str, run: Option<&str>, sequence: u64) -> String {
    let message = serde_json::to_string(message).unwrap();
    let run = run.map_or_else(|| "null".to_owned(), |run| format!("\"{run}\""));
    format!(
        "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{name}\",\"code\":\"{name}\",\
         \"message\":{message},\"param\":null,\"run_id\":{run}}},\"code\":\"{name}\",\
         \"message\":{message},\"param\":null,\"sequence_number\":{sequence}}}\n\n"
    )
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_ends_with_the_frame_of_the_wire_in_each_dialect() {
    let created = "data: {\"type\":\"response.created\",\"sequence_number\":3,\"response\":{\"id\":\"resp_1\"}}\n\n";
    let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":4,\"delta\":\"a\"}\n\n";
    let cases = [
        (request(), chat("a")),
        (messages(), content_block("a")),
        (responses(), format!("{created}{delta}")),
    ];
    for (request, token) in cases {
        let upstream = Upstream::script(Script::sse().data(&token).never());
        let stack = Stack::default().terminal().step(9).build(&upstream);

        let answer = stack.oneshot(request.clone()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let mut body = answer.into_body();
        let mut frames = Vec::new();
        while let Some(frame) = body.next().await {
            frames.push(frame.unwrap());
        }

        let run = upstream.run();
        let message = run.terminated().unwrap().message();
        let id = run.id().to_string();
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0], token);
        if request.uri().path().ends_with("responses") {
            let (failed, error) = frames[1].split_once("\n\n").unwrap();
            let failed: Value = serde_json::from_str(
                failed
                    .strip_prefix("event: response.failed\ndata: ")
                    .unwrap(),
            )
            .unwrap();
            assert_eq!(failed["sequence_number"], 5);
            assert_eq!(failed["response"]["id"], "resp_1");
            assert_eq!(
                failed["response"]["error"],
                json!({"code": "step_timeout", "message": message})
            );
            assert_eq!(error, frame("step_timeout", &message, Some(&id), 6));
        } else {
            assert_eq!(frames[1], frame("step_timeout", &message, Some(&id), 0));
        }
        assert!(body.is_end_stream());
    }
}

/// covers: T67
#[tokio::test(start_paused = true)]
async fn half_an_event_is_held_back_and_dropped_at_the_end_wherever_it_was_cut() {
    let half = chat("h\u{e9}");
    for at in 1..half.len() {
        let script = Script::sse()
            .data(chat("a"))
            .data(&half.as_bytes()[..at])
            .never();
        let upstream = Upstream::script(script);
        let stack = Stack::default().terminal().step(9).build(&upstream);

        let outcome = stack.ask(request()).await;
        let text = outcome.whole();

        let rest = text.strip_prefix(&chat("a")).unwrap();
        assert!(rest.starts_with("event: error\n"), "cut at {at}: {rest}");
        assert_eq!(rest.matches("\n\n").count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_split_anywhere_arrives_whole_and_in_order() {
    let all = chat("h\u{e9}") + PING + &chat("b") + DONE;
    for at in 1..all.len() {
        for judged in [false, true] {
            let (head, tail) = all.as_bytes().split_at(at);
            let upstream = Upstream::script(Script::sse().data(head).wait(1.0).data(tail));
            let inner = StepTimeoutLayer::optional(judged.then_some(secs(9))).layer(upstream);

            let answer = layer().layer(inner).oneshot(request()).await.unwrap();
            let text = answer.into_body().read().await.whole();

            assert_eq!(text, all);
        }
    }
}

/// The offsets of the layer that classifies the events do not fit then.
/// covers: T67
#[tokio::test(start_paused = true)]
async fn events_that_a_layer_between_rewrites_arrive_whole() {
    let half = &chat("b")[..20];
    let script = Script::sse()
        .data(chat("a"))
        .data(chat("a") + half)
        .fail("reset");
    let service = ServiceBuilder::new()
        .layer(layer())
        .map_response(|answer: Response<_>| {
            answer.map(|body| {
                BodyExt::map_frame(body, |frame: Frame<Bytes>| {
                    frame.map_data(|data| {
                        let text = String::from_utf8(data.to_vec()).unwrap();
                        Bytes::from(text.replace("\"a\"", "\"aaaa\""))
                    })
                })
            })
        })
        .layer(StepTimeoutLayer::new(secs(5)))
        .service(Upstream::script(script));

    let outcome = Outcome::of(service.oneshot(request())).await;
    let text = outcome.whole();

    let rest = text.strip_prefix(&chat("aaaa").repeat(2)).unwrap();
    assert!(rest.starts_with("event: error\n"), "{rest}");
}

#[tokio::test(start_paused = true)]
async fn an_event_longer_than_what_is_held_goes_out_torn_and_is_closed_before_the_error() {
    let long = "x".repeat(1024 * 1024 + 10);
    let script = Script::sse()
        .data("data: ")
        .data(&long)
        .data("more")
        .wait(1.0)
        .fail("reset");
    let upstream = Upstream::script(script);

    let stack = Stack::default().terminal().build(&upstream);
    let outcome = stack.ask(request()).await;
    let text = outcome.whole();

    let rest = text.strip_prefix(&format!("data: {long}more")).unwrap();
    assert!(
        rest.starts_with("\n\nevent: error\ndata: "),
        "{}",
        &rest[..40]
    );
}

#[tokio::test(start_paused = true)]
async fn a_long_event_that_ends_is_whole_again() {
    let long = format!("data: {}\n\n", "x".repeat(3 * 1024 * 1024));
    let (one, two) = long.split_at(2 * 1024 * 1024);
    let upstream = Upstream::script(Script::sse().data(one).data(two).data(chat("a")).data(DONE));

    let stack = Stack::default().terminal().build(&upstream);
    let outcome = stack.ask(request()).await;
    let text = outcome.whole();

    assert!(text == long + &chat("a") + DONE);
}

#[tokio::test(start_paused = true)]
async fn a_long_last_event_may_lack_its_blank_line() {
    let text = "x".repeat(2 * 1024 * 1024);
    let long = format!(
        r#"data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":"stop"}}]}}"#
    );
    let script = Script::sse()
        .data(&long[..1_500_000])
        .data(&long[1_500_000..]);
    let stack = Stack::default().terminal().build(&Upstream::script(script));

    let outcome = stack.ask(prompt("a")).await;

    let got = outcome.whole();
    let end = got.strip_prefix(&*long).unwrap();
    assert_eq!(end, format!("\n\n{DONE}"));
}

/// As what holds events back does until it knows whether to hand them on.
/// covers: T88
#[tokio::test(start_paused = true)]
async fn a_response_that_was_held_back_does_not_fail() {
    let created = "data: {\"type\":\"response.created\",\"sequence_number\":3,\"response\":{\"id\":\"resp_1\"}}\n\n";
    let upstream = Upstream::script(Script::sse().data(created).fail("reset"));
    let service = ServiceBuilder::new()
        .layer(layer())
        .map_response(|answer: Response<_>| {
            answer.map(|body| {
                BodyExt::map_frame(body, |frame| frame.map_data(|_| bytes::Bytes::new()))
            })
        })
        .layer(StepTimeoutLayer::new(secs(5)))
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(responses())).await;
    let text = outcome.whole();

    assert!(text.starts_with("event: error\n"), "{text}");
}

/// The accumulating streams of OpenAI's SDKs raise over an id that changes, and not the reason.
/// covers: T88
#[tokio::test(start_paused = true)]
async fn a_response_fails_by_the_name_that_the_caller_knows_or_not_at_all() {
    let created = "data: {\"type\":\"response.created\",\"sequence_number\":3,\"response\":{\"id\":\"resp_1\"}}\n\n";
    let delta =
        "data: {\"type\":\"response.output_text.delta\",\"sequence_number\":4,\"delta\":\"a\"}\n\n";
    for (script, sent, sequences) in [
        (Script::sse().data(delta), delta, vec![5]),
        (Script::sse().data(created), created, vec![4, 5]),
        (
            Script::sse().data(&created[..created.len() - 1]),
            "",
            vec![0],
        ),
    ] {
        for judged in [false, true] {
            let upstream = Upstream::script(script.clone().fail("reset"));
            let service = ServiceBuilder::new()
                .layer(layer())
                .layer(StepTimeoutLayer::optional(judged.then_some(secs(5))))
                .service(upstream);

            let outcome = Outcome::of(service.oneshot(responses())).await;
            let text = outcome.whole();

            let told = text.strip_prefix(sent).unwrap();
            let events: Vec<Value> = told
                .split_terminator("\n\n")
                .map(|event| serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap())
                .collect();
            let numbers: Vec<_> = events
                .iter()
                .map(|it| it["sequence_number"].clone())
                .collect();
            assert_eq!(numbers, sequences, "{told}");
            assert_eq!(events.last().unwrap()["type"], "error");
            if let [failed, _] = &events[..] {
                assert_eq!(failed["type"], "response.failed");
                assert_eq!(failed["response"]["id"], "resp_1");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstreams_own_error_event_passes_unchanged_and_is_the_only_one() {
    let errors = [
        (
            request(),
            "data: {\"error\":{\"message\":\"busy\",\"type\":\"overloaded_error\"}}\n\n",
        ),
        (
            messages(),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n",
        ),
        (
            responses(),
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"error\":{\"code\":\"server_error\",\"message\":\"x\"}}}\n\n",
        ),
    ];
    for (request, error) in errors {
        for script in [
            Script::sse().data(error),
            Script::sse().data(error).fail("reset"),
            Script::sse().data(error).never(),
        ] {
            for judged in [false, true] {
                let upstream = Upstream::script(script.clone());
                let inner = HardCeilingLayer::new(secs(9))
                    .layer(StepTimeoutLayer::optional(judged.then_some(secs(5))).layer(upstream));

                let text = layer()
                    .layer(inner)
                    .oneshot(request.clone())
                    .await
                    .unwrap()
                    .into_body()
                    .read()
                    .await
                    .whole();

                assert_eq!(text, error);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_chat_stream_is_given_its_done() {
    for script in [
        Script::sse().data(chat("a")).data(FINISH),
        Script::sse().data(chat("a")).data(FINISH).data(USAGE),
    ] {
        for judged in [false, true] {
            let upstream = Upstream::script(script.clone());
            let inner = StepTimeoutLayer::optional(judged.then_some(secs(5))).layer(upstream);

            let text = layer()
                .layer(inner)
                .oneshot(request())
                .await
                .unwrap()
                .into_body()
                .read()
                .await
                .whole();

            assert!(text.ends_with(&format!("\n\n{DONE}")));
            assert_eq!(text.matches("[DONE]").count(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn done_is_supplied_once_and_before_the_trailers() {
    for judged in [false, true] {
        let upstream = Upstream::script(Script::sse().data(chat("a")).data(FINISH).trailers());
        let inner = StepTimeoutLayer::optional(judged.then_some(secs(5))).layer(upstream);
        let mut body = layer()
            .layer(inner)
            .oneshot(request())
            .await
            .unwrap()
            .into_body();
        let mut text = String::new();
        let mut trailers = 0;

        while let Some(frame) = body.frame().await {
            match frame.unwrap().into_data() {
                Ok(data) => {
                    assert_eq!(trailers, 0, "nothing follows trailers");
                    text += std::str::from_utf8(&data).unwrap();
                }
                Err(_) => trailers += 1,
            }
        }

        assert_eq!(text, chat("a") + FINISH + DONE);
        assert_eq!(trailers, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_with_trailers_has_one_error_event() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).trailers());

    let stack = Stack::default().terminal().build(&upstream);
    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.text.matches("event: error").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn half_an_event_after_the_finish_is_dropped_before_done() {
    for judged in [false, true] {
        let upstream = Upstream::script(
            Script::sse()
                .data(chat("a"))
                .data(FINISH)
                .data("data: {\"usa"),
        );
        let inner = StepTimeoutLayer::optional(judged.then_some(secs(5))).layer(upstream);

        let text = layer()
            .layer(inner)
            .oneshot(request())
            .await
            .unwrap()
            .into_body()
            .read()
            .await
            .whole();

        assert_eq!(text, chat("a") + FINISH + DONE);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_loses_its_length_and_may_always_have_one_more_event() {
    let text = chat("a") + DONE;
    let script = Script::sse()
        .size(text.len() as u64)
        .header("content-length", "999")
        .knows_its_end()
        .data(&text);
    let upstream = Upstream::script(script);

    let stack = Stack::default().terminal().build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();

    assert!(!answer.headers().contains_key("content-length"));
    assert_eq!(answer.headers()["cache-control"], "no-cache");
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    let mut body = answer.into_body();
    assert_eq!(body.size_hint().exact(), None);
    assert!(!body.is_end_stream());
    assert_eq!(body.token().await, text);
    assert!(body.next().await.is_none());
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn other_answers_pass_unchanged() {
    let script = Script::json()
        .size(2)
        .header("content-length", "2")
        .knows_its_end()
        .data("{}");
    let upstream = Upstream::script(script);

    let stack = Stack::default().terminal().build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();

    assert_eq!(answer.headers()["content-length"], "2");
    assert!(!answer.headers().contains_key("cache-control"));
    let mut body = answer.into_body();
    assert_eq!(body.size_hint().exact(), Some(2));
    body.token().await;
    assert!(body.is_end_stream());

    let upstream = Upstream::script(Script::json().data("{}").trailers());
    let stack = Stack::default().terminal().build(&upstream);
    let outcome = stack.ask(request()).await;
    assert_eq!(outcome.status, 200);
    assert!(outcome.trailers.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_compressed_event_stream_and_a_failed_one_are_no_event_streams() {
    let scripts = [
        Script::sse()
            .header("content-encoding", "gzip")
            .size(3)
            .data("abc"),
        Script::sse().status(429).size(3).data("abc"),
    ];
    for script in scripts {
        let upstream = Upstream::script(script);
        let stack = Stack::default().terminal().build(&upstream);
        let answer = stack.oneshot(request()).await.unwrap();
        assert_eq!(answer.body().size_hint().exact(), Some(3));
        assert_eq!(answer.into_body().read().await.whole(), "abc");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_no_event_stream_and_is_cut_ends_with_an_error() {
    let upstream = Upstream::script(Script::json().data("{").never());
    let stack = Stack::default().terminal().ceiling(9).build(&upstream);

    let outcome = stack.ask(request()).await;

    assert_eq!(outcome.text, "{");
    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
}

/// covers: T81
#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_is_an_answer_at_the_next_call_and_only_there() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let upstream = upstream.readiness([Some("full".into())]);
    let mut service = layer().layer(upstream.clone());

    let ready = ServiceExt::<Request<()>>::ready(&mut service);
    let answer = ready.await.unwrap().call(request()).await.unwrap();

    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(!answer.headers().contains_key("x-should-retry"));
    assert!(!answer.headers().contains_key("x-terminal-reason"));
    assert_eq!(upstream.calls(), 0);
    assert_eq!(body_of(answer).await["error"]["code"], "server_error");
    assert_eq!(
        service.call(request()).await.unwrap().status(),
        StatusCode::OK
    );
}

async fn too_long() -> BoxError {
    let body = Limited::new(
        http_body_util::Full::new(bytes::Bytes::from_static(b"long")),
        1,
    );
    body.collect().await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn errors_that_are_no_end_have_their_status_and_neither_header() {
    let long = too_long().await;
    let bad: InvalidRunId = "a b".parse::<RunId>().unwrap_err();
    let errors: Vec<(BoxError, u16, &str)> = vec![
        (
            InvalidRequest::new("two models").into(),
            400,
            "invalid_request_error",
        ),
        (bad.into(), 400, "invalid_request_error"),
        (long, 413, "request_too_large"),
        (
            std::io::Error::other("reset").into(),
            502,
            "upstream_failed",
        ),
        (
            tower_agent::llm::failure::TransportError::new("dns").into(),
            502,
            "upstream_failed",
        ),
        ("our bug, at db.internal".into(), 500, "server_error"),
    ];
    for (error, status, code) in errors {
        let mut error = Some(error);
        let service = tower::service_fn(move |_: Request<()>| {
            let error = error.take().unwrap();
            async move { Err::<Response<crate::support::UpstreamBody>, _>(error) }
        });

        let answer = layer().layer(service).oneshot(request()).await.unwrap();

        assert_eq!(answer.status().as_u16(), status);
        assert!(!answer.headers().contains_key("x-should-retry"));
        assert!(!answer.headers().contains_key("x-terminal-reason"));
        let body = body_of(answer).await;
        assert_eq!(body["error"]["code"], code);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            !message.contains("db.internal") && !message.contains("dns"),
            "{message}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_without_its_terminator_gets_the_error_frame_without_inner_layers() {
    for script in [
        Script::sse().data(chat("a")),
        Script::sse().data(chat("a")).knows_its_end(),
    ] {
        let upstream = Upstream::script(script);

        let stack = Stack::default().terminal().build(&upstream);
        let outcome = stack.ask(request()).await;
        let text = outcome.whole();

        let error = text.strip_prefix(&chat("a")).unwrap();
        assert!(
            error.starts_with("event: error\n") && error.contains("\"code\":\"upstream_failed\""),
            "{error}"
        );
    }
    let whole = Upstream::script(Script::sse().data(content_block("a")).data(STOP));
    let stack = Stack::default().terminal().build(&whole);
    let outcome = stack.ask(messages()).await;
    let text = outcome.whole();
    assert_eq!(text, content_block("a") + STOP);
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_terminator_is_not_told() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE).fail("reset"));

    let stack = Stack::default().terminal().build(&upstream);
    let outcome = stack.ask(request()).await;
    let text = outcome.whole();

    assert_eq!(text, chat("a") + DONE);
}

#[tokio::test(start_paused = true)]
async fn statuses_can_be_mapped() {
    let run = Run::open();
    run.end(TerminalReason::StepTimeout);
    let mapped = layer()
        .status(|reason| match reason {
            TerminalReason::StepTimeout => StatusCode::UNPROCESSABLE_ENTITY,
            other => other.status(),
        })
        .error_status(|error| {
            error
                .to_string()
                .contains("busy")
                .then_some(StatusCode::TOO_MANY_REQUESTS)
        });
    let upstream = Upstream::script(Script::sse());
    let ended = mapped
        .layer(StepTimeoutLayer::new(secs(5)).layer(upstream))
        .oneshot(request_of(&run))
        .await
        .unwrap();
    assert_eq!(ended.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(ended.headers()["x-terminal-reason"], "step_timeout");

    let cases = [
        ("busy", StatusCode::TOO_MANY_REQUESTS),
        ("other", StatusCode::INTERNAL_SERVER_ERROR),
    ];
    for (error, status) in cases {
        let service = tower::service_fn(move |_: Request<()>| async move {
            Err::<Response<crate::support::UpstreamBody>, BoxError>(error.into())
        });
        assert_eq!(
            mapped
                .layer(service)
                .oneshot(request())
                .await
                .unwrap()
                .status(),
            status
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_run_of_a_stream_without_a_terminated_is_named_in_the_frame() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).fail("reset"));
    let stack = Stack::default().terminal().step(5).build(&upstream);

    let outcome = stack.ask(request()).await;
    let text = outcome.whole();

    assert!(
        text.contains(&format!("\"run_id\":\"{}\"", upstream.run().id())),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn it_never_opens_a_run() {
    let upstream = Upstream::script(Script::json().data("{}"));

    let stack = Stack::default().terminal().build(&upstream);
    let answer = stack.oneshot(request()).await.unwrap();

    assert!(answer.extensions().get::<Run>().is_none());
    assert!(upstream.runs().is_empty());
    answer.into_body().read().await.whole();
}

#[tokio::test(start_paused = true)]
async fn twice_in_one_stack_there_is_one_error_event() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(layer())
        .layer(StepTimeoutLayer::new(secs(5)))
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(request())).await;
    let text = outcome.whole();

    assert_eq!(text.matches("event: error").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_end_from_outside_in_the_middle_of_a_stream_is_told_at_once() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let stack = Stack::default().terminal().ceiling(500).build(&upstream);
    let body = stack.oneshot(request()).await.unwrap().into_body();
    let start = tokio::time::Instant::now();
    later(3, move || upstream.run().end(TerminalReason::Shutdown));

    let text = body.read().await.whole();

    assert_eq!(start.elapsed(), secs(3));
    assert!(text.contains("\"code\":\"shutdown\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_announced_as_empty_ends_with_the_frame() {
    for script in [
        Script::sse().header("content-length", "0"),
        Script::sse().size(0),
        Script::sse().size(0).knows_its_end(),
    ] {
        let upstream = Upstream::script(script);
        let stack = Stack::default().terminal().step(5).build(&upstream);

        let outcome = stack.ask(request()).await;

        assert!(!outcome.headers.contains_key("content-length"));
        let text = outcome.whole();
        assert!(text.starts_with("event: error\n"), "{text}");
    }
}

/// What an upstream says in words of another dialect its caller's SDK does not
/// hear, and so takes half an answer for the whole.
/// covers: T89
#[tokio::test(start_paused = true)]
async fn an_error_that_the_callers_sdk_does_not_hear_is_said_once_more() {
    let nested = "data: {\"type\":\"error\",\"error\":{\"type\":\"x\",\"message\":\"no\"}}\n\n";
    let flat = "event: error\ndata: {\"type\":\"error\",\"code\":\"x\",\"message\":\"no\"}\n\n";
    let named = format!("event: error\n{nested}");
    let chat_path = "/v1/chat/completions";
    for (path, content, event, is_heard) in [
        (chat_path, chat("a"), nested, true),
        (chat_path, chat("a"), &*named, true),
        (chat_path, chat("a"), flat, false),
        ("/v1/messages", content_block("a"), nested, false),
        ("/v1/messages", content_block("a"), &*named, true),
    ] {
        for breaks in [false, true] {
            let script = Script::sse().data(&content).data(event);
            let script = if breaks { script.fail("reset") } else { script };
            let upstream = Upstream::script(script);
            let stack = Stack::default().terminal().ceiling(60).build(&upstream);
            let request = Request::post(path).body(()).unwrap();

            let outcome = stack.ask(request).await;
            let text = outcome.whole();

            let rest = text.strip_prefix(&*content).unwrap();
            if is_heard {
                assert_eq!(rest, event, "{path}");
            } else {
                // The event that is not heard is left out: some SDKs cannot read it.
                assert!(rest.starts_with("event: error\ndata: "), "{rest}");
                assert!(
                    rest.contains("\"message\":\"no (x, upstream_failed)\""),
                    "{rest}"
                );
                assert_eq!(rest.matches("event: error").count(), 1);
            }
        }
    }
}

/// The tail of an upstream that ends in the middle of an event would swallow what follows it.
#[tokio::test(start_paused = true)]
async fn half_an_event_after_an_error_that_is_not_heard_is_dropped_before_it_is_said_again() {
    let nested = "data: {\"type\":\"error\",\"error\":{\"type\":\"x\",\"message\":\"no\"}}\n\n";
    let flat = "event: error\ndata: {\"type\":\"error\",\"code\":\"x\",\"message\":\"no\"}\n\n";
    for (path, content, event, is_heard) in [
        ("/v1/messages", content_block("a"), nested, false),
        ("/v1/chat/completions", chat("a"), flat, false),
        ("/v1/chat/completions", chat("a"), nested, true),
    ] {
        for tail in ["data: [DONE]", "data: [DONE]\n", "event: x\ndata: y\n", "d"] {
            let whole = [&*content, event, tail].concat();
            for size in [1, 7, whole.len()] {
                for judged in [false, true] {
                    let pieces = whole.as_bytes().chunks(size);
                    let script = pieces.fold(Script::sse(), |script, piece| script.data(piece));
                    let upstream = Upstream::script(script);
                    let ceiling = judged.then_some(secs(60));
                    let service = ServiceBuilder::new()
                        .layer(TerminalResponseLayer::new())
                        .layer(HardCeilingLayer::optional(ceiling))
                        .service(upstream);
                    let request = Request::post(path).body(()).unwrap();

                    let outcome = Outcome::of(service.oneshot(request)).await;
                    let text = outcome.whole();

                    let rest = text.strip_prefix(&*content).unwrap();
                    if is_heard {
                        assert_eq!(rest, event, "nothing is said again, and nothing follows");
                        continue;
                    }
                    assert!(rest.starts_with("event: error\ndata: {"), "{rest:?}");
                    let mut events = Vec::new();
                    Splitter::new().push(text.as_bytes(), |event| {
                        events.push((event.name.to_vec(), event.data.to_vec()));
                    });
                    let (name, data) = events.last().unwrap();
                    let said: Value = serde_json::from_slice(data).unwrap();
                    assert_eq!((&**name, events.len()), (&b"error"[..], 2));
                    assert_eq!(said["message"], "no (x, upstream_failed)");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_programs_status_holds_for_a_service_that_is_not_ready_too() {
    let layer = layer().error_status(|_| Some(StatusCode::INTERNAL_SERVER_ERROR));
    let upstream = Upstream::script(Script::json()).readiness([Some("full".into())]);
    let service = layer.layer(upstream);

    let answer = service.oneshot(request()).await.unwrap();

    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
}
