use super::{super::reader::StreamReader, judged};
use crate::dialect::Dialect;
use crate::dialect::Finish;

#[test]
fn paths_tell_the_dialect() {
    for (path, expected) in [
        ("/v1/chat/completions", Dialect::OpenAiChat),
        ("/v1/chat/completions/", Dialect::OpenAiChat),
        ("chat/completions", Dialect::OpenAiChat),
        (
            "/openai/deployments/x/chat/completions",
            Dialect::OpenAiChat,
        ),
        ("/v1/responses", Dialect::OpenAiResponses),
        ("/v1/messages", Dialect::Anthropic),
        ("/v1/messages/count_tokens", Dialect::Anthropic),
        ("/v1/completions", Dialect::Any),
        ("/v1/myresponses", Dialect::Any),
        ("/v1/xchat/completions", Dialect::Any),
        ("/v1/responses/resp_1", Dialect::Any),
        ("/v1/embeddings", Dialect::Any),
        ("/", Dialect::Any),
        ("", Dialect::Any),
    ] {
        assert_eq!(Dialect::from_path(path), expected, "{path}");
    }
}

#[test]
fn the_first_known_event_decides() {
    for (data, expected) in [
        (r#"{"choices":[]}"#, Dialect::OpenAiChat),
        (r#"{"object":"chat.completion.chunk"}"#, Dialect::OpenAiChat),
        ("[DONE]", Dialect::OpenAiChat),
        (r#"{"type":"response.created"}"#, Dialect::OpenAiResponses),
        (r#"{"type":"message_start"}"#, Dialect::Anthropic),
        (r#"{"type":"ping"}"#, Dialect::Any),
        (r#"{"type":"content_block_stop"}"#, Dialect::Anthropic),
        (
            r#"{"type":"of_the_future","nested":{"choices":[]}}"#,
            Dialect::Any,
        ),
        (r#"{"error":{"message":"m"}}"#, Dialect::Any),
        ("nonsense", Dialect::Any),
    ] {
        assert_eq!(judged(Dialect::Any, &[data]).dialect(), expected, "{data}");
        assert_eq!(
            judged(Dialect::Any, &["{}", data]).dialect(),
            expected,
            "{data}"
        );
    }
}

#[test]
fn the_event_that_decides_is_judged() {
    let judge = judged(
        Dialect::Any,
        &[r#"{"choices":[{"delta":{"content":"x"}}]}"#],
    );
    assert_eq!(judge.commit(), Some(judge.position()));
}

#[test]
fn a_ping_is_life_in_every_dialect_and_decides_none() {
    let ping = r#"{"type":"ping"}"#;
    let chunk = r#"{"choices":[{"delta":{"content":"x"}}]}"#;
    let judge = judged(Dialect::Any, &[ping, chunk, "[DONE]"]);
    assert_eq!(
        (judge.dialect(), judge.finish()),
        (Dialect::OpenAiChat, Finish::Complete)
    );
    let mut judge = StreamReader::new(Dialect::Any);
    for ping in ["event: ping\ndata: {}\n\n", "event: ping\ndata:\n\n"] {
        assert!(!judge.push(ping.as_bytes()).progress, "{ping}");
    }
    assert_eq!((judge.dialect(), judge.heartbeats()), (Dialect::Any, 2));
}

#[test]
fn undecided_is_never_truncated() {
    assert_eq!(StreamReader::new(Dialect::Any).finish(), Finish::Unknown);
    let judge = judged(Dialect::Any, &[r#"{"hello":1}"#]);
    assert_eq!(
        (judge.finish(), judge.progressed()),
        (Finish::Unknown, judge.position())
    );
    assert_eq!(
        judged(Dialect::Any, &[r#"{"type":"message_start"}"#]).finish(),
        Finish::Truncated
    );
}

#[test]
fn an_undecided_error_is_an_error() {
    let judge = judged(Dialect::Any, &[r#"{"error":{"code":"c"}}"#]);
    assert_eq!(
        (judge.dialect(), judge.finish()),
        (Dialect::Any, Finish::Failed)
    );
    assert_eq!(judge.failure().expect("a failure").code, "c");
    let mut judge = StreamReader::new(Dialect::Any);
    assert!(judge.push(b"event: error\ndata: x\n\n").ended);
    assert_eq!(
        (judge.dialect(), judge.finish()),
        (Dialect::Any, Finish::Failed)
    );
}
