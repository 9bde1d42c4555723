//! Answers in each dialect: their beginning, their end, and their errors.

use std::time::SystemTime;

use http::StatusCode;
use tower_agent_llm::{
    dialect::{Dialect, Finish},
    failure::{Failure, FailureClass, RetrySame},
    stream::StreamReader,
};

use super::{DIALECTS, Story, behind, named, read, unnamed};

/// One content event of each dialect.
const CONTENTS: [(Dialect, &str); 3] = [
    (
        Dialect::OpenAiChat,
        r#"{"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}"#,
    ),
    (
        Dialect::OpenAiResponses,
        r#"{"type":"response.output_text.delta","sequence_number":4,"delta":"Hel"}"#,
    ),
    (
        Dialect::Anthropic,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}"#,
    ),
];

fn failure(story: &Story) -> Failure {
    let failed = story.failure.as_ref().unwrap();
    Failure::of_stream(failed, SystemTime::UNIX_EPOCH)
}

/// 64bit/async-openai#542: `[DONE]` was parsed as JSON before it was compared. Expected: in each form it is the
/// terminator and no error, and it tells that a stream is a chat.
#[test]
fn done_is_the_terminator_however_it_is_written() {
    for done in ["data: [DONE]", "data:[DONE]", "data:  [DONE] "] {
        for end in ["\n\n", "\r\n\r\n", "\n", ""] {
            let content = unnamed([CONTENTS[0].1]);
            let story = read(Dialect::OpenAiChat, format!("{content}{done}{end}"));
            assert_eq!(story.finish, Finish::Complete, "{done:?} {end:?}");
            assert_eq!(story.error, None);
            let alone = read(Dialect::Any, format!("{done}{end}"));
            assert_eq!(alone.dialect, Dialect::OpenAiChat);
        }
    }
}

/// qualcomm/GenieX#1243: each chunk, also the last one, had an empty `finish_reason`. Expected: it is no stop
/// reason, so that only `[DONE]` makes the answer whole, and a cut one is cut.
#[test]
fn an_empty_finish_reason_finishes_nothing() {
    let chunk = |text: &str| {
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":""}}]}}"#
        )
    };
    let [first, last] = [chunk("Hel"), chunk("lo")];
    let cut = read(Dialect::OpenAiChat, unnamed([&*first, &*last]));
    assert_eq!((cut.finish, cut.stop), (Finish::Truncated, None));
    let whole = read(Dialect::OpenAiChat, unnamed([&*first, &*last, "[DONE]"]));
    assert_eq!((whole.finish, whole.stop), (Finish::Complete, None));
}

/// jeremychone/rust-genai#106: reasoning in `delta.reasoning`, beside an empty `content`, was dropped. Expected:
/// it is content from its first event on, but no text of the answer.
#[test]
fn reasoning_beside_an_empty_content_is_content() {
    let thought = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"Okay"},"finish_reason":null}]}"#;
    let said = CONTENTS[0].1;
    let stream = unnamed([thought, said]);
    for dialect in [Dialect::OpenAiChat, Dialect::Any] {
        let story = read(dialect, &stream);
        assert_eq!(story.commit, behind(&stream, thought));
        assert_eq!(story.text, behind(&stream, said));
        let alone = read(dialect, unnamed([thought]));
        assert_eq!((alone.text, alone.finish), (None, Finish::Truncated));
    }
}

/// AbanteAI/archive-old-cli-mentat#429, pydantic/logfire#64: the first chunk of Azure has no choices, and to index
/// them failed. Expected: it shows the dialect, and is neither content nor progress.
#[test]
fn a_first_chunk_without_choices_is_a_prelude() {
    let filters = r#"{"id":"","choices":[],"created":0,"model":"","object":"","system_fingerprint":null,"prompt_filter_results":[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}]}"#;
    for dialect in [Dialect::OpenAiChat, Dialect::Any] {
        let mut reader = StreamReader::new(dialect);
        let seen = reader.push(unnamed([filters]).as_bytes());
        assert!(!seen.content && !seen.progress && !seen.ended);
        assert_eq!(reader.dialect(), Dialect::OpenAiChat);
        assert_eq!(reader.commit(), None);
    }
}

/// TanStack/ai#1447, macanderson/stella#362: a clean end of the connection without a last event was a whole
/// answer. Expected: it is truncated in each dialect, also where only the terminator's first half came.
#[test]
fn a_clean_end_without_the_last_event_is_no_success() {
    let ends = [
        "data: [DO",
        "event: response.completed\ndata: {\"type\":\"respo",
        "event: message_stop\n",
    ];
    for ((dialect, content), end) in CONTENTS.into_iter().zip(ends) {
        for behind in ["", end, ": ping\n\n"] {
            let story = read(dialect, format!("{}{behind}", unnamed([content])));
            assert_eq!(story.finish, Finish::Truncated, "{dialect:?} {behind:?}");
        }
    }
}

/// farzaa/clicky#132, anthropics/anthropic-sdk-python#1258, vercel/ai#10653: an `error` event under 200 was no
/// error, or one of status 200 that nobody repeated. Expected: the stream fails with the class of the error's
/// name, before content and behind it, and what follows changes nothing.
#[test]
fn an_error_event_fails_the_stream_by_its_name() {
    for (kind, class) in [
        ("overloaded_error", FailureClass::Overloaded),
        ("rate_limit_error", FailureClass::RateLimit),
        ("api_error", FailureClass::Server),
        ("authentication_error", FailureClass::Auth),
        ("billing_error", FailureClass::Quota),
    ] {
        let error = format!(
            r#"{{"type":"error","error":{{"details":null,"type":"{kind}","message":"M"}}}}"#
        );
        let error = named([("error", &*error)]);
        let stop = named([("message_stop", r#"{"type":"message_stop"}"#)]);
        for start in ["", &unnamed([CONTENTS[2].1])] {
            for end in ["", &*stop] {
                let story = read(Dialect::Anthropic, format!("{start}{error}{end}"));
                assert_eq!(story.finish, Finish::Failed);
                assert_eq!(story.commit.is_some(), !start.is_empty());
                let failure = failure(&story);
                assert_eq!((failure.class, &*failure.message), (class, "M"));
                let repeats = class.retry() != RetrySame::No;
                assert_eq!(failure.is_worth_repeating(), repeats, "{kind}");
            }
        }
    }
}

/// apache/rocketmq-dashboard#2178, Augustas11/macprovider#186: an error envelope, then `[DONE]`, was an empty
/// success. Expected: the error fails the stream with its message, whatever follows, in each dialect.
#[test]
fn an_error_before_done_is_no_success() {
    let error = r#"{"error":{"message":"quota exceeded"}}"#;
    let stream = unnamed([error, "[DONE]"]);
    for dialect in DIALECTS {
        let story = read(dialect, &stream);
        assert_eq!(story.finish, Finish::Failed, "{dialect:?}");
        assert_eq!(story.error, behind(&stream, error));
        assert_eq!(story.failure.unwrap().message, "quota exceeded");
    }
}

/// huggingface/huggingface_hub#2514, huggingface/huggingface_hub#1651: an error in a stream of Text Generation
/// Inference is a text beside an `error_type`, and was an event without choices. Expected: the stream fails,
/// and the text says that the prompt is too long.
#[test]
fn an_error_that_is_a_text_fails_the_stream() {
    let too_long = r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 6 `inputs` tokens and 4091 `max_new_tokens`","error_type":"validation"}"#;
    for dialect in DIALECTS {
        let story = read(dialect, format!("data:{too_long}\n\n"));
        assert_eq!(story.finish, Finish::Failed, "{dialect:?}");
        let failure = failure(&story);
        assert_eq!(failure.class, FailureClass::ContextOverflow);
        assert!(failure.message.starts_with("Input validation"));
    }
    let memory = r#"{"error":"Request failed during generation: Server error: CUDA out of memory.","error_type":"generation"}"#;
    let story = read(Dialect::OpenAiChat, unnamed([CONTENTS[0].1, memory]));
    assert_eq!(failure(&story).class, FailureClass::Server);
}

/// foundation-model-stack/fms-guardrails-orchestrator#436: an event `error` whose code is a status, and whose
/// text stands in `details`, was an internal error. Expected: its class and status are those of the code, and
/// its message is that text.
#[test]
fn details_are_the_message_of_an_error_without_another() {
    let error = r#"{"code":400,"details":"Requested sample logprobs of 21, which is greater than max allowed: 20"}"#;
    let stream = format!("{}{}", named([("error", error)]), unnamed(["[DONE]"]));
    for dialect in DIALECTS {
        let story = read(dialect, &stream);
        assert_eq!(story.finish, Finish::Failed, "{dialect:?}");
        let failure = failure(&story);
        assert_eq!(failure.class, FailureClass::Caller);
        assert_eq!(failure.status, Some(StatusCode::BAD_REQUEST));
        assert!(failure.message.starts_with("Requested sample logprobs"));
    }
}

/// ogx-ai/ogx#5224: the error of a Responses stream is flat, with its code and sequence number beside its `type`.
/// Expected: kind, code and message are the error's, and a later event has the next number.
#[test]
fn a_flat_error_of_responses_is_read() {
    let error = r#"{"type":"error","code":"400","message":"not found","sequence_number":5}"#;
    for stream in [unnamed([error]), named([("error", error)])] {
        let story = read(Dialect::OpenAiResponses, stream);
        assert_eq!((story.finish, story.next_sequence), (Finish::Failed, 6));
        let failure = failure(&story);
        assert_eq!(failure.class, FailureClass::Caller);
        assert_eq!(failure.status, Some(StatusCode::BAD_REQUEST));
        assert_eq!(failure.message, "not found");
    }
}

/// xberg-io/liter-llm#189: Groq's error in a stream states its status in `status_code`, which was lost. Expected:
/// the name decides the class, and `status` is the stated one; without a known name the status decides.
#[test]
fn an_error_event_states_its_status_in_status_code() {
    let groq = r#"{"error":{"message":"tool call validation failed","type":"invalid_request_error","code":"tool_use_failed","status_code":400}}"#;
    let story = read(Dialect::OpenAiChat, unnamed([CONTENTS[0].1, groq]));
    let failed = failure(&story);
    assert_eq!(failed.class, FailureClass::ModelFault);
    assert_eq!(failed.message, "tool call validation failed");
    assert_eq!(failed.status, Some(StatusCode::BAD_REQUEST));

    for (status, class) in [
        (400, FailureClass::Caller),
        (401, FailureClass::Auth),
        (429, FailureClass::RateLimit),
        (503, FailureClass::Server),
    ] {
        let error =
            format!(r#"{{"error":{{"message":"M","type":"failed","status_code":{status}}}}}"#);
        let failed = failure(&read(Dialect::OpenAiChat, unnamed([&*error])));
        assert_eq!(failed.class, class, "{status}");
        assert_eq!(failed.status.unwrap().as_u16(), status);
    }
}

/// epam/ai-dial-adapter-openai#348: under 200 Azure's first chunk was an error of type `server_error` with the code
/// `rate_limit_exceeded`, and a trace as its message. Expected: the code says more than the type.
#[test]
fn a_code_says_more_than_a_type() {
    let error = r#"{"error":{"message":" | Traceback (most recent call last):\n | oai_grpc.errors.ServerError:  | no_kv_space\n | ","type":"server_error","code":"rate_limit_exceeded"}}"#;
    for dialect in DIALECTS {
        let failed = failure(&read(dialect, unnamed([error])));
        assert_eq!(failed.class, FailureClass::RateLimit, "{dialect:?}");
    }
}

/// vercel/ai#2698: OpenRouter's error in a stream is Gemini's, as JSON within the message, and the client saw a
/// broken connection. Expected: a rate limit with status 429, in each dialect.
#[test]
fn an_error_within_a_message_is_read() {
    let error = r#"{"error":{"message":"{\n  \"error\": {\n    \"code\": 429,\n    \"message\": \"Resource has been exhausted (e.g. check quota).\",\n    \"status\": \"RESOURCE_EXHAUSTED\"\n  }\n}\n","code":429}}"#;
    for dialect in DIALECTS {
        let failed = failure(&read(dialect, unnamed([error])));
        assert_eq!(failed.class, FailureClass::RateLimit, "{dialect:?}");
        assert_eq!(failed.status, Some(StatusCode::TOO_MANY_REQUESTS));
    }
}

/// openai/openai-python#434, openai/openai-cookbook#749: with several choices, one may finish long before the
/// others. Expected: the answer is finished once each choice that has begun is.
#[test]
fn an_answer_of_several_choices_finishes_with_the_last() {
    let chunk = |index: u32, finish: &str| {
        format!(
            r#"{{"choices":[{{"index":{index},"delta":{{"content":"x"}},"finish_reason":{finish}}}]}}"#
        )
    };
    let events = [
        chunk(0, "null"),
        chunk(1, "null"),
        chunk(1, "\"stop\""),
        chunk(0, "null"),
        chunk(0, "\"length\""),
    ];
    for count in 1..=events.len() {
        let story = read(
            Dialect::OpenAiChat,
            unnamed(events[..count].iter().map(|it| &**it)),
        );
        let finish = match count == events.len() {
            true => Finish::Finished,
            false => Finish::Truncated,
        };
        assert_eq!(story.finish, finish, "{count}");
    }
}

/// vllm-project/vllm#2266: the last two chunks both stop the same choice, and only the second has the usage.
/// Expected: one finished answer, with that usage.
#[test]
fn a_choice_may_stop_twice() {
    let stop =
        r#"{"id":"cmpl","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}"#;
    let again = r#"{"id":"cmpl","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":27,"total_tokens":319,"completion_tokens":292}}"#;
    let text =
        r#"{"id":"cmpl","choices":[{"index":0,"text":"0","logprobs":null,"finish_reason":null}]}"#;
    let stream = unnamed([text, stop, again]);
    let story = read(Dialect::OpenAiChat, &stream);
    assert_eq!(story.finish, Finish::Finished);
    assert_eq!(story.commit, behind(&stream, text));
    let usage = story.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens), (27, 292));
}
