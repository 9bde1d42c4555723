use super::{super::reader::StreamReader, judged};
use crate::dialect::Finish;
use crate::{
    dialect::Dialect,
    sse::EventKind::{self, Content, Error, Life, Prelude, Progress, Terminator},
};

fn kind(data: &str) -> EventKind {
    super::kind(Dialect::OpenAiChat, "", data)
}

fn delta(delta: &str) -> EventKind {
    kind(&format!(
        r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#
    ))
}

fn chat(events: &[&str]) -> StreamReader {
    judged(Dialect::OpenAiChat, events)
}

#[test]
fn what_a_delta_carries_is_content() {
    for text in [
        r#"{"content":"x"}"#,
        r#"{"content":"\n"}"#,
        r#"{"content":[{"type":"text","text":"x"}]}"#,
        r#"{"refusal":"no"}"#,
        r#"{"tool_calls":[{"index":0}]}"#,
        r#"{"function_call":{"name":"f"}}"#,
        r#"{"reasoning":"hm"}"#,
        r#"{"content":"","reasoning_content":"hm"}"#,
        r#"{"reasoning_details":[{}]}"#,
        r#"{"\u0063ontent":"x"}"#,
    ] {
        assert_eq!(delta(text), Content, "{text}");
    }
    assert_eq!(
        kind(r#"{"choices":[{"index":0,"text":"legacy"}]}"#),
        Content
    );
}

#[test]
fn role_only_and_empty_deltas_are_prelude() {
    for text in [
        "{}",
        "null",
        r#"{"role":"assistant"}"#,
        r#"{"role":"assistant","content":""}"#,
        r#"{"content":null,"refusal":null,"tool_calls":[],"function_call":null,"reasoning":""}"#,
        r#"{"content":"x","content":""}"#,
    ] {
        assert_eq!(delta(text), Prelude, "{text}");
    }
    assert_eq!(
        kind(r#"{"choices":[],"prompt_filter_results":[]}"#),
        Prelude
    );
    assert_eq!(kind(r#"{"object":"chat.completion.chunk"}"#), Prelude);
    assert_eq!(
        kind(r#"{"choices":[{"delta":{"content":"x"}}],"choices":[]}"#),
        Prelude
    );
}

#[test]
fn what_nobody_knows_is_progress() {
    for data in [
        r#"{"foo":1}"#,
        "1",
        "[]",
        "no json",
        r#"{"choices":[{"delta":{"content":"x"}}]"#,
    ] {
        assert_eq!(kind(data), Progress, "{data}");
    }
    assert_eq!(delta(r#"{"audio":{"data":"x"}}"#), Progress);
}

#[test]
fn a_ping_and_an_empty_event_are_life() {
    assert_eq!(kind(""), Life);
    assert_eq!(kind(" "), Life);
    assert_eq!(kind(r#"{"type":"ping"}"#), Life);
}

#[test]
fn done_is_the_terminator() {
    for data in ["[DONE]", " [DONE]", "[DONE]  "] {
        assert_eq!(kind(data), Terminator);
    }
    assert_eq!(chat(&["[DONE]"]).finish(), Finish::Complete);
}

#[test]
fn errors_are_objects_texts_and_a_finish_reason() {
    for data in [
        r#"{"error":{"message":"m"}}"#,
        r#"{"error":{}}"#,
        r#"{"error":"overloaded"}"#,
        r#"{"\u0065rror":"overloaded"}"#,
        r#"{"choices":[{"delta":{"content":"x"},"finish_reason":"error"}]}"#,
        r#"{"choices":[{"delta":{"content":"x"}}],"error":{"code":502}}"#,
        r#"{"type":"error","code":"c","message":"m"}"#,
    ] {
        assert_eq!(kind(data), Error, "{data}");
    }
}

#[test]
fn no_error_is_no_error() {
    assert_eq!(
        kind(r#"{"choices":[{"delta":{"content":"x"}}],"error":null}"#),
        Content
    );
    assert_eq!(
        kind(r#"{"choices":[{"delta":{"content":"x"}}],"error":""}"#),
        Content
    );
    for empty in ["{}", "{ }", r#"{"code":null,"message":null}"#] {
        for (text, expected) in [("x", Content), ("", Prelude)] {
            let choices = format!(r#""choices":[{{"delta":{{"content":"{text}"}}}}]"#);
            for data in [
                format!(r#"{{{choices},"error":{empty}}}"#),
                format!(r#"{{"error":{empty},{choices}}}"#),
            ] {
                assert_eq!(kind(&data), expected, "{data}");
            }
        }
    }
    assert_eq!(
        delta(r#"{"content":"{\"error\":{}} event: error"}"#),
        Content
    );
    assert_eq!(
        kind(r#"{"choices":[],"meta":{"error":{"a":1},"type":"error"}}"#),
        Prelude
    );
    assert_eq!(
        delta(r#"{"role":"assistant","meta":{"content":"x"}}"#),
        Progress
    );
}

#[test]
fn an_event_named_error_is_an_error() {
    let mut judge = StreamReader::new(Dialect::OpenAiChat);
    assert!(judge.push(b"event: error\ndata: oh no\n\n").ended);
    assert_eq!(judge.error(), Some(27 - 1));
    assert_eq!(judge.failure().unwrap().message, "oh no");
    assert_eq!(judge.finish(), Finish::Failed);
}

#[test]
fn failures_are_read_in_every_shape() {
    let read = |data: &str| {
        let failure = chat(&[data]).failure().expect("a failure").clone();
        (failure.kind, failure.code, failure.message)
    };
    let texts = |kind: &str, code: &str, message: &str| (kind.into(), code.into(), message.into());
    assert_eq!(
        read(r#"{"error":{"type":"t","code":"c","message":"m"}}"#),
        texts("t", "c", "m")
    );
    assert_eq!(
        read(r#"{"error":{"code":502,"message":"m"},"choices":[]}"#),
        texts("", "502", "m")
    );
    assert_eq!(
        read(r#"{"error":{"code":503,"status":"UNAVAILABLE"}}"#),
        texts("UNAVAILABLE", "503", "")
    );
    assert_eq!(read(r#"{"error":"text"}"#), texts("", "", "text"));
    assert_eq!(
        read(r#"{"type":"error","code":"c","message":"m"}"#),
        texts("", "c", "m")
    );
    let choice = r#"{"choices":[{"finish_reason":"error","error":{"code":1,"message":"m"}}]}"#;
    assert_eq!(read(choice), texts("", "1", "m"));
    let long = format!(r#"{{"error":"{}"}}"#, "é".repeat(2000));
    assert_eq!(read(&long).2.len(), 1024);
}

#[test]
fn it_is_finished_when_every_choice_is() {
    let say =
        |index: u32| format!(r#"{{"choices":[{{"index":{index},"delta":{{"content":"x"}}}}]}}"#);
    let stop = |index: u32| {
        format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"stop","index":{index}}}]}}"#)
    };
    assert_eq!(chat(&[]).finish(), Finish::Truncated);
    assert_eq!(chat(&[&say(0)]).finish(), Finish::Truncated);
    assert_eq!(chat(&[&say(0), &stop(0)]).finish(), Finish::Finished);
    assert_eq!(
        chat(&[&say(0), &say(1), &stop(0)]).finish(),
        Finish::Truncated
    );
    assert_eq!(
        chat(&[&say(0), &say(1), &stop(0), &stop(1)]).finish(),
        Finish::Finished
    );
    assert_eq!(chat(&[&say(127), &stop(127)]).finish(), Finish::Finished);
    assert_eq!(
        chat(&[&say(0), &stop(0), &say(128), &stop(128)]).finish(),
        Finish::Truncated
    );
    assert_eq!(
        chat(&[&say(0), &stop(0), "[DONE]"]).finish(),
        Finish::Complete
    );
    let empty = r#"{"choices":[{"index":0,"delta":{},"finish_reason":""}]}"#;
    assert_eq!(chat(&[empty]).finish(), Finish::Truncated);
    let error = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#;
    assert_eq!(chat(&[error, "[DONE]"]).finish(), Finish::Failed);
}

#[test]
fn an_error_after_the_terminator_does_not_count() {
    let judge = chat(&["[DONE]", r#"{"error":"late"}"#]);
    assert_eq!(
        (judge.error(), judge.failure(), judge.finish()),
        (None, None, Finish::Complete)
    );
}

#[test]
fn usage_and_stop_reason_are_kept() {
    let judge = chat(&[
        r#"{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":null}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool\u005fcalls"}],"usage":null}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"details":{"prompt_tokens":1}}}"#,
    ]);
    assert_eq!(
        judge.usage().map(|it| (it.input_tokens, it.output_tokens)),
        Some((7, 9))
    );
    assert_eq!(judge.stop_reason(), Some("tool_calls"));
    assert_eq!(judge.next_sequence(), 0);
}

/// Groq and Moonshot state it there in the last event, if the caller did not ask for it.
#[test]
fn usage_counts_within_a_choice_and_within_groqs_object() {
    for (event, counts) in [
        (
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"id":"req_1","usage":{"queue_time":0.02,"prompt_tokens":24,"completion_tokens":377}}}"#,
            Some((24, 377)),
        ),
        (
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":19,"completion_tokens":13,"total_tokens":32}}],"usage":null}"#,
            Some((19, 13)),
        ),
        (
            r#"{"choices":[{"index":0,"usage":{"prompt_tokens":4,"completion_tokens":5}},{"index":1,"usage":null}],"usage":{"prompt_tokens":4,"completion_tokens":6}}"#,
            Some((4, 6)),
        ),
        (
            r#"{"choices":[{"index":0,"usage":[1]}],"x_groq":{"id":"req_1"}}"#,
            None,
        ),
        (r#"{"choices":[],"x_groq":null}"#, None),
    ] {
        let usage = chat(&[event]).usage();
        let usage = usage.map(|it| (it.input_tokens, it.output_tokens));
        assert_eq!(usage, counts, "{event}");
    }
}

#[test]
fn a_malformed_event_leaves_no_trace() {
    let judge =
        chat(&[r#"{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":7}"#]);
    assert_eq!((judge.usage(), judge.stop_reason()), (None, None));
    assert_eq!(judge.finish(), Finish::Truncated);
}

#[test]
fn reasoning_commits_but_is_not_text() {
    let judge = chat(&[
        r#"{"choices":[{"delta":{"reasoning":"hm"}}]}"#,
        r#"{"choices":[{"delta":{"content":"x"}}]}"#,
    ]);
    assert!(judge.commit() < judge.text());
    assert_eq!(judge.text(), Some(judge.position()));
    assert_eq!(judge.progressed(), judge.position());
}

/// As Mistral's reasoning models send it.
#[test]
fn thinking_in_a_list_of_parts_is_reasoning() {
    let thinking = r#"{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}"#;
    let of = |parts: &str| format!(r#"{{"choices":[{{"delta":{{"content":[{parts}]}}}}]}}"#);
    for (parts, is_text) in [
        (thinking.to_owned(), false),
        (format!("{thinking},{thinking}"), false),
        (r#"{"type":"text","text":"x"}"#.to_owned(), true),
        (format!(r#"{thinking},{{"type":"text","text":"x"}}"#), true),
        (r#""x""#.to_owned(), true),
    ] {
        let judge = chat(&[&of(&parts)]);
        assert_eq!(judge.commit(), Some(judge.position()), "{parts}");
        assert_eq!(judge.text().is_some(), is_text, "{parts}");
    }
    assert_eq!(chat(&[&of("")]).commit(), None);
}
