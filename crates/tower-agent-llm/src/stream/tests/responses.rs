use super::{super::reader::StreamReader, judged, verdict};
use crate::dialect::Finish;
use crate::{
    dialect::Dialect,
    sse::EventKind::{self, Content, Error, Life, Prelude, Progress, Terminator},
};

fn kind(name: &str) -> EventKind {
    let data = format!(r#"{{"sequence_number":1,"type":"{name}","item":{{"type":"x"}}}}"#);
    let by_type = super::kind(Dialect::OpenAiResponses, "", &data);
    assert_eq!(
        super::kind(Dialect::OpenAiResponses, name, r#"{"sequence_number":1}"#),
        by_type
    );
    by_type
}

#[test]
fn each_row_of_the_table() {
    for (name, expected) in [
        ("response.output_text.delta", Content),
        ("response.refusal.delta", Content),
        ("response.function_call_arguments.delta", Content),
        ("response.reasoning_summary_text.delta", Content),
        ("response.output_item.added", Progress),
        ("response.output_item.done", Progress),
        ("response.output_text.done", Progress),
        ("response.content_part.added", Progress),
        ("response.web_search_call.in_progress", Progress),
        ("response.web_search_call.searching", Progress),
        ("response.code_interpreter_call.interpreting", Progress),
        ("response.file_search_call.completed", Progress),
        ("response.reasoning_summary_part.added", Progress),
        ("response.of_the_future", Progress),
        ("response.created", Prelude),
        ("response.queued", Prelude),
        ("response.in_progress", Prelude),
        ("keepalive", Life),
        ("response.completed", Terminator),
        ("response.incomplete", Terminator),
        ("response.failed", Error),
        ("response.cancelled", Error),
        ("error", Error),
    ] {
        assert_eq!(kind(name), expected, "{name}");
    }
}

#[test]
fn a_delta_that_says_nothing_is_no_content() {
    for name in [
        "response.output_text.delta",
        "response.refusal.delta",
        "response.function_call_arguments.delta",
        "response.reasoning_summary_text.delta",
        "response.output_audio.delta",
    ] {
        // An `obfuscation` pads an event to hide its length, and is not a part of the
        // answer.
        for (delta, expected) in [
            (r#""""#, Prelude),
            ("null", Prelude),
            ("{}", Prelude),
            (r#"" ""#, Content),
            (r#"{"text":"x"}"#, Content),
        ] {
            let data = format!(r#"{{"type":"{name}","delta":{delta},"obfuscation":"Zx8"}}"#);
            assert_eq!(
                super::kind(Dialect::OpenAiResponses, "", &data),
                expected,
                "{data}"
            );
        }
    }
}

#[test]
fn reasoning_is_told_apart() {
    let reasoning = |name| verdict(Dialect::OpenAiResponses, name, "{}").reasoning;
    assert!(reasoning("response.reasoning_summary_text.delta"));
    assert!(reasoning("response.reasoning_text.delta"));
    assert!(!reasoning("response.output_text.delta"));
}

#[test]
fn a_type_beats_the_name_and_may_be_escaped() {
    let data = r#"{"type":"response\u002ecompleted"}"#;
    assert_eq!(
        super::kind(Dialect::OpenAiResponses, "response.created", data),
        Terminator
    );
}

#[test]
fn a_bare_error_is_an_error() {
    assert_eq!(
        super::kind(Dialect::OpenAiResponses, "", r#"{"error":{"message":"m"}}"#),
        Error
    );
    let data = r#"{"type":"response.output_item.done","error":{"message":"m"}}"#;
    assert_eq!(super::kind(Dialect::OpenAiResponses, "", data), Progress);
}

#[test]
fn malformed_is_progress_and_blank_is_by_name() {
    let kind = |name, data| super::kind(Dialect::OpenAiResponses, name, data);
    assert_eq!(kind("response.completed", "{"), Progress);
    assert_eq!(kind("response.completed", ""), Terminator);
    assert_eq!(kind("", ""), Life);
}

#[test]
fn completed_has_the_usage() {
    let judge = judged(
        Dialect::OpenAiResponses,
        &[
            r#"{"type":"response.created","sequence_number":0,"response":{"usage":null}}"#,
            r#"{"type":"response.output_text.delta","sequence_number":1,"delta":"x"}"#,
            r#"{"response":{"usage":{"input_tokens":3,"output_tokens":5,"d":{"input_tokens":9}}},"type":"response.completed","sequence_number":2}"#,
        ],
    );
    assert_eq!(
        judge.usage().map(|it| (it.input_tokens, it.output_tokens)),
        Some((3, 5))
    );
    assert_eq!((judge.stop_reason(), judge.next_sequence()), (None, 3));
    assert_eq!(judge.finish(), Finish::Complete);
}

#[test]
fn incomplete_has_its_reason() {
    let judge = judged(
        Dialect::OpenAiResponses,
        &[
            r#"{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"}}}"#,
        ],
    );
    assert_eq!(judge.stop_reason(), Some("max_output_tokens"));
    assert_eq!(judge.terminator(), Some(judge.position()));
}

#[test]
fn failed_says_why() {
    let judge = judged(
        Dialect::OpenAiResponses,
        &[
            r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"m"}}}"#,
        ],
    );
    let failure = judge.failure().expect("a failure");
    assert_eq!(
        (&*failure.kind, &*failure.code, &*failure.message),
        ("", "server_error", "m")
    );
    assert_eq!(judge.finish(), Finish::Failed);
}

#[test]
fn a_flat_error_says_why() {
    let judge = judged(
        Dialect::OpenAiResponses,
        &[r#"{"type":"error","code":"c","message":"m","param":null,"sequence_number":4}"#],
    );
    let failure = judge.failure().expect("a failure");
    assert_eq!(
        (&*failure.kind, &*failure.code, &*failure.message),
        ("", "c", "m")
    );
    assert_eq!(judge.next_sequence(), 5);
}

#[test]
fn an_oversized_terminator_counts() {
    let mut judge = judged(
        Dialect::OpenAiResponses,
        &[r#"{"type":"response.output_text.delta","sequence_number":7}"#],
    );
    let start = r#"data: {"type":"response.completed","sequence_number":8,"response":{"output":""#;
    judge.push(start.as_bytes());
    judge.push(&vec![b'x'; 2 << 20]);
    let end = r#"","usage":{"input_tokens":3,"output_tokens":90000}}}"#;
    assert!(judge.push(format!("{end}\n\n").as_bytes()).ended);
    assert_eq!(
        (judge.finish(), judge.next_sequence()),
        (Finish::Complete, 9)
    );
    assert_eq!(judge.usage().map(|usage| usage.output_tokens), Some(90_000));
}

#[test]
fn an_oversized_event_that_is_no_object_is_named() {
    let mut judge = StreamReader::new(Dialect::OpenAiResponses);
    judge.push(b"event: response.completed\ndata: ");
    judge.push(&vec![b'x'; 2 << 20]);
    assert!(judge.push(b"\n\n").ended);
    assert_eq!(judge.next_sequence(), 1);
}

#[test]
fn without_a_terminator_it_is_truncated() {
    assert_eq!(
        StreamReader::new(Dialect::OpenAiResponses).finish(),
        Finish::Truncated
    );
    let judge = judged(
        Dialect::OpenAiResponses,
        &[r#"{"type":"response.output_text.done"}"#, "[DONE]"],
    );
    assert_eq!(judge.finish(), Finish::Truncated);
}

fn named(events: &str) -> Option<(String, u64)> {
    let mut judge = StreamReader::new(Dialect::OpenAiResponses);
    // The bytes come one by one: the result must not depend on the chunks.
    for byte in events.as_bytes() {
        judge.push(std::slice::from_ref(byte));
    }
    let (id, end) = judge.response_id_end()?;
    assert_eq!(judge.response_id(), Some(&**id));
    Some((id.to_string(), end))
}

fn lifecycle(kind: &str, response: &str) -> String {
    format!("data: {{\"type\":\"response.{kind}\",\"response\":{response}}}\n\n")
}

#[test]
fn the_answers_id_is_that_of_its_first_events() {
    let answer =
        r#"{"object":"response","metadata":{"id":"other"},"id":"resp_\u0031","output":[]}"#;
    for kind in ["created", "queued", "in_progress"] {
        let ping = "event: keepalive\ndata: {}\n\n";
        let first = format!("{ping}{}", lifecycle(kind, answer));
        let later = lifecycle("in_progress", r#"{"id":"resp_2"}"#);
        let end = first.len() as u64;
        assert_eq!(
            named(&format!("{first}{later}")),
            Some(("resp_1".to_owned(), end)),
            "{kind}"
        );
    }
    for kind in ["output_text.delta", "output_item.added", "completed"] {
        assert_eq!(named(&lifecycle(kind, answer)), None, "{kind}");
    }
}

#[test]
fn an_id_that_is_none_is_not_kept() {
    let id = |bytes| format!(r#"{{"id":"{}"}}"#, "i".repeat(bytes));
    let unusable = [
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        r#"{"id":7}"#.to_owned(),
        id(0),
        id(257),
    ];
    for response in unusable {
        let created = lifecycle("created", &response);
        assert_eq!(named(&created), None, "{response}");
        // After an unusable id a later event may still report the id.
        let both = created + &lifecycle("in_progress", &id(256));
        let end = both.len() as u64;
        assert_eq!(named(&both), Some(("i".repeat(256), end)), "{response}");
    }
}
