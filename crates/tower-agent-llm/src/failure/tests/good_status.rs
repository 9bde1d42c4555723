//! Tests of errors under 200, and of answers that only look like errors.

use super::{
    super::class::FailureClass::{Auth, Overloaded, RateLimit, Server, Transport},
    class, judge,
};
use crate::JsonOutline;

#[test]
fn an_error_under_a_good_status_is_a_failure() {
    let cases = [
        (
            r#"{"error":{"code":502,"message":"Provider returned error"}}"#,
            Server,
            Some(502),
        ),
        (
            r#"{"id":"gen-1","choices":[ ],"error":{"code":429,"message":"Rate limited"}}"#,
            RateLimit,
            Some(429),
        ),
        (
            r#"{"error":{"code":"401","message":"User not found."}}"#,
            Auth,
            Some(401),
        ),
        (r#"{"error":{"code":200,"message":"what?"}}"#, Server, None),
        (r#"{"error":"it broke"}"#, Server, None),
        (
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}"#,
            Overloaded,
            None,
        ),
        (
            r#"{"type":"error","code":"rate_limit_exceeded","message":"x"}"#,
            RateLimit,
            None,
        ),
        (
            r#"{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error","message":"x"},"output":[]}"#,
            Server,
            None,
        ),
        (
            r#"{"id":"resp_1","object":"response","status":"failed","error":{"code":"rate_limit_exceeded","message":"x"},"output":[{"type":"message"}]}"#,
            RateLimit,
            None,
        ),
        (r#"{"error":{}}"#, Server, None),
    ];
    for (body, expected, status) in cases {
        let failure = judge(200, &[], body).expect(body);
        assert_eq!(failure.class, expected, "{body}");
        assert_eq!(failure.status.map(|status| status.as_u16()), status);
    }
    assert_eq!(class(201, cases[0].0), Some(Server));
}

#[test]
fn healthy_answers_are_healthy() {
    let cases = [
        "",
        "{}",
        "[1]",
        r#"{"error":null,"choices":[{"message":{"content":"hi"}}]}"#,
        r#"{"id":"resp_1","status":"completed","error":null,"output":[{"type":"message"}]}"#,
        r#"{"status":"failed","error":null}"#,
        r#"{"error":null}"#,
        r#"{"error":""}"#,
        r#"{"error":false}"#,
        r#"{"error":0}"#,
        r#"{"object":"fine_tuning.job","error":{"code":null,"message":null}}"#,
        // Answers that quote an error, as text and as a tool's arguments.
        r#"{"choices":[{"message":{"content":"{\"error\":{\"code\":\"insufficient_quota\"}}"}}]}"#,
        r#"{"type":"message","content":[{"type":"tool_use","input":{"error":{"type":"overloaded_error"}}}]}"#,
        r#"{"type":"message","content":[{"type":"text","text":"HTTP 529 overloaded_error \"error\""}]}"#,
        r#"{"choices":[{"error":"no"}],"usage":{"error":"x"}}"#,
        // An answer with an error beside it, which is a warning.
        r#"{"choices":[{"message":{"content":"hi"}}],"error":{"message":"x"}}"#,
        r#"{"choices":[{"message":{"content":"hi"}}],"error":{}}"#,
        r#"{"choices":[{"message":{"content":"hi"},"error":{}}]}"#,
        r#"{"data":[{"embedding":[0.1]}],"error":{"message":"x"}}"#,
        r#"{"output":[{"type":"message"}],"error":{"message":"x"}}"#,
        r#"{"content":[{"type":"text"}],"error":{"message":"x"}}"#,
        r#"{"candidates":[{"index":0}],"error":{"message":"x"}}"#,
        r#"{"content":"<html>","error":null}"#,
    ];
    for body in cases {
        assert_eq!(class(200, body), None, "{body}");
    }
}

#[test]
fn a_page_under_a_good_status_is_a_failure() {
    let html = [("content-type", "Text/HTML; charset=utf-8")];
    let pages = [
        "<!DOCTYPE html>\n<html>",
        "\u{feff}\n <HTML lang=en>",
        "<!doctype HTML PUBLIC>",
    ];
    for page in pages {
        assert_eq!(class(200, page), Some(Server), "{page}");
    }
    assert_eq!(judge(200, &html, "<p>Sign in").unwrap().class, Server);
    assert_eq!(judge(200, &html, " {\"choices\":[]}"), None);
    let text = [("content-type", "text/plain")];
    assert_eq!(judge(200, &text, "<p>Sign in"), None);
    assert_eq!(class(302, pages[0]), None);
}

#[test]
fn what_is_announced_as_json_and_is_none_is_a_failure() {
    let broken = [
        "{malformed json: <<<chaos>>>",
        r#"{"stop_reason":"refusal""#,
        r#"{"choices":[{"message":{"content":"hi"}}]"#,
        r#"[{"embedding":[0.1]},"#,
        "not JSON, with an \"error\" in it",
        "{",
        "data: {}\n\n",
        "\"half",
        "tru",
    ];
    for body in broken {
        let said = |kind| judge(200, &[("content-type", kind)], body).map(|it| it.class);
        assert_eq!(class(200, body), Some(Transport), "{body}");
        assert_eq!(said("Application/JSON; charset=utf-8"), Some(Transport));
        assert_eq!(said("application/problem+json"), Some(Transport));
        assert_eq!(said("text/plain"), None, "{body}");
        let encoded = [
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
        ];
        assert_eq!(judge(200, &encoded, body), None, "{body}");
    }
    let long = format!("{{{}", " ".repeat(100_000));
    assert_eq!(class(200, &long), Some(Transport));
    let json_seq = [("content-type", "application/json-seq")];
    assert_eq!(judge(200, &json_seq, "\u{1e}{}\n"), None);
    for body in [
        "",
        " \n",
        "\u{feff}{}",
        " [ ]\n",
        "null",
        "true",
        "\"ok\"",
        "-1.5",
    ] {
        assert_eq!(class(200, body), None, "{body}");
    }
}

#[test]
fn the_text_of_a_cut_answer_is_no_message_of_its_upstream() {
    let cut = r#"{"choices":[{"message":{"content":"Please try again in 5 minutes"#;
    let json = [("content-type", "application/json")];
    let failure = judge(200, &json, cut).unwrap();
    assert_eq!((failure.class, &*failure.message), (Transport, ""));
    assert_eq!(failure.retry_after, None);
}

#[test]
fn no_part_of_a_json_document_is_taken_for_the_whole() {
    let whole = r#" {"choices":[{"message":{"content":"a } \\\" ] {[ \\\\"},"n":[[],{}]}],"usage":{"total":3}} "#;
    serde_json::from_str::<serde_json::Value>(whole).unwrap();
    let end = whole.trim_end().len();
    for length in 2..whole.len() {
        for piece in [1, 2, 7, 1000] {
            let mut outline = JsonOutline::default();
            let pieces = whole.as_bytes()[..length].chunks(piece);
            pieces.for_each(|piece| outline.push(piece));
            assert_eq!(outline.is_whole(), length >= end, "{}", &whole[..length]);
        }
        let class = class_of_json(&whole[..length]);
        assert_eq!(class.is_none(), length >= end, "{}", &whole[..length]);
    }
    for broken in ["}", "]", "{}]", "[{}]]"] {
        assert_eq!(class_of_json(broken), Some(Transport), "{broken}");
    }
}

fn class_of_json(body: &str) -> Option<super::super::class::FailureClass> {
    let json = [("content-type", "application/json")];
    Some(judge(200, &json, body)?.class)
}
