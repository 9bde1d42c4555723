//! Tests of the walk over valid JSON against `serde_json`.

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};
use serde::de::IgnoredAny;

use super::super::{json_validator::ValidatingWalk, request_fields::RequestFields};

/// Pieces of a string, and what ends one or must not be in one.
const TEXTS: [&str; 22] = [
    "a", "n", "tru", "u00", " ", "\u{7f}", "é", "中", r"\n", r"\t", r#"\""#, r"\\", r"\/", r"\b",
    r"\u00e9", r"\ud800", r"\u12g4", r"\x", "\\", "\"", "\n", "\u{1f}",
];

/// Tokens in most of which a mistake is possible.
const TOKENS: [&str; 30] = [
    "{", "}", "[", "]", ",", ":", " ", "\n", "\t", "\r", "\u{c}", "\"a\"", "null", "true", "false",
    "nul", "0", "-0", "01", "-", "1", "1.", "1.5", ".5", "1e", "1e+5", "1E-", "12e9", "+1", "\"",
];

/// A string, of which most are without a mistake, short or of several blocks.
fn string() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        8 => select(&TEXTS[..18]),
        8 => select(&TEXTS[..12]),
        1 => select(&TEXTS[..]),
    ];
    let valid = vec(select(&TEXTS[..16]), 0..160);
    let common = vec(select(&TEXTS[..11]), 0..300);
    prop_oneof![valid, common, vec(pieces, 0..40)]
        .prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

/// A document, of which most are valid.
fn document() -> impl Strategy<Value = String> {
    let number = "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?";
    let token = select(&TOKENS[..]).prop_map(str::to_owned);
    let scalar = prop_oneof![8 => string(), 4 => number, 4 => select(&["null", "true", "false"][..]).prop_map(str::to_owned), 1 => token];
    scalar.prop_recursive(4, 24, 6, |value| {
        let space = || select(&["", "", " ", "\n\t"][..]);
        let spaced = (space(), value, space()).prop_map(|(a, value, b)| format!("{a}{value}{b}"));
        let key = prop_oneof![
            3 => select(&["\"model\"", "\"stream\"", "\"m\\u006fdel\"", "\"\""][..]).prop_map(str::to_owned),
            1 => string(),
        ];
        let member = (key, spaced.clone()).prop_map(|(key, value)| format!("{key}:{value}"));
        prop_oneof![
            1 => vec(spaced, 0..5).prop_map(|values| format!("[{}]", values.join(","))),
            2 => vec(member, 0..5).prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    })
}

fn accepts(text: &[u8]) -> bool {
    let mut walk = ValidatingWalk::new(text);
    walk.skip().is_some() && walk.is_at_end()
}

/// The walk accepts what `serde_json` does, and what it finds in an object is what `serde_json`
/// finds.
fn compare(text: &str) -> Result<(), TestCaseError> {
    let valid = serde_json::from_str::<IgnoredAny>(text).is_ok();
    prop_assert_eq!(accepts(text.as_bytes()), valid, "{}", text);
    let body = Bytes::copy_from_slice(text.as_bytes());
    if let Some(plain) = RequestFields::read_plain(&body) {
        prop_assert_eq!(
            RequestFields::read_any(&body, text).ok(),
            Some(plain),
            "{}",
            text
        );
    }
    Ok(())
}

#[test]
fn the_depth_is_bounded() {
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
    assert!(accepts(nested(128).as_bytes()));
    assert!(!accepts(nested(10_000).as_bytes()));
}

/// One odd place at each offset of a long string.
#[test]
fn every_place_of_a_block_is_judged() {
    for odd in TEXTS {
        for before in 0..200 {
            for after in [0, 1, 2, 63, 64, 65, 130] {
                let text = ["\"", &"x".repeat(before), odd, &"x".repeat(after), "\""].concat();
                compare(&text).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_valid_is_accepted(text in document()) {
        compare(&text)?;
    }

    #[test]
    fn what_is_cut_or_changed_is_judged_alike(
        text in document(),
        at in any::<prop::sample::Index>(),
        put in select([TEXTS.as_slice(), &TOKENS].concat()),
    ) {
        let chars: Vec<_> = text.chars().collect();
        let (before, after) = chars.split_at(at.index(chars.len() + 1));
        let [before, after] = [before, after].map(|part| part.iter().collect::<String>());
        compare(&before)?;
        compare(&after)?;
        compare(&format!("{before}{put}{after}"))?;
    }

    #[test]
    fn any_tokens_are_judged_alike(tokens in vec(select(&TOKENS[..]), 0..12)) {
        compare(&tokens.concat())?;
    }
}
