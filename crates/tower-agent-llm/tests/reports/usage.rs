//! The tokens of a stream.

use tower_agent_llm::dialect::{Dialect, Finish};

use super::{named, read, unnamed};

/// The input, cached and output tokens of a message with these `usage` objects at its start and its end.
fn of_message(start: &str, end: &str) -> (u64, u64, u64) {
    let start = format!(r#"{{"type":"message_start","message":{{"usage":{start}}}}}"#);
    let end =
        format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{end}}}"#);
    let stream = named([
        ("message_start", &*start),
        ("message_delta", &*end),
        ("message_stop", r#"{"type":"message_stop"}"#),
    ]);
    let usage = read(Dialect::Anthropic, stream).usage.unwrap();
    (
        usage.input_tokens,
        usage.cached_input_tokens,
        usage.output_tokens,
    )
}

/// modelbus/one-api-pro#13, envoyproxy/ai-gateway#2236: the counts at the end of a message repeat those at its start,
/// and were added to them. Expected: each count once, whichever event states it.
#[test]
fn a_count_that_is_repeated_counts_once() {
    for (start, end, expected) in [
        (
            r#"{"input_tokens":27,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":2}"#,
            r#"{"input_tokens":27,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":47}"#,
            (27, 0, 47),
        ),
        (
            r#"{"input_tokens":9,"cache_read_input_tokens":1,"output_tokens":0}"#,
            r#"{"input_tokens":9,"cache_read_input_tokens":1,"output_tokens":16}"#,
            (9, 1, 16),
        ),
        (
            r#"{"input_tokens":9,"cache_read_input_tokens":1,"output_tokens":0}"#,
            r#"{"output_tokens":16}"#,
            (9, 1, 16),
        ),
        // Proxies write zeros where they know nothing.
        (
            r#"{"input_tokens":9,"cache_read_input_tokens":1,"output_tokens":0}"#,
            r#"{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":16}"#,
            (9, 1, 16),
        ),
        (
            r#"{"input_tokens":0,"output_tokens":0}"#,
            r#"{"input_tokens":19,"output_tokens":16}"#,
            (19, 0, 16),
        ),
    ] {
        assert_eq!(of_message(start, end), expected, "{start} {end}");
    }
}

/// maximhq/bifrost#5354, maximhq/bifrost#6598: Kimi and Qwen begin a message with the whole prompt as its input, and
/// end it with what came from no cache, beside the cached tokens. The greater of both inputs counted the cached
/// tokens twice. Expected: the split at the end.
#[test]
fn an_input_that_was_whole_before_its_split_counts_once() {
    assert_eq!(
        of_message(
            r#"{"input_tokens":8834,"output_tokens":0}"#,
            r#"{"input_tokens":18,"output_tokens":426,"cache_creation_input_tokens":0,"cache_read_input_tokens":8831,"cache_creation":{"ephemeral_5m_input_tokens":0}}"#,
        ),
        (18, 8831, 426)
    );
    // The same with counts of zero at the start, and with tokens that were written to the cache.
    assert_eq!(
        of_message(
            r#"{"input_tokens":9000,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}"#,
            r#"{"input_tokens":100,"cache_creation_input_tokens":900,"cache_read_input_tokens":8000,"output_tokens":5}"#,
        ),
        (100, 8000, 5)
    );
    // Nothing is left beside the cache.
    assert_eq!(
        of_message(
            r#"{"input_tokens":8000,"output_tokens":1}"#,
            r#"{"input_tokens":0,"cache_read_input_tokens":8000,"output_tokens":5}"#,
        ),
        (0, 8000, 5)
    );
}

/// AtomaAI/atoma-proxy#534, tensorzero/tensorzero#2078: a usage in each chunk ended the stream early, and one behind
/// the last choice was lost. Expected: a usage ends nothing, and the last totals count.
#[test]
fn a_usage_in_each_chunk_ends_nothing() {
    let chunk = |output: u32, finish: &str| {
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"x"}},"finish_reason":{finish}}}],"usage":{{"prompt_tokens":7,"completion_tokens":{output},"total_tokens":{}}}}}"#,
            7 + output
        )
    };
    let events = [chunk(1, "null"), chunk(2, "null"), chunk(3, "\"stop\"")];
    let last =
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4,"total_tokens":11}}"#;
    let open = read(
        Dialect::OpenAiChat,
        unnamed(events[..2].iter().map(|it| &**it)),
    );
    assert_eq!((open.finish, open.terminator), (Finish::Truncated, None));
    assert_eq!(open.usage.unwrap().output_tokens, 2);
    let whole = unnamed(events.iter().map(|it| &**it).chain([last, "[DONE]"]));
    let whole = read(Dialect::OpenAiChat, whole);
    assert_eq!(whole.finish, Finish::Complete);
    let usage = whole.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens), (7, 4));
}
