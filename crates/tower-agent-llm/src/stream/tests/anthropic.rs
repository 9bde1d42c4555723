use super::{judged, verdict};
use crate::dialect::Finish;
use crate::{
    dialect::Dialect,
    sse::EventKind::{self, Content, Error, Life, Prelude, Progress, Terminator},
};

fn kind(data: &str) -> EventKind {
    super::kind(Dialect::Anthropic, "", data)
}

fn block(block: &str) -> EventKind {
    kind(&format!(
        r#"{{"type":"content_block_start","index":0,"content_block":{block}}}"#
    ))
}

#[test]
fn deltas_are_content() {
    for name in [
        "text_delta",
        "thinking_delta",
        "signature_delta",
        "input_json_delta",
    ] {
        let data = format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"{name}","text":"x"}}}}"#
        );
        let verdict = verdict(Dialect::Anthropic, "content_block_delta", &data);
        assert_eq!(verdict.kind, Content);
        assert_eq!(
            verdict.reasoning,
            name.starts_with(['t', 's']) && name != "text_delta"
        );
    }
}

#[test]
fn a_delta_that_says_nothing_is_no_content() {
    for delta in [
        r#"{"type":"text_delta","text":""}"#,
        r#"{"text":"","type":"text_delta"}"#,
        r#"{"type":"thinking_delta","thinking":""}"#,
        r#"{"type":"signature_delta","signature":""}"#,
        r#"{"type":"input_json_delta","partial_json":""}"#,
        r#"{"type":"text_delta","text":"x","text":""}"#,
        r#"{"type":"text_delta","text":null}"#,
        r#"{"type":"text_delta"}"#,
        "{}",
    ] {
        let data = format!(r#"{{"type":"content_block_delta","index":0,"delta":{delta}}}"#);
        assert_eq!(kind(&data), Prelude, "{delta}");
    }
    for delta in [
        r#"{"type":"text_delta","text":" "}"#,
        r#"{"type":"input_json_delta","partial_json":"{"}"#,
        r#"{"type":"citations_delta","citation":{"type":"page_location"}}"#,
        r#"{"type":"of_the_future","what":"x"}"#,
    ] {
        let data = format!(r#"{{"type":"content_block_delta","index":0,"delta":{delta}}}"#);
        assert_eq!(kind(&data), Content, "{delta}");
    }
}

#[test]
fn a_delta_that_is_too_long_to_be_read_is_content() {
    let mut judge = judged(Dialect::Anthropic, &[]);
    judge.push(b"event: content_block_delta\ndata: {\"delta\":{\"partial_json\":\"");
    judge.push(&vec![b'x'; 2 << 20]);
    assert!(judge.push(b"\"}}\n\n").content);
}

#[test]
fn starts_of_blocks() {
    assert_eq!(
        block(r#"{"type":"tool_use","id":"t","name":"n","input":{}}"#),
        Content
    );
    assert_eq!(
        block(r#"{"type":"server_tool_use","name":"web_search"}"#),
        Content
    );
    assert_eq!(
        block(r#"{"type":"web_search_tool_result","content":[]}"#),
        Content
    );
    assert_eq!(block(r#"{"type":"redacted_thinking","data":"x"}"#), Content);
    assert_eq!(block(r#"{"text":"x","type":"text"}"#), Content);
    assert_eq!(block(r#"{"type":"text","text":""}"#), Prelude);
    assert_eq!(
        block(r#"{"type":"thinking","thinking":"","signature":""}"#),
        Prelude
    );
    assert_eq!(block(r#"{"type":"of_the_future"}"#), Progress);
    assert_eq!(block("null"), Progress);
    assert_eq!(kind(r#"{"type":"content_block_start"}"#), Progress);
}

#[test]
fn the_other_rows() {
    assert_eq!(
        kind(r#"{"type":"message_start","message":{"type":"message"}}"#),
        Prelude
    );
    assert_eq!(kind(r#"{"type":"ping"}"#), Life);
    assert_eq!(kind(r#"{"type":"content_block_stop","index":0}"#), Progress);
    assert_eq!(kind(r#"{"type":"of_the_future"}"#), Progress);
    assert_eq!(kind(r#"{"type":"message_stop"}"#), Terminator);
    assert_eq!(
        kind(r#"{"type":"error","error":{"type":"overloaded_error"}}"#),
        Error
    );
    assert_eq!(kind(r#"{"error":{"type":"overloaded_error"}}"#), Error);
    assert_eq!(kind("{"), Progress);
}

#[test]
fn the_ping_that_opens_a_stream_is_no_heartbeat() {
    let ping = r#"{"type":"ping"}"#;
    let content = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}"#;
    let heartbeats = |events: &[&str]| judged(Dialect::Anthropic, events).heartbeats();

    assert_eq!(heartbeats(&[ping]), 0);
    assert_eq!(heartbeats(&[ping, ping]), 1);
    assert_eq!(heartbeats(&[content, ping]), 1);
    assert_eq!(judged(Dialect::OpenAiChat, &[ping]).heartbeats(), 1);
    assert_eq!(judged(Dialect::OpenAiChat, &["x\n: a\n:"]).heartbeats(), 2);
}

#[test]
fn without_a_type_the_name_counts() {
    assert_eq!(
        super::kind(Dialect::Anthropic, "message_stop", "{}"),
        Terminator
    );
    assert_eq!(super::kind(Dialect::Anthropic, "ping", ""), Life);
    assert_eq!(
        super::kind(Dialect::Anthropic, "message_stop", r#"{"type":"ping"}"#),
        Life
    );
}

#[test]
fn usage_is_merged() {
    let judge = judged(
        Dialect::Anthropic,
        &[
            r#"{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}"#,
        ],
    );
    assert_eq!(
        judge.usage().map(|it| (it.input_tokens, it.output_tokens)),
        Some((25, 15))
    );
    assert_eq!(judge.stop_reason(), Some("end_turn"));
}

#[test]
fn a_message_with_a_stop_reason_is_finished() {
    let delta = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{}}"#;
    let judge = judged(Dialect::Anthropic, &[delta]);
    assert_eq!(judge.finish(), Finish::Finished);
    for none in ["null", r#""""#] {
        let delta = format!(r#"{{"type":"message_delta","delta":{{"stop_reason":{none}}}}}"#);
        let judge = judged(Dialect::Anthropic, &[&delta]);
        assert_eq!(judge.finish(), Finish::Truncated, "{none}");
        assert_eq!(judge.stop_reason(), None, "{none}");
    }
}

#[test]
fn message_stop_completes() {
    let judge = judged(Dialect::Anthropic, &[r#"{"type":"message_stop"}"#]);
    assert_eq!(judge.finish(), Finish::Complete);
}

#[test]
fn an_error_says_why() {
    let data = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let judge = judged(Dialect::Anthropic, &[data]);
    let failure = judge.failure().expect("a failure");
    assert_eq!(
        (&*failure.kind, &*failure.message),
        ("overloaded_error", "Overloaded")
    );
    assert_eq!(failure.body, data);
}
