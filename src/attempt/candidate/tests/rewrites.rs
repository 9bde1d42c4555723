//! The rewrite against `serde_json::Value`.
//!
//! covers: T72

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value};

use super::bytes;
use crate::{body::ReplayBody, llm::RequestFields};

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((key(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("model".to_owned()),
        Just("stream".to_owned()),
        any::<String>()
    ]
}

/// The text of an object whose members stand in this order, `model` among them.
fn text(members: &[(String, Value)], space: &str) -> String {
    let member = |(key, value): &(String, Value)| {
        format!(
            "{space}{}{space}:{space}{value}{space}",
            Value::from(&**key)
        )
    };
    let members: Vec<_> = members.iter().map(member).collect();
    format!("{space}{{{}}}{space}", members.join(","))
}

/// Every letter as an escape, to make of a string the same string.
fn escaped(text: &str) -> String {
    text.encode_utf16()
        .map(|unit| format!("\\u{unit:04x}"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_rewrite_is_what_a_round_trip_would_be(
        mut members in vec((any::<String>(), any_value()), 0..6),
        at in any::<prop::sample::Index>(),
        model in any::<String>(),
        stream in any::<bool>(),
        new in any::<String>(),
        space in prop::sample::select(&["", " ", "\n\t", "\r\n "][..]),
        escape in any::<bool>(),
    ) {
        members.retain(|(key, _)| key != "model" && key != "stream");
        members.push(("stream".into(), stream.into()));
        members.insert(at.index(members.len() + 1), ("model".into(), "MARK".into()));
        let document = text(&members, space);
        // The value's own text, in either spelling.
        let (start, _) = document.match_indices("\"MARK\"")
            .find(|(start, _)| document[..*start].trim_end().ends_with(':'))
            .unwrap();
        let value = if escape { format!("\"{}\"", escaped(&model)) } else { Value::from(&*model).to_string() };
        let (before, after) = (&document[..start], &document[start + "\"MARK\"".len()..]);
        let body = Bytes::from([before, &value, after].concat());

        let fields = RequestFields::read(&body).unwrap();
        let spliced = bytes(&ReplayBody::spliced(fields.splice(&body, &new)));

        prop_assert_eq!(fields.model(), Some(&*model));
        prop_assert_eq!(fields.stream(), stream);
        let mut expected: Map<String, Value> = serde_json::from_slice(&body).unwrap();
        expected.insert("model".into(), new.clone().into());
        prop_assert_eq!(serde_json::from_slice::<Map<_, _>>(&spliced).unwrap(), expected);
        prop_assert!(spliced.starts_with(before.as_bytes()));
        prop_assert!(spliced.ends_with(after.as_bytes()));
        let written = &spliced[before.len()..spliced.len() - after.len()];
        prop_assert_eq!(serde_json::from_slice::<String>(written).unwrap(), new);
    }

    #[test]
    fn what_serde_json_refuses_is_refused(body in vec(prop::sample::select(&b"{}[]\",:model \\utrue019.e\xc3\xa9"[..]), 0..40)) {
        let body = Bytes::from(body);
        let known = serde_json::from_slice::<Value>(&body).is_ok_and(|value| value.is_object());
        let read = RequestFields::read(&body);
        if !known {
            // What a reader of numbers and escapes may refuse, one that skips them may not.
            prop_assert!(read.is_err() || serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok());
        }
    }
}
