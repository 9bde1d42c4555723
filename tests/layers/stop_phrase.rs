//! Users who say stop.
//!
//! covers: C5

mod capped;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tower::ServiceExt;
use tower_agent::{
    RunLayer, RunRegistry, StopPhraseLayer, TerminalReason,
    llm::{dialect::Dialect, dialect::Finish, sse::Splitter, stream::StreamReader},
};

use crate::support::{Place, ReadExt, Script, Stack, StackService, Upstream, with_header};

fn stack(phrases: &[&str]) -> (RunRegistry, Upstream, StackService) {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let phrases = StopPhraseLayer::new(registry.clone(), phrases);
    let stack = Stack::default().run(&registry);
    let stack = stack.layer(Place::StopPhrase, phrases).build(&upstream);
    (registry, upstream, stack)
}

fn asks(path: &str, body: impl Into<String>) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("x-session-id", "chat-7");
    request.body(Full::from(body.into())).unwrap()
}

fn says(text: &str) -> Request<Full<Bytes>> {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    asks("/v1/chat/completions", body)
}

/// The text of an answer of status 200.
async fn asked(stack: &StackService, request: Request<Full<Bytes>>) -> String {
    let outcome = stack.ask(request).await;
    assert_eq!(outcome.status, 200);
    outcome.whole().to_owned()
}

fn reason_of(registry: &RunRegistry, id: &str) -> Option<TerminalReason> {
    registry.find(&id.parse().unwrap())[0].terminal_reason()
}

#[tokio::test(start_paused = true)]
async fn a_word_ends_the_other_runs_of_the_session_and_not_its_own() {
    let (registry, upstream, service) = stack(&["/stop"]);
    for id in ["one", "two"] {
        asked(&service, with_header(says("go"), "x-run-id", id)).await;
    }
    asked(
        &service,
        with_header(
            with_header(says("go"), "x-run-id", "other-owner"),
            "authorization",
            "Bearer b",
        ),
    )
    .await;
    asked(
        &service,
        with_header(
            with_header(says("go"), "x-run-id", "other-session"),
            "x-session-id",
            "chat-8",
        ),
    )
    .await;
    assert_eq!(upstream.calls(), 4);

    let body = asked(&service, with_header(says("STOP!!!"), "x-run-id", "asking")).await;

    assert_eq!(upstream.calls(), 4, "nobody was asked");
    assert!(body.contains("Stopped."), "{body}");
    for id in ["one", "two"] {
        assert_eq!(
            reason_of(&registry, id),
            Some(TerminalReason::Aborted),
            "{id}"
        );
    }
    for id in ["other-owner", "other-session", "asking"] {
        assert_eq!(reason_of(&registry, id), None, "{id}");
    }
    // Its own run goes on, and has nothing in flight.
    assert_eq!(registry.find(&"asking".parse().unwrap())[0].in_flight(), 0);
    let body = asked(&service, with_header(says("stop"), "x-run-id", "asking")).await;
    assert!(body.contains("Nothing was running."), "{body}");
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_in_another_run_is_cut_and_the_asking_call_completes() {
    use tower::Layer;
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().never());
    let told = crate::support::Summaries::default();
    let layer = RunLayer::new(registry.clone()).on_end(told.hook());
    let stop = StopPhraseLayer::new(registry.clone(), ["stop"]);
    let service = StackService::new(layer.layer(stop.layer(upstream.clone())));
    let running = service.clone().oneshot(says("go")).await.unwrap();

    service.ask(says("stop")).await.whole();

    let cut = running.into_body().read().await;
    assert_eq!(cut.reason(), Some(TerminalReason::Aborted));
    let reasons: Vec<_> = told.all().iter().map(|call| call.reason.clone()).collect();
    assert!(reasons.contains(&TerminalReason::Completed), "{reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_of_another_api_neither_says_nor_hides_a_word() {
    let user = |text: &str| format!(r#"[{{"role":"user","content":"{text}"}}]"#);
    let both = |messages, input| {
        let (messages, input) = (user(messages), user(input));
        [
            format!(r#"{{"messages":{messages},"input":{input}}}"#),
            format!(r#"{{"input":{input},"messages":{messages}}}"#),
        ]
    };
    let stops = [
        ("/v1/chat/completions", both("stop", "go")),
        ("/v1/responses", both("go", "stop")),
    ];
    let passes = [
        ("/v1/chat/completions", both("go", "stop")),
        ("/v1/responses", both("stop", "go")),
    ];
    let (_, upstream, service) = stack(&["stop"]);
    for (path, body) in stops
        .iter()
        .flat_map(|(path, both)| both.iter().map(move |it| (path, it)))
    {
        let said = asked(&service, asks(path, body)).await;
        assert!(
            said.contains("Nothing was running."),
            "{path} {body}: {said}"
        );
    }
    assert_eq!(upstream.calls(), 0);
    for (path, body) in passes
        .iter()
        .flat_map(|(path, both)| both.iter().map(move |it| (path, it)))
    {
        assert_eq!(
            asked(&service, asks(path, body)).await,
            "{}",
            "{path} {body}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn anything_else_passes() {
    let said = |text: &str| format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let chat = "/v1/chat/completions";
    let requests = [
        says("please stop"),
        says("don't stop"),
        asks(
            chat,
            r#"{"messages":[{"role":"user","content":"stop"},{"role":"assistant","content":"ok"}]}"#,
        ),
        asks(chat, "stop"),
        asks("/v1/messages/count_tokens", said("stop")),
        asks("/v1/embeddings", r#"{"model":"m","input":"stop"}"#),
        asks("/v1/embeddings", said("stop")),
        asks("/v1/images/generations", said("stop")),
        asks("/somewhere", r#"{"model":"m","input":"stop"}"#),
    ];
    let (registry, upstream, service) = stack(&["stop"]);
    asked(&service, with_header(says("go"), "x-run-id", "one")).await;
    for (number, request) in requests.into_iter().enumerate() {
        asked(&service, request).await;
        assert_eq!(upstream.calls(), number + 2, "request {number} was sent on");
    }
    let (mut alone, _) = says("stop").into_parts();
    alone.headers.remove("x-session-id");
    let calls = upstream.calls();
    asked(
        &service,
        Request::from_parts(alone, Full::from(said("stop"))),
    )
    .await;
    assert_eq!(upstream.calls(), calls + 1, "it has no session");
    assert_eq!(reason_of(&registry, "one"), None);

    let (_, upstream, service) = stack(&[]);
    asked(&service, says("stop")).await;
    assert_eq!(upstream.calls(), 1, "off without phrases");
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_a_message_in_the_dialect_of_the_request() {
    let messages = r#""messages":[{"role":"user","content":"stop"}]"#;
    let system = r#""system":"Be brief.","messages":[{"role":"user","content":"stop"}]"#;
    let input = r#""input":"stop""#;
    let cases = [
        (
            "/v1/chat/completions",
            messages,
            Dialect::OpenAiChat,
            "/choices/0/message/content",
        ),
        (
            "/v1/responses",
            input,
            Dialect::OpenAiResponses,
            "/output/0/content/0/text",
        ),
        (
            "/v1/messages",
            messages,
            Dialect::Anthropic,
            "/content/0/text",
        ),
        (
            "/elsewhere",
            messages,
            Dialect::OpenAiChat,
            "/choices/0/message/content",
        ),
        ("/elsewhere", system, Dialect::Anthropic, "/content/0/text"),
    ];
    for (path, said, dialect, text) in cases {
        let (_, upstream, service) = stack(&["stop"]);
        let whole = asked(&service, asks(path, format!(r#"{{"model":"m",{said}}}"#))).await;
        let whole: Value = serde_json::from_str(&whole).unwrap();
        assert_eq!(
            whole.pointer(text).unwrap(),
            "Nothing was running.",
            "{path}"
        );
        assert_eq!(whole["model"], "m");

        let request = asks(path, format!(r#"{{"model":"m","stream":true,{said}}}"#));
        let outcome = service.ask(request).await;
        assert_eq!(outcome.headers["content-type"], "text/event-stream");
        let stream = outcome.whole();
        let mut judge = StreamReader::new(Dialect::Any);
        assert!(judge.push(stream.as_bytes()).content, "{path}");
        assert_eq!(judge.dialect(), dialect, "{path}");
        assert_eq!(judge.finish(), Finish::Complete, "{path}");
        assert_eq!(upstream.calls(), 0);
    }

    let (_, _, service) = stack(&["stop"]);
    let request = asks("/elsewhere", format!(r#"{{"model":"m",{messages}}}"#));
    let request = with_header(request, "anthropic-version", "2023-06-01");
    let message: Value = serde_json::from_str(&asked(&service, request).await).unwrap();
    assert_eq!(message["type"], "message");
}

/// Each event by its name, or its chunk's number.
fn events(stream: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    Splitter::new().push(stream.as_bytes(), |event| {
        let data = serde_json::from_slice(event.data).unwrap_or(Value::Null);
        events.push((String::from_utf8(event.name.to_vec()).unwrap(), data));
    });
    events
}

#[tokio::test(start_paused = true)]
async fn a_stream_has_all_of_its_dialects_events_in_order() {
    let (_, _, service) = stack(&["stop"]);
    let stream = |path: &'static str, said: &'static str| {
        asks(path, format!(r#"{{"model":"m","stream":true,{said}}}"#))
    };
    let messages = r#""messages":[{"role":"user","content":"stop"}]"#;

    let chat = events(&asked(&service, stream("/v1/chat/completions", messages)).await);
    let delta = |at: usize| chat[at].1["choices"][0].clone();
    assert_eq!(delta(0)["delta"]["role"], "assistant");
    assert_eq!(delta(1)["delta"]["content"], "Nothing was running.");
    assert_eq!(delta(2)["finish_reason"], "stop");
    assert_eq!(
        (chat.len(), &chat[3].1),
        (4, &Value::Null),
        "the terminator"
    );

    let responses = events(&asked(&service, stream("/v1/responses", r#""input":"stop""#)).await);
    let names: Vec<_> = responses
        .iter()
        .map(|(name, _)| &name["response.".len()..])
        .collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
    );
    for (number, (name, event)) in responses.iter().enumerate() {
        assert_eq!(event["type"], **name);
        assert_eq!(event["sequence_number"], number);
    }
    let last = &responses[8].1["response"];
    assert_eq!(last["id"], responses[0].1["response"]["id"]);
    assert_eq!(
        last["output"][0]["content"][0]["text"],
        "Nothing was running."
    );

    let anthropic = events(&asked(&service, stream("/v1/messages", messages)).await);
    let names: Vec<_> = anthropic.iter().map(|(name, _)| &**name).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    assert_eq!(anthropic[0].1["message"]["stop_reason"], Value::Null);
    assert_eq!(anthropic[2].1["delta"]["text"], "Nothing was running.");
    assert_eq!(anthropic[4].1["delta"]["stop_reason"], "end_turn");
}

#[tokio::test(start_paused = true)]
async fn alone_and_under_terminal_responses_it_only_passes() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let phrases = StopPhraseLayer::new(registry, ["stop"]).max_body(40);
    let stack = Stack::default().terminal();
    let service = stack.layer(Place::StopPhrase, phrases).build(&upstream);

    let short = asks("/v1/chat/completions", r#"{"messages":[]}"#);
    assert_eq!(service.ask(short).await.whole(), "{}");
    assert_eq!(service.ask(says("stop")).await.status, 413);
    assert_eq!(upstream.calls(), 1);
}
