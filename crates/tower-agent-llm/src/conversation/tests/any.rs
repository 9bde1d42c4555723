//! Tests that no input breaks the reader of conversations.
//!
//! covers: D7

use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;

use super::super::{history::History, response::AnswerReader};
use crate::dialect::Dialect;

/// JSON that looks like a conversation, with anything in its places.
fn json() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "user",
        "assistant",
        "tool",
        "function_call",
        "function_call_output",
        "tool_use",
        "tool_result",
        "a",
        "stop",
        "\\u0041",
        "\\ud800",
        "{\\\"x\\\":1}",
    ]);
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1e9".to_owned()),
        words.prop_map(|word| format!("\"{word}\"")),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let keys = prop::sample::select(vec![
            "messages",
            "input",
            "role",
            "type",
            "content",
            "tool_calls",
            "function",
            "name",
            "arguments",
            "id",
            "call_id",
            "tool_call_id",
            "tool_use_id",
            "output",
            "choices",
            "delta",
            "message",
            "index",
            "item",
            "content_block",
            "partial_json",
            "tools",
            "text",
        ]);
        let member = (keys, inner.clone()).prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|all| format!("[{}]", all.join(","))),
            prop::collection::vec(member, 0..6).prop_map(|all| format!("{{{}}}", all.join(","))),
        ]
    })
}

/// JSON texts like a conversation, with bytes inserted and removed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (json(), cuts).prop_map(|(text, cuts)| {
        let mut bytes = text.into_bytes();
        for (at, byte) in cuts {
            let at = at.index(bytes.len().max(1)).min(bytes.len());
            match byte % 3 {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, byte),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn a_request_is_read_or_not_and_again_from_where_it_ended(
        first in mutated(),
        second in mutated(),
    ) {
        let wrapped = |bytes: &[u8]| [&b"{\"messages\":["[..], bytes, b"]}"].concat();
        for (first, second) in [(first.clone(), second.clone()), (wrapped(&first), wrapped(&second))] {
            let places = History::read(&Dialect::Any, &first, &VecDeque::new())
                .map(|history| { let _ = history.said(); history.places })
                .unwrap_or_default();
            if let Some(history) = History::read(&Dialect::Any, &second, &places) {
                let _ = history.said();
            }
            // A second read of the same body finds nothing new.
            if let (Some(again), false) = (History::read(&Dialect::Any, &first, &places), places.is_empty()) {
                prop_assert!(again.events.is_empty() || again.continues || again.from.is_none());
            }
        }
    }

    #[test]
    fn an_answer_says_the_same_at_any_chunking(
        events in prop::collection::vec(mutated(), 0..6),
        chunk in 1_usize..40,
    ) {
        let stream: Vec<u8> = events
            .iter()
            .flat_map(|data| [&b"data: "[..], data, b"\n\n"].concat())
            .collect();
        for kind in [AnswerReader::events, AnswerReader::document] {
            let (mut whole, mut parts) = (kind(), kind());
            whole.push(&Bytes::from(stream.clone()));
            for part in stream.chunks(chunk) {
                parts.push(&Bytes::copy_from_slice(part));
            }
            prop_assert_eq!(whole.finish(), parts.finish());
        }
    }
}
