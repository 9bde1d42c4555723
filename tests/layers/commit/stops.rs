//! A model that stops before it says anything, under 200.

use tower::{Layer, ServiceExt};
use tower_agent::{
    Candidate, Cooldowns, ModelFallbackLayer, Run, TerminalReason, llm::failure::FailureClass,
};

use crate::support::{
    DONE, PRELUDE, ReadExt, STOP, Script, Upstream, attach, chat, content_block, healthy,
    healthy_text, prompt, tries,
};

use super::hold_stacks;

fn finished(reason: &str) -> String {
    let choice = format!("{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}");
    format!("data: {{\"choices\":[{choice}]}}\n\n")
}

fn filtered() -> Script {
    let stopped = finished("content_filter");
    Script::sse().data(PRELUDE).data(stopped).data(DONE)
}

fn layer() -> ModelFallbackLayer {
    ModelFallbackLayer::new([
        Candidate::new("a").context_window(8),
        Candidate::new("b").context_window(64),
    ])
}

#[tokio::test(start_paused = true)]
async fn a_filter_is_handed_on_unless_the_program_allows_another() {
    let text = [PRELUDE, &finished("content_filter"), DONE].concat();
    let allowing = layer().also_after(FailureClass::ContentFilter);
    for (layer, asked, text) in [
        (layer(), ["a"].as_slice(), text),
        (allowing, &["a", "b"], healthy_text()),
    ] {
        let upstream = Upstream::scripts([filtered(), healthy()]);
        let service = layer.layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("a"));

        let answer = service.oneshot(request).await.unwrap();

        assert_eq!(answer.into_body().read().await.whole(), text);
        assert_eq!(upstream.models(), asked);
        let failed = TerminalReason::Failed(FailureClass::ContentFilter);
        let reason = if asked.len() == 1 {
            failed
        } else {
            TerminalReason::Completed
        };
        assert_eq!(call.terminal_reason(), Some(reason));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_context_that_was_full_from_the_start_goes_to_a_larger_window() {
    let full = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":\
                {\"stop_reason\":\"model_context_window_exceeded\"}}\n\n";
    let answers = [
        Script::sse().data(full),
        Script::sse().data(content_block("a")),
    ];
    let upstream = Upstream::scripts(answers.map(|script| script.data(STOP)));
    let service = layer().layer(upstream.clone());

    let mut request = prompt("a");
    *request.uri_mut() = "/v1/messages".parse().unwrap();
    let answer = service.oneshot(request).await.unwrap();

    assert_eq!(answer.headers()["x-served-model"], "b");
    assert_eq!(upstream.models(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn what_stops_after_it_said_something_is_the_callers() {
    let stopped = finished("content_filter");
    let script = Script::sse().data(PRELUDE).data(chat("a")).data(&stopped);
    let upstream = Upstream::scripts([script.data(DONE), healthy()]);
    let service = layer()
        .also_after(FailureClass::ContentFilter)
        .layer(upstream.clone());

    let answer = service.oneshot(prompt("a")).await.unwrap();

    let text = [PRELUDE, &chat("a"), &stopped, DONE].concat();
    assert_eq!(answer.into_body().read().await.whole(), text);
    assert_eq!(upstream.models(), ["a"]);
}

/// The reasons by which upstreams tell that an answer is broken, with the class of each.
const FAULTY: [(&str, FailureClass); 5] = [
    ("network_error", FailureClass::Server),
    ("abort", FailureClass::Server),
    ("insufficient_system_resource", FailureClass::Server),
    ("MALFORMED_FUNCTION_CALL", FailureClass::ModelFault),
    (
        "function_call_filter: MALFORMED_FUNCTION_CALL",
        FailureClass::ModelFault,
    ),
];

/// covers: F10
#[tokio::test(start_paused = true)]
async fn an_answer_that_says_it_is_broken_is_asked_for_again() {
    for (reason, class) in FAULTY {
        let stream = Script::sse()
            .data(PRELUDE)
            .data(finished(reason))
            .data(DONE);
        let choice = format!(r#"{{"message":{{"content":""}},"finish_reason":"{reason}"}}"#);
        let whole = Script::answer(200, format!(r#"{{"choices":[{choice}]}}"#));
        for first in [stream, whole] {
            for (upstream, service) in hold_stacks([first.clone(), healthy()]) {
                let answer = service.oneshot(prompt("m")).await.unwrap();

                assert_eq!(tries(&answer).len(), 1, "{reason}");
                assert_eq!(tries(&answer)[0].1, class, "{reason}");
                assert_eq!(answer.into_body().read().await.whole(), healthy_text());
                assert_eq!(upstream.calls(), 2, "{reason}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_answer_rests_nobody() {
    let layer = layer().cooldowns(Cooldowns::new());
    for script in [
        Script::sse().data(PRELUDE).data(finished("network_error")),
        Script::sse()
            .data(chat("a"))
            .data(finished("network_error")),
    ] {
        let upstream = Upstream::script(script);
        let service = layer.layer(upstream.clone());
        for _ in 0..2 {
            let before = upstream.calls();
            let answer = service.clone().oneshot(prompt("a")).await.unwrap();
            drop(answer.into_body().read().await);
            assert_eq!(upstream.models()[before], "a");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn behind_content_the_stream_that_broke_ends_as_failed() {
    for (reason, class) in FAULTY {
        let delta = format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":\
             {{\"stop_reason\":\"{reason}\"}}}}\n\n"
        );
        let incomplete = format!(
            "data: {{\"type\":\"response.incomplete\",\"response\":\
             {{\"incomplete_details\":{{\"reason\":\"{reason}\"}}}}}}\n\n"
        );
        let text = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
        let streams = [
            ("/v1/chat/completions", chat("a"), finished(reason)),
            ("/v1/messages", content_block("a"), delta),
            ("/v1/responses", text.to_owned(), incomplete),
        ];
        for (path, content, stop) in streams {
            let script = Script::sse().data(content).data(stop);
            let upstream = Upstream::scripts([script, healthy()]);
            let service = layer().layer(upstream.clone());
            let run = Run::open();
            let (mut request, call) = attach(&run, prompt("a"));
            *request.uri_mut() = path.parse().unwrap();

            let answer = service.oneshot(request).await.unwrap();
            drop(answer.into_body().read().await);

            assert_eq!(upstream.calls(), 1);
            let failed = Some(TerminalReason::Failed(class));
            assert_eq!(call.terminal_reason(), failed, "{path} {reason}");
        }
    }
}
