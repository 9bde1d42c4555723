//! The bytes that a model generated since its upstream last stated its tokens.

use super::streams::counting;
use crate::{dialect::Dialect, sse::MAX_EVENT};

fn unstated(dialect: Dialect, events: &[&str]) -> u64 {
    let mut reader = counting(dialect);
    for event in events {
        reader.push(format!("data: {event}\n\n").as_bytes());
    }
    reader.unstated_bytes()
}

#[test]
fn the_text_of_each_dialect_is_counted_and_its_padding_is_not() {
    let chat = Dialect::OpenAiChat;
    let responses = Dialect::OpenAiResponses;
    for (dialect, event, bytes) in [
        (chat, r#"{"choices":[{"delta":{"content":"a\n"}}]}"#, 3),
        (
            chat,
            r#"{"choices":[{"delta":{"reasoning_content":"abc"}}]}"#,
            3,
        ),
        // Twice the same text: OpenRouter has details beside it, and vLLM its former key.
        (
            chat,
            r#"{"choices":[{"delta":{"reasoning":"abc","reasoning_details":[{"type":"reasoning.text","text":"abc"}]}}]}"#,
            3,
        ),
        (
            chat,
            r#"{"choices":[{"delta":{"reasoning_content":"abc","reasoning":"abc"}}]}"#,
            3,
        ),
        (
            chat,
            r#"{"choices":[{"delta":{"reasoning_details":[{"text":"ab"},{"text":"c"}]}}]}"#,
            3,
        ),
        (chat, r#"{"choices":[{"delta":{"refusal":"no"}}]}"#, 2),
        (
            Dialect::Anthropic,
            r#"{"type":"content_block_start","content_block":{"type":"mcp_tool_result","content":[{"type":"text","text":"found"}]}}"#,
            0,
        ),
        (
            chat,
            r#"{"choices":[{"delta":{"tool_calls":[{"id":"call_1","function":{"name":"f","arguments":"{}"}}]}}]}"#,
            2,
        ),
        (
            chat,
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            0,
        ),
        (
            responses,
            r#"{"type":"response.output_text.delta","delta":"abcd","obfuscation":"xxxxxxxx"}"#,
            4,
        ),
        // The whole text once more.
        (
            responses,
            r#"{"type":"response.output_text.done","text":"abcd"}"#,
            0,
        ),
        (
            Dialect::Anthropic,
            r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            2,
        ),
        (
            Dialect::Anthropic,
            r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
            2,
        ),
        (
            Dialect::Anthropic,
            r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"abc"}}"#,
            0,
        ),
        // The result of a tool that the upstream ran; its type may come last.
        (
            Dialect::Anthropic,
            r#"{"type":"content_block_start","content_block":{"content":[{"type":"text","text":"abc"}],"type":"mcp_tool_result"}}"#,
            0,
        ),
        (
            responses,
            r#"{"type":"response.audio.delta","delta":"QUJD"}"#,
            0,
        ),
    ] {
        // Twice: the second event is read by the shape of the first one.
        assert_eq!(unstated(dialect, &[event, event]), 2 * bytes, "{event}");
    }
}

#[test]
fn a_stated_number_includes_the_text_before_it_and_that_of_its_own_event() {
    let text = r#"{"choices":[{"delta":{"content":"abc"}}]}"#;
    let stated = [1, 2].map(|tokens| {
        let choices = r#""choices":[{"delta":{"content":"abc"}}]"#;
        format!(r#"{{{choices},"usage":{{"completion_tokens":{tokens}}}}}"#)
    });
    let of = |events: &[&str]| unstated(Dialect::OpenAiChat, events);
    assert_eq!(of(&[text, &stated[0]]), 0);
    assert_eq!(of(&[text, &stated[0], text]), 3);
    assert_eq!(
        of(&[text, &stated[0], &stated[0]]),
        3,
        "the number is no news"
    );
    assert_eq!(of(&[text, &stated[0], text, &stated[1]]), 0);
    let zero = r#"{"choices":[],"usage":{"completion_tokens":0}}"#;
    assert_eq!(of(&[text, zero]), 3, "none for a text is no number");
    assert_eq!(of(&[zero, text, &stated[0]]), 0);
}

/// The padding makes the second event too long; neither counts.
#[test]
fn the_text_of_an_event_that_is_too_long_is_counted_whole() {
    for (dialect, event) in [
        (
            Dialect::OpenAiChat,
            r#"{"pad":"P","choices":[{"delta":{"content":"T"}}]}"#,
        ),
        (
            Dialect::OpenAiChat,
            r#"{"pad":"P","choices":[{"delta":{"tool_calls":[{"function":{"arguments":"T"}}]}}]}"#,
        ),
        (
            Dialect::Anthropic,
            r#"{"pad":"P","type":"content_block_delta","delta":{"type":"text_delta","text":"T"}}"#,
        ),
        (
            Dialect::OpenAiResponses,
            r#"{"pad":"P","type":"response.output_text.delta","delta":"T"}"#,
        ),
    ] {
        let text = "a\\n\u{e9}".repeat(50_000);
        let event = event.replace('T', &text);
        let short = unstated(dialect, &[&event.replace('P', "p")]);
        let long = unstated(dialect, &[&event.replace('P', &"p".repeat(MAX_EVENT))]);
        assert_eq!(short, text.len() as u64, "{event:.100}");
        assert_eq!(long, short, "{event:.100}");
    }
}
