use serde_json::{Value, json};

use super::super::reader::StreamReader;
use crate::dialect::Finish;
use crate::{
    dialect::{Dialect, Truncated},
    dialect::{error_body, error_event},
    sse::{DONE, ErrorInfo},
};

const INFO: ErrorInfo<'_> = ErrorInfo {
    code: "step_timeout",
    message: "no \"progress\"\nfor 5 s",
    run_id: Some("r1"),
    sequence: 7,
    response_id: Some("resp_\"1"),
};

const ALL: [Dialect; 4] = [
    Dialect::Any,
    Dialect::OpenAiChat,
    Dialect::OpenAiResponses,
    Dialect::Anthropic,
];

#[test]
fn the_frame_is_as_on_the_wire() {
    for dialect in [Dialect::Any, Dialect::OpenAiChat, Dialect::Anthropic] {
        assert_eq!(
            error_event(dialect, &INFO),
            concat!(
                "event: error\n",
                r#"data: {"type":"error","error":{"type":"step_timeout","code":"step_timeout","#,
                r#""message":"no \"progress\"\nfor 5 s","param":null,"run_id":"r1"},"#,
                r#""code":"step_timeout","message":"no \"progress\"\nfor 5 s","param":null,"#,
                r#""sequence_number":7}"#,
                "\n\n",
            )
        );
    }
}

#[test]
fn responses_fail_first() {
    let frames = error_event(Dialect::OpenAiResponses, &INFO);
    let frames = std::str::from_utf8(&frames).unwrap();
    let (failed, error) = frames.split_once("\n\n").unwrap();
    let failed = failed
        .strip_prefix("event: response.failed\ndata: ")
        .unwrap();
    let failed: Value = serde_json::from_str(failed).unwrap();
    assert_eq!(failed["type"], "response.failed");
    assert_eq!(failed["sequence_number"], 7);
    assert_eq!(failed["response"]["id"], "resp_\"1");
    assert_eq!(failed["response"]["status"], "failed");
    assert_eq!(
        failed["response"]["error"],
        json!({"code": "step_timeout", "message": "no \"progress\"\nfor 5 s"})
    );
    let next = ErrorInfo {
        sequence: 8,
        ..INFO
    };
    assert_eq!(error, error_event(Dialect::OpenAiChat, &next));
}

#[test]
fn a_response_that_has_no_name_does_not_fail() {
    let nameless = ErrorInfo {
        response_id: None,
        ..INFO
    };
    assert_eq!(
        error_event(Dialect::OpenAiResponses, &nameless),
        error_event(Dialect::OpenAiChat, &INFO)
    );
}

#[test]
fn every_judge_takes_the_frame_for_a_failure() {
    for dialect in ALL {
        let mut judge = StreamReader::new(dialect);
        judge.push(&error_event(dialect, &INFO));
        assert_eq!(judge.finish(), Finish::Failed);
        let failure = judge.failure().unwrap();
        assert_eq!(
            (&*failure.code, &*failure.message),
            (INFO.code, INFO.message)
        );
    }
}

#[test]
fn bodies_have_the_dialects_shape() {
    let anthropic =
        br#"{"type":"error","error":{"type":"step_timeout","message":"no \"progress\"\nfor 5 s"}}"#;
    let openai = br#"{"error":{"message":"no \"progress\"\nfor 5 s","type":"step_timeout","code":"step_timeout","param":null}}"#;
    for dialect in ALL {
        let expected = if dialect == Dialect::Anthropic {
            &anthropic[..]
        } else {
            &openai[..]
        };
        assert_eq!(error_body(dialect, &INFO), expected);
    }
}

#[test]
fn done_completes_a_chat() {
    let mut judge = StreamReader::new(Dialect::OpenAiChat);
    judge.push(DONE);
    assert_eq!(judge.finish(), Finish::Complete);
}

#[test]
fn truncated_names_the_place() {
    assert_eq!(
        Truncated::new(9).to_string(),
        "stream ended without its terminator at byte 9"
    );
}
