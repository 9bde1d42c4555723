//! What a stream of each dialect says of itself, at any chunking.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tokio::time::Instant;
use tower_agent::{
    Candidate, Run,
    llm::failure::FailureClass,
    run::TerminalReason::{Completed, StepTimeout},
};

use crate::support::{Outcome, Script, Stack, Upstream, attach, secs};

/// What a stream amounts to, as far as the first candidate is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// It is handed on, whatever follows.
    Served,
    /// Another candidate is asked.
    Other(FailureClass),
    /// It is handed on, and a failure.
    Failed(FailureClass),
}

use FailureClass::{ContentFilter, ContextOverflow, Overloaded, RateLimit, Server, Transport};
use Then::{Failed, Other, Served};

struct Dialect {
    path: &'static str,
    /// What comes before the first content.
    prelude: &'static str,
    content: &'static str,
    /// Content that quotes an error, in words and as JSON.
    quote: &'static str,
    /// Parts of an answer that say nothing.
    empty: &'static [&'static str],
    end: &'static str,
    /// What may come instead of content, and what it amounts to then.
    instead: &'static [(&'static str, Then)],
}

const CHAT: Dialect = Dialect {
    path: "/v1/chat/completions",
    prelude: "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    content: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{20ac}\"}}]}\n\n",
    quote: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"it said 429 rate_limit_exceeded: \
            {\\\"error\\\":{\\\"code\\\":\\\"insufficient_quota\\\"}}\"}}]}\n\n",
    empty: &["data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"}}]}\n\n"],
    end: "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    instead: &[
        (
            "data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\",\"code\":null}}\n\n",
            Other(Server),
        ),
        (
            "data: {\"error\":{\"message\":\"slow down\",\"code\":\"rate_limit_exceeded\"}}\n\n",
            Other(RateLimit),
        ),
        (
            "data: {\"error\":{\"message\":\"long\",\"code\":\"context_length_exceeded\"}}\n\n",
            Other(ContextOverflow),
        ),
        (
            "data: {\"error\":{\"message\":\"flagged\",\"code\":\"content_policy_violation\"}}\n\n",
            Failed(ContentFilter),
        ),
        (
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\ndata: [DONE]\n\n",
            Failed(ContentFilter),
        ),
        // The model's own words.
        (
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"refusal\":\"I will not\"}}]}\n\ndata: [DONE]\n\n",
            Served,
        ),
        // Cut before it said anything.
        ("", Other(Transport)),
    ],
};

const RESPONSES: Dialect = Dialect {
    path: "/v1/responses",
    prelude: "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r\"}}\n\n",
    content: "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"\u{20ac}\"}\n\n",
    quote: "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\
            \"delta\":\"event: error {\\\"type\\\":\\\"response.failed\\\"}\"}\n\n",
    empty: &[
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"\",\"obfuscation\":\"x\"}\n\n",
        "event: response.function_call_arguments.delta\ndata: {\"type\":\"response.function_call_arguments.delta\",\"sequence_number\":1,\"delta\":\"\"}\n\n",
    ],
    end: "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":9,\"response\":{\"id\":\"r\",\"status\":\"completed\"}}\n\n",
    instead: &[
        (
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"no\"}}}\n\n",
            Other(Server),
        ),
        (
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"no\"}}}\n\n",
            Other(RateLimit),
        ),
        (
            "event: error\ndata: {\"type\":\"error\",\"sequence_number\":1,\"code\":\"context_length_exceeded\",\"message\":\"long\",\"param\":null}\n\n",
            Other(ContextOverflow),
        ),
        (
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"invalid_prompt\",\"message\":\"flagged\"}}}\n\n",
            Failed(ContentFilter),
        ),
        (
            "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"sequence_number\":1,\"response\":{\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"content_filter\"}}}\n\n",
            Failed(ContentFilter),
        ),
        (
            "event: response.refusal.delta\ndata: {\"type\":\"response.refusal.delta\",\"sequence_number\":1,\"delta\":\"I will not\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":2,\"response\":{}}\n\n",
            Served,
        ),
        ("", Other(Transport)),
    ],
};

const ANTHROPIC: Dialect = Dialect {
    path: "/v1/messages",
    prelude: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n",
    content: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\u{20ac}\"}}\n\n",
    quote: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\
            \"text\":\"{\\\"type\\\":\\\"error\\\",\\\"error\\\":{\\\"type\\\":\\\"overloaded_error\\\"}}, stop_reason: refusal\"}}\n\n",
    empty: &[
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"\"}}\n\n",
    ],
    end: "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    instead: &[
        (
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
            Other(Overloaded),
        ),
        (
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"no\"}}\n\n",
            Other(Server),
        ),
        (
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 9 tokens > 8 maximum\"}}\n\n",
            Other(ContextOverflow),
        ),
        (
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"model_context_window_exceeded\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            Other(ContextOverflow),
        ),
        (
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"refusal\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            Failed(ContentFilter),
        ),
        ("", Other(Transport)),
    ],
};

const DIALECTS: [&Dialect; 3] = [&CHAT, &RESPONSES, &ANTHROPIC];

/// The text in frames of so many bytes.
fn cut(text: &str, size: usize) -> Script {
    let pieces = text.as_bytes().chunks(size.max(1));
    pieces.fold(Script::sse(), |script, piece| script.data(piece))
}

/// Byte for byte, in pieces that fit no event, and in one.
fn cuts(text: &str) -> impl Iterator<Item = Script> {
    let sizes = [1, 2, 3, 7, 16, 61, 256, text.len()];
    sizes.into_iter().map(move |size| cut(text, size))
}

impl Dialect {
    fn healthy(&self) -> String {
        [self.prelude, self.content, self.end].concat()
    }

    fn asks(&self) -> Request<Full<Bytes>> {
        let body = "{\"model\":\"a\",\"stream\":true}";
        Request::post(self.path).body(Full::from(body)).unwrap()
    }

    /// What the caller gets of a stream, and the models that were asked.
    async fn play(&self, script: Script) -> (Outcome, Vec<String>) {
        let healthy = Script::sse().data(self.healthy());
        let upstream = Upstream::scripts([script, healthy]);
        let stack = Stack::default().fallback([
            Candidate::new("a").context_window(8),
            Candidate::new("b").context_window(64),
        ]);
        let (request, _call) = attach(&Run::open(), self.asks());
        let outcome = stack.build(&upstream).ask(request).await;
        let is_good = outcome.failure.is_none();
        assert_eq!(outcome.tries.len() + usize::from(is_good), upstream.calls());
        (outcome, upstream.models())
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_instead_of_content_is_judged_at_any_chunking() {
    for dialect in DIALECTS {
        for (instead, then) in dialect.instead {
            let text = [dialect.prelude, instead].concat();
            for script in cuts(&text) {
                let (outcome, asked) = dialect.play(script).await;
                let (got, judged) = (outcome.whole(), outcome.failure.as_ref().map(|it| it.class));
                let what = format!("{} {instead}", dialect.path);
                match then {
                    Served => {
                        assert_eq!(got, text, "{what}");
                        assert_eq!((asked.len(), judged), (1, None), "{what}");
                    }
                    Failed(class) => {
                        // An error is a plain answer; a stop reason that is a failure is none.
                        let error = serde_json::from_str::<Value>(got).unwrap_or_default();
                        let is_plain = error["error"]["message"].is_string();
                        assert!(is_plain || got == text, "{what} {got}");
                        assert_eq!(is_plain, outcome.status >= 400, "{what}");
                        assert_eq!((asked.len(), judged), (1, Some(*class)), "{what}");
                    }
                    Other(_) => {
                        assert_eq!(got, dialect.healthy(), "{what}");
                        assert_eq!(asked, ["a", "b"], "{what}");
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_class_of_what_comes_instead_of_content_is_told() {
    for dialect in DIALECTS {
        for (instead, then) in dialect.instead {
            let (Other(class) | Failed(class)) = then else {
                continue;
            };
            let text = [dialect.prelude, instead].concat();
            for script in cuts(&text) {
                // The same from both, so that the last is handed on, or breaks.
                let upstream = Upstream::script(script);
                let candidates = [Candidate::new("a").context_window(8)];
                let stack = Stack::default().fallback(candidates).build(&upstream);
                let (request, call) = attach(&Run::open(), dialect.asks());

                stack.ask(request).await;

                let reason = tower_agent::TerminalReason::Failed(*class);
                assert_eq!(call.terminal_reason(), Some(reason), "{instead}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_the_first_content_whatever_comes_is_the_callers() {
    for dialect in DIALECTS {
        for (instead, _) in dialect.instead.iter().filter(|(text, _)| !text.is_empty()) {
            let text = [dialect.prelude, dialect.content, instead].concat();
            for script in cuts(&text) {
                let (outcome, asked) = dialect.play(script).await;
                let (got, judged) = (outcome.whole(), outcome.failure.as_ref().map(|it| it.class));
                assert_eq!(got, text, "{} {instead}", dialect.path);
                assert_eq!((asked.len(), judged), (1, None));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_quotes_an_error_is_healthy() {
    for dialect in DIALECTS {
        let text = [dialect.prelude, dialect.quote, dialect.end].concat();
        for script in cuts(&text) {
            let (outcome, asked) = dialect.play(script).await;
            let (got, judged) = (outcome.whole(), outcome.failure.as_ref().map(|it| it.class));
            assert_eq!(got, text);
            assert_eq!((asked.len(), judged), (1, None));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn empty_deltas_are_silence_before_the_commit_and_after_it() {
    for dialect in DIALECTS {
        for empty in dialect.empty {
            for (content, asked, served, reasons) in [
                (
                    "",
                    &["a", "b"][..],
                    dialect.healthy(),
                    [Some(StepTimeout), Some(Completed)],
                ),
                // Then the answer is the caller's, and ends where it fell silent.
                (
                    dialect.content,
                    &["a"],
                    String::new(),
                    [Some(StepTimeout), None],
                ),
            ] {
                let begun = [dialect.prelude, content].concat();
                let silent = Script::sse().data(begun).repeat(100, 3.0, empty);
                let upstream = Upstream::scripts([silent, Script::sse().data(dialect.healthy())]);
                let stack = Stack::default().candidates(["a", "b"]).attempt_step(10);
                let start = Instant::now();
                let (request, _call) = attach(&Run::open(), dialect.asks());

                let outcome = stack.build(&upstream).ask(request).await;

                let told: Vec<_> = reasons.into_iter().flatten().collect();
                let what = format!("{content:?} {empty}");
                assert_eq!(start.elapsed(), secs(10), "{what}");
                assert_eq!(upstream.models(), asked, "{what}");
                assert_eq!(
                    upstream.reasons(),
                    told.iter().cloned().map(Some).collect::<Vec<_>>()
                );
                if served.is_empty() {
                    assert_eq!(outcome.terminated().reason, StepTimeout, "{what}");
                } else {
                    assert_eq!(outcome.whole(), served, "{what}");
                }
            }
        }
    }
}
