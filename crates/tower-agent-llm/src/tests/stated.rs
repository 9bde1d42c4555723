//! The usage that a whole document states, as a reader of its pieces finds it.

use crate::{GeneratedText, WholeAnswer};

/// Whether `stated` finds what a reader of the whole document finds; the tokens of output are the
/// result.
fn stated(document: &str) -> Option<u64> {
    let mut read = GeneratedText::default();
    read.push(document.as_bytes());
    let read = read.usage().filter(|usage| usage.output_tokens > 0);
    let stated = WholeAnswer::read(document.as_bytes()).and_then(|answer| answer.stated());
    if stated.is_some() {
        assert_eq!(stated, read, "{document}");
    }
    stated.map(|usage| usage.output_tokens)
}

#[test]
fn a_document_states_what_a_reader_finds() {
    for (document, tokens) in [
        (r#"{"usage":{"prompt_tokens":3,"completion_tokens":2}}"#, 2),
        (r#" {"usage":{"input_tokens":3,"output_tokens":2} } "#, 2),
        (
            r#"{"usage":{"output_tokens":2},"a":[{"usage":{"output_tokens":9}}]}"#,
            2,
        ),
        (
            r#"{"usage":{"output_tokens":2},"usage":{"output_tokens":1}}"#,
            1,
        ),
        (
            r#"{"timings":{"predicted_n":4},"usage":{"output_tokens":1}}"#,
            1,
        ),
        (r#"{"usage":{"output_tokens":2},"usage":7}"#, 2),
        (r#"{"a":"reason","\u0075sage":{"output_tokens":2}}"#, 2),
        (
            r#"{"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":9}}"#,
            6,
        ),
    ] {
        assert_eq!(stated(document), Some(tokens), "{document}");
    }
}

#[test]
fn any_other_document_must_be_read() {
    let deep = format!("{}1{}", "[".repeat(127), "]".repeat(127));
    let deep = format!(r#"{{"a":{deep},"usage":{{"output_tokens":2}}}}"#);
    let long = "x".repeat(4096);
    let long = format!(r#"{{"usage":{{"a":"{long}","output_tokens":2}}}}"#);
    for document in [
        "",
        "no json",
        "{}",
        r#"{"usage":{},"timings":{"prompt_n":3,"predicted_n":4}}"#,
        r#"{"usage":{"output_tokens":2},"timings":{"predicted_n":4}}"#,
        r#"{"usage":{"output_tokens":0}}"#,
        r#"{"usage":{"output_tokens":2},"usage":{"output_tokens":0}}"#,
        r#"{"usage":{"output_tokens":2}"#,
        r#"{"usage":{"output_tokens":2}} x"#,
        r#"[{"usage":{"output_tokens":2}}]"#,
        r#"{"a":{"usage":{"output_tokens":2}}}"#,
        &deep,
        &long,
    ] {
        assert_eq!(stated(document), None, "{document}");
    }
    let shallow = deep.replacen('[', "", 1).replacen(']', "", 1);
    assert_eq!(stated(&shallow), Some(2));
}
