//! covers: D7

use std::collections::VecDeque;

use super::{super::history::History, said};
use crate::dialect::Dialect;

const CHAT: &str = r#"{"model":"m","stream":true,"tools":[{"type":"function","function":{"name":"read"}}],
"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"},
{"role":"assistant","content":null,"tool_calls":[
 {"id":"a","type":"function","function":{"name":"read","arguments":"{\"x\":1,\"y\":2}"}},
 {"id":"b","type":"custom","custom":{"name":"patch","input":"free text"}}]},
{"role":"tool","tool_call_id":"a","content":"one"},
{"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"two"}]}]}"#;

const RESPONSES: &str = r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},
{"type":"reasoning","summary":[]},
{"type":"function_call","id":"fc_1","call_id":"a","name":"read","arguments":"{\"y\":2,\"x\":1}"},
{"type":"function_call_output","call_id":"a","output":"one"},
{"type":"custom_tool_call","call_id":"b","name":"patch","input":"free text"},
{"type":"custom_tool_call_output","call_id":"b","output":"two"}],
"tools":[{"type":"function","name":"read"},{"type":"namespace","tools":[]}]}"#;

const ANTHROPIC: &str = r#"{"model":"m","system":"s","messages":[{"role":"user","content":"hi"},
{"role":"assistant","content":[{"type":"text","text":"ok"},
 {"type":"tool_use","id":"a","name":"read","input":{"y":2,"x":1}},
 {"type":"tool_use","id":"b","name":"patch","input":{}}]},
{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"one"},
 {"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"two"}]},
 {"type":"text","text":"a reminder"}]}],"tools":[{"name":"read","input_schema":{}}]}"#;

fn read(body: &str) -> History<'_> {
    History::read(&Dialect::Any, body.as_bytes(), &VecDeque::new()).unwrap()
}

#[test]
fn each_dialect_says_its_calls_and_results_in_order() {
    let expected = ["said", "read(a)", "patch(b)", "=a", "=b"];
    assert_eq!(said(CHAT), expected);
    assert_eq!(said(ANTHROPIC), expected);
    let in_turn = ["said", "read(a)", "=a", "patch(b)", "=b"];
    assert_eq!(said(RESPONSES), in_turn);
}

#[test]
fn equal_arguments_are_equal_in_every_dialect() {
    let first = |body| match read(body).events.remove(1) {
        super::super::item::ConversationEvent::Call(call) => call.arguments,
        other => panic!("{other:?}"),
    };

    assert_eq!(first(CHAT), first(RESPONSES));
    assert_eq!(first(CHAT), first(ANTHROPIC));
}

#[test]
fn declared_tools_are_read_and_those_without_a_name_are_known_to_be_there() {
    let name = crate::conversation::item::digest(&b"read"[..]);
    let tools = |body| {
        let history = read(body);
        (history.tools.clone(), history.more_tools)
    };

    assert_eq!(tools(CHAT), (vec![name], false));
    assert_eq!(tools(ANTHROPIC), (vec![name], false));
    assert_eq!(tools(RESPONSES), (vec![name], true));
}

#[test]
fn the_shape_is_known() {
    let shape = |body| {
        let history = read(body);
        (history.is_anthropic, history.is_responses, history.streams)
    };

    assert_eq!(shape(CHAT), (false, false, true));
    assert_eq!(shape(RESPONSES), (false, true, false));
    assert_eq!(shape(ANTHROPIC), (true, false, false));
}

#[test]
fn calls_without_ids_are_read_too() {
    let body = r#"{"messages":[{"role":"assistant","function_call":{"name":"read","arguments":"{}"}},
        {"role":"function","name":"read","content":"x"},
        {"role":"assistant","tool_calls":[{"id":"","function":{"name":"list","arguments":{}}}]},
        {"role":"tool","content":"y"}]}"#;

    assert_eq!(said(body), ["read(-)", "=-", "list(-)", "=-"]);
}

#[test]
fn the_one_call_of_the_older_api_is_read_beside_no_others() {
    for none in ["null", "[]", "[ ]"] {
        let body = format!(
            r#"{{"messages":[{{"role":"assistant","content":null,"tool_calls":{none},
                "function_call":{{"name":"read","arguments":"{{}}"}}}},
                {{"role":"assistant","content":"done","tool_calls":{none},"function_call":null}}]}}"#
        );
        assert_eq!(said(&body), ["read(-)", "answered"], "{none}");
    }
    let body = r#"{"messages":[{"role":"assistant","function_call":{"name":"list"},
        "tool_calls":[{"id":"a","function":{"name":"read"}}]}]}"#;
    assert_eq!(said(body), ["read(a)"]);
}

/// covers: C5
#[test]
fn only_what_a_user_said_last_and_in_text_is_a_text() {
    let cases = [
        (r#"{"input":"sto\u0070"}"#, Some("stop")),
        (
            r#"{"messages":[{"role":"user","content":"stop"}]}"#,
            Some("stop"),
        ),
        (
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"st"},{"type":"text","text":"op"}]},
                {"role":"system","content":"be brief"}]}"#,
            Some("stop"),
        ),
        (
            r#"{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"stop"}]}]}"#,
            Some("stop"),
        ),
        (
            r#"{"messages":[{"role":"user","content":"stop"},{"role":"assistant","content":"ok"}]}"#,
            None,
        ),
        (
            r#"{"input":[{"role":"user","content":"stop"},{"type":"reasoning","summary":[]}]}"#,
            None,
        ),
        (
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"stop"},{"type":"image_url"}]}]}"#,
            None,
        ),
        (
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"stop"}]}]}"#,
            None,
        ),
        (r#"{"messages":[{"role":"system","content":"stop"}]}"#, None),
        (r#"{"messages":[]}"#, None),
    ];
    for (body, text) in cases {
        assert_eq!(read(body).said().as_deref(), text, "{body}");
    }
    let long = format!(r#"{{"input":"{}"}}"#, "stop ".repeat(300));
    assert_eq!(read(&long).said(), None);
}

#[test]
fn what_is_no_conversation_is_nothing_to_read() {
    let deep = "[".repeat(100_000);
    let bodies = [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "plain text",
        r#"{"model":"m"}"#,
        r#"{"messages":[}"#,
        r#"{"messages":[{"role":"user"]}"#,
        "\u{0}\u{1}",
        &deep,
        &format!(r#"{{"messages":{deep}"#),
    ];
    for body in bodies {
        assert!(
            History::read(&Dialect::Any, body.as_bytes(), &VecDeque::new()).is_none(),
            "{body:.40}"
        );
    }
    let odd = [
        r#"{"messages":7}"#,
        r#"{"messages":[1,"x",null,[],{}]}"#,
        r#"{"input":["text","text"]}"#,
        r#"{"messages":[{"role":["assistant"],"tool_calls":{"a":1},"content":7}]}"#,
        r#"{"messages":[{"role":"assistant","tool_calls":[1,{"function":"x"},{"function":{}}]}]}"#,
    ];
    for body in odd {
        assert_eq!(said(body), [""; 0], "{body}");
    }
}

#[test]
fn another_apis_key_beside_it_hides_nothing_and_says_nothing() {
    let read = |dialect, body: &str| {
        let history = History::read(&dialect, body.as_bytes(), &VecDeque::new());
        history.map(|history| super::words(&history))
    };
    let chat = Some(
        ["said", "read(a)", "patch(b)", "=a", "=b"]
            .map(str::to_owned)
            .to_vec(),
    );
    let responses = Some(
        ["said", "read(a)", "=a", "patch(b)", "=b"]
            .map(str::to_owned)
            .to_vec(),
    );
    for more in [
        r#""""#,
        "null",
        "[]",
        r#""stop""#,
        r#"[{"role":"user","content":"x"}]"#,
    ] {
        let before = |body: &str, key| body.replacen('{', &format!(r#"{{"{key}":{more},"#), 1);
        let behind = |body: &str, key| format!(r#"{},"{key}":{more}}}"#, &body[..body.len() - 1]);
        for both in [before(CHAT, "input"), behind(CHAT, "input")] {
            assert_eq!(read(Dialect::OpenAiChat, &both), chat, "{both}");
            assert_eq!(read(Dialect::Any, &both), chat, "{both}");
        }
        for both in [before(RESPONSES, "messages"), behind(RESPONSES, "messages")] {
            assert_eq!(read(Dialect::OpenAiResponses, &both), responses, "{both}");
            let any = read(Dialect::Any, &both).unwrap();
            assert!(
                any.ends_with(&responses.as_ref().unwrap()[1..]),
                "{both}: {any:?}"
            );
        }
    }
    assert_eq!(read(Dialect::OpenAiChat, RESPONSES), None);
    assert_eq!(read(Dialect::Anthropic, RESPONSES), None);
    assert_eq!(read(Dialect::OpenAiResponses, CHAT), None);
}

#[test]
fn what_is_skipped_may_be_nested_to_any_depth() {
    for depth in [128, 129, 100_000] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let deep = open.repeat(depth) + "1" + &close.repeat(depth);
            let body = CHAT.replacen('{', &format!(r#"{{"metadata":{deep},"#), 1);
            assert_eq!(said(&body), said(CHAT), "{depth}");
        }
    }
}
