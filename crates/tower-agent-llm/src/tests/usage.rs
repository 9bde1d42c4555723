//! The counts of `usage` objects, as upstreams write them.
//!
//! covers: H8

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    WholeAnswer,
    dialect::{Dialect, Usage},
    stream::StreamReader,
};

/// The input, output and cached tokens of a `usage` object; `None` if it says nothing.
fn counted(usage: &str) -> Option<[u64; 3]> {
    let usage = Usage::of_object(usage.as_bytes())?;
    Some(told(&usage))
}

fn told(usage: &Usage) -> [u64; 3] {
    [
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
    ]
}

#[test]
fn counts_are_read_however_they_are_written() {
    for (number, count) in [
        ("7000", 7000),
        ("7000.0", 7000),
        ("7e3", 7000),
        ("7.0E+3", 7000),
        ("7000.2", 7001),
        ("99999999999999999999", u64::MAX),
        ("1e300", u64::MAX),
        ("0", 0),
        ("-0", 0),
    ] {
        let usage = format!(r#"{{"prompt_tokens":{number},"completion_tokens":1}}"#);
        assert_eq!(counted(&usage), Some([count, 1, 0]), "{number}");
    }
}

#[test]
fn a_count_that_cannot_be_read_voids_no_other() {
    for value in ["-7", "null", "\"7\"", "[7]", "{}", "true"] {
        for key in ["prompt_tokens", "cached_tokens", "total_tokens"] {
            let usage = json!({"prompt_tokens": 5, "completion_tokens": 9});
            let mut usage = usage.as_object().unwrap().clone();
            usage.insert(key.into(), serde_json::from_str(value).unwrap());
            let usage = Value::Object(usage).to_string();
            let input = if key == "prompt_tokens" { 0 } else { 5 };
            assert_eq!(counted(&usage), Some([input, 9, 0]), "{usage}");
        }
    }
}

#[test]
fn reasoning_beside_the_completion_is_output() {
    // xAI counts it in the total alone, OpenAI in the completion.
    let beside = r#"{"prompt_tokens":10120,"completion_tokens":1499,"total_tokens":14428,"prompt_tokens_details":{"cached_tokens":128},"completion_tokens_details":{"reasoning_tokens":2809}}"#;
    assert_eq!(counted(beside), Some([10120, 4308, 128]));
    let within = r#"{"prompt_tokens":500,"completion_tokens":500,"total_tokens":1000,"completion_tokens_details":{"reasoning_tokens":200}}"#;
    assert_eq!(counted(within), Some([500, 500, 0]));
    let less = r#"{"prompt_tokens":500,"completion_tokens":500,"total_tokens":7}"#;
    assert_eq!(counted(less), Some([500, 500, 0]));
    let unknown = r#"{"prompt_tokens":null,"completion_tokens":5,"total_tokens":900}"#;
    assert_eq!(counted(unknown), Some([0, 5, 0]));
    let embedding = r#"{"prompt_tokens":5,"total_tokens":5}"#;
    assert_eq!(counted(embedding), Some([5, 0, 0]));
}

#[test]
fn cached_tokens_are_within_the_prompt_in_chat_and_beside_it_in_messages() {
    let chat = r#"{"prompt_tokens":100,"completion_tokens":9,"cache_read_input_tokens":80,"cache_creation_input_tokens":15}"#;
    let usage = Usage::of_object(chat.as_bytes()).unwrap();
    assert_eq!((told(&usage), usage.uncached_input()), ([100, 9, 80], 20));
    let messages = r#"{"input_tokens":100,"output_tokens":9,"cache_read_input_tokens":80,"cache_creation_input_tokens":15}"#;
    let usage = Usage::of_object(messages.as_bytes()).unwrap();
    assert_eq!((told(&usage), usage.uncached_input()), ([100, 9, 80], 115));
    // Moonshot states them at the top.
    let kimi =
        r#"{"prompt_tokens":19,"completion_tokens":21,"total_tokens":40,"cached_tokens":10}"#;
    let usage = Usage::of_object(kimi.as_bytes()).unwrap();
    assert_eq!((told(&usage), usage.uncached_input()), ([19, 21, 10], 9));
}

#[test]
fn all_iterations_are_billed() {
    let usage = r#"{"input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":7,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500,"cache_read_input_tokens":90},{"type":"message","input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":7}]}"#;
    assert_eq!(counted(usage), Some([203_000, 4500, 97]));
    let declined = r#"{"input_tokens":412,"output_tokens":264,"iterations":[{"type":"message","input_tokens":412,"output_tokens":0},{"type":"fallback_message","input_tokens":412,"output_tokens":264}]}"#;
    assert_eq!(counted(declined), Some([412, 264, 0]));
    for none in ["[]", "null", "[7]", "\"x\""] {
        let usage = format!(r#"{{"input_tokens":5,"output_tokens":6,"iterations":{none}}}"#);
        assert_eq!(counted(&usage), Some([5, 6, 0]), "{none}");
    }
}

const TIMINGS: &str = r#""timings":{"cache_n":236,"prompt_n":1,"prompt_ms":30.958,"predicted_n":35,"predicted_ms":661.064}"#;

#[test]
fn only_an_input_that_can_have_the_cached_tokens_in_it_is_replaced_by_a_later_one() {
    let stream = |start: [u64; 2], end: [u64; 2]| {
        let usage = |[input, cached]: [u64; 2]| {
            format!(r#"{{"input_tokens":{input},"cache_read_input_tokens":{cached}}}"#)
        };
        let mut reader = StreamReader::new(Dialect::Anthropic);
        let (start, end) = (usage(start), usage(end));
        for data in [
            format!(r#"{{"type":"message_start","message":{{"usage":{start}}}}}"#),
            format!(r#"{{"type":"message_delta","delta":{{}},"usage":{end}}}"#),
        ] {
            reader.push(format!("data: {data}\n\n").as_bytes());
        }
        let [input, _, cached] = told(&reader.usage().unwrap());
        [input, cached]
    };
    assert_eq!(stream([8000, 0], [5, 8000]), [5, 8000]);
    assert_eq!(stream([8005, 0], [5, 8000]), [5, 8000]);
    // Fewer tokens than the cached ones, or more than all, are no prompt as a whole.
    assert_eq!(stream([7999, 0], [5, 8000]), [7999, 8000]);
    assert_eq!(stream([8006, 0], [5, 8000]), [8006, 8000]);
    // Nor is an input that was split before.
    assert_eq!(stream([90, 80], [10, 80]), [90, 80]);
    assert_eq!(stream([90, 0], [10, 0]), [90, 0]);
}

#[test]
fn the_timings_of_llama_cpp_count_where_no_usage_was_asked_for() {
    let stream = |last: &str| {
        let mut reader = StreamReader::new(Dialect::OpenAiChat);
        for data in [
            r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}"#.to_owned(),
            format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],{last}}}"#),
            "[DONE]".to_owned(),
        ] {
            reader.push(format!("data: {data}\n\n").as_bytes());
        }
        reader.usage().map(|usage| told(&usage))
    };
    assert_eq!(stream(TIMINGS), Some([237, 35, 236]));
    let usage = r#""usage":{"prompt_tokens":237,"completion_tokens":36}"#;
    assert_eq!(stream(&format!("{TIMINGS},{usage}")), Some([237, 36, 0]));
    assert_eq!(stream(r#""timings":null"#), None);
    assert_eq!(stream(r#""timings":{"prompt_n":"x"}"#), None);

    let unary = format!(r#"{{"choices":[{{"finish_reason":"stop","message":{{}}}}],{TIMINGS}}}"#);
    let answer = WholeAnswer::read(unary.as_bytes()).unwrap();
    assert_eq!(
        answer.usage().map(|usage| told(&usage)),
        Some([237, 35, 236])
    );
}

/// Counts as `serde_json` reads them.
fn reference(usage: &Value) -> Option<[u64; 3]> {
    let count = |value: &Value| {
        let value = value.as_f64().filter(|value| *value >= 0.0)?;
        Some(value.ceil() as u64)
    };
    let of = |key: &str| count(&usage[key]);
    let input = of("prompt_tokens").or(of("input_tokens"));
    let output = of("completion_tokens").or(of("output_tokens"));
    let details = ["prompt_tokens_details", "input_tokens_details"];
    let details = details.map(|key| count(&usage[key]["cached_tokens"]));
    let within = details[0]
        .or(details[1])
        .or(of("cached_tokens"))
        .unwrap_or(0);
    let beside = of("cache_read_input_tokens").unwrap_or(0);
    let sums = usage["iterations"].as_array().and_then(|list| {
        let has_output = |it: &&Value| count(&it["output_tokens"]).is_some_and(|it| it > 0);
        let objects: Vec<_> = list.iter().filter(has_output).collect();
        let sum = |key: &str| {
            objects
                .iter()
                .map(|it| count(&it[key]).unwrap_or(0))
                .sum::<u64>()
        };
        (!objects.is_empty()).then(|| {
            [
                sum("input_tokens"),
                sum("output_tokens"),
                within.max(sum("cache_read_input_tokens")),
            ]
        })
    });
    if sums.is_some() {
        return sums;
    }
    let total = of("total_tokens").zip(input.filter(|input| *input > 0));
    let total = total.map(|(total, input)| total.saturating_sub(input));
    let output = output.max(total);
    (input.is_some() || output.is_some())
        .then(|| [input.unwrap_or(0), output.unwrap_or(0), within.max(beside)])
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0_u32..100_000).prop_map(Value::from),
        (0_u32..100_000).prop_map(|count| f64::from(count).into()),
        (0.0_f64..1e6).prop_map(Value::from),
        Just(Value::Null),
        Just(json!("7")),
        Just(json!(-3)),
    ]
}

proptest! {
    /// Any keys in any order, with numbers of any shape.
    #[test]
    fn counts_are_those_of_a_reference_reader(
        is_chat in any::<bool>(),
        numbers in proptest::collection::vec(number(), 8),
        present in proptest::collection::vec(any::<bool>(), 8),
        order in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let names: [&str; 4] = match is_chat {
            true => ["prompt_tokens", "completion_tokens", "prompt_tokens_details", "total_tokens"],
            false => ["input_tokens", "output_tokens", "input_tokens_details", "iterations"],
        };
        let mut members = Vec::new();
        for at in order {
            if !present[at] {
                continue;
            }
            let number = numbers[at].clone();
            let (key, value) = match at {
                2 => (names[2], json!({"cached_tokens": number})),
                3 if !is_chat => (names[3], json!([{"input_tokens": number, "output_tokens": 3}, {"input_tokens": 9}, number])),
                4 => ("cache_read_input_tokens", number),
                5 => ("audio_tokens", number),
                6 => ("service_tier", json!("default")),
                7 => ("cost_details", json!({"prompt_tokens": number})),
                at => (names[at], number),
            };
            members.push(format!("{}:{value}", json!(key)));
        }
        let usage = format!("{{{}}}", members.join(","));
        let expected = reference(&serde_json::from_str(&usage).unwrap());
        prop_assert_eq!(counted(&usage), expected, "{}", usage);
    }
}
