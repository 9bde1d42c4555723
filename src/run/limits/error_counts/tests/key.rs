//! covers: D2

use proptest::{collection::vec, prelude::*};

use crate::{
    llm::{ShortNumbers, cut, normalize},
    run::limits::error_counts::{ErrorKey, KEPT, READ},
};

/// What is left of a message, a `#` for what was taken out.
fn left(message: &str) -> String {
    let mut left = Vec::new();
    normalize(cut(message, READ), ShortNumbers::Replaced, |piece, len| {
        left.extend(
            piece[..len]
                .iter()
                .map(|&byte| if byte == 0xfe { b'#' } else { byte }),
        );
    });
    String::from_utf8(left).unwrap()
}

fn key(message: &str) -> ErrorKey {
    ErrorKey::new("tool", message)
}

#[test]
fn volatile_parts_are_taken_out() {
    let table = [
        ("exit code 137", "exit code #"),
        (
            "took 1.5, limit -3 or +0.25 or .5",
            "took #, limit -# or +# or .#",
        ),
        ("1,234,567 of 1e-5", "# of #"),
        ("in 350ms", "in #"),
        ("in 1.2s.", "in #."),
        ("in 350µs", "in #"),
        ("in 1h2m3.5s", "in #"),
        ("in 5 seconds, 1 minute", "in #, #"),
        ("order a1b2c3 day, 5b day, 5 days", "order # day, # day, #"),
        ("2026-11-03T10:00:00.123Z failed", "#:#:# failed"),
        ("2026-11-03 10:00:00+00:00 failed", "# #:#:#+#:# failed"),
        ("Tue, 03 Nov 2026 10:00:00 GMT", "tue, # nov # #:#:# gmt"),
        ("Mon Nov  3 10:00:00 2026", "mon nov # #:#:# #"),
        ("550e8400-e29b-41d4-a716-446655440000 gone", "# gone"),
        ("id=dead-beef", "id=dead-beef"),
        ("no req_011CSHoEeqs5C35K2UUqFy7R", "no #"),
        ("no chatcmpl-AbCdEfGhIjKlMnOpQrSt", "no #"),
        ("no call_abc123XYZ", "no #"),
        ("commit 3f786850e387550f or a9b8c7", "commit # or #"),
        ("at 0x7ffeefbff5c8", "at #"),
        ("connect 10.0.0.1:8080", "connect #:#"),
        ("connect localhost:8080", "connect localhost:#"),
        (
            "connect [2001:db8::ff00:42:8329]:443",
            "connect [#:#::#:#:#]:#",
        ),
        ("connect fe80::abcd:1.", "connect #::abcd:#."),
        ("connect ::1", "connect ::#"),
        (
            "connect 2001:db8:0:0:0:ff:42:8329",
            "connect #:#:#:#:#:ff:#:#",
        ),
        ("mac 00:1a:2b:3c:4d:5e", "mac #:#:#:#:#:#"),
        ("  Many \t\n spaces\u{a0}here  ", "many spaces here"),
        ("ÉCHEC À 12", "échec à #"),
        ("step9 of http2", "# of #"),
        ("错误123", "错误#"),
        ("", ""),
    ];
    for (message, expected) in table {
        assert_eq!(left(message), expected, "{message:?}");
    }
}

#[test]
fn words_without_digits_stay() {
    let table = [
        "connection refused",
        "may not march on a sunday",
        "call_function failed",
        "face::bad, add::beef, a:b:c",
        "decade facade effaced",
        "std::fs::read: no such file",
        "it is 50-50: see s, m, h, d, ms",
        "a-b_c/d.e:f,g+h",
        "internationalization_unavailable",
    ];
    for message in table {
        let words = |text: &str| {
            let words = text.split(|char: char| !char.is_alphabetic());
            words
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&left(message)), words(message), "{message:?}");
    }
}

#[test]
fn the_same_failure_has_the_same_key() {
    let table = [
        [
            "Rate limit reached for gpt-4.1 in organization org-AbC123xYz on tokens per min \
             (TPM): Limit 30000, Used 29412. Please try again in 1.2s.",
            "Rate limit reached for gpt-4.1 in organization org-AbC123xYz on tokens per min \
             (TPM): Limit 30000, Used 8. Please try again in 350ms.",
        ],
        ["timed out after 1 second", "Timed out after 30 seconds"],
        [
            "error at 2026-11-03T10:00:00Z: request 550e8400-e29b-41d4-a716-446655440000",
            "error at 2027-01-31T23:59:59.999Z: request ffffffff-aaaa-4bbb-cccc-deadbeefcafe",
        ],
        ["thread 'main' at 0xdeadbeef", "thread 'main' at 0x00000001"],
        [
            "dial tcp 10.1.2.3:443: refused",
            "dial tcp 192.168.100.200:50051: refused",
        ],
        ["tmp/a1b2c3d4/out", "tmp/zz9zz8zz7zz/out"],
    ];
    for [one, other] in table {
        assert_eq!(key(one), key(other), "{} / {}", left(one), left(other));
    }
}

#[test]
fn another_failure_has_another_key() {
    let table = [
        ["connection refused", "connection reset"],
        ["file not found: a.txt", "file not found: b.txt"],
        ["exit code 1", "exit status 1"],
        ["unknown field `name`", "unknown field `names`"],
        ["limit 5", "limit"],
        ["ab", "a b"],
        ["错误", "错语"],
    ];
    for [one, other] in table {
        assert_ne!(key(one), key(other), "{} / {}", left(one), left(other));
    }
}

#[test]
fn the_subject_is_part_of_the_key() {
    assert_ne!(ErrorKey::new("a", "failed"), ErrorKey::new("b", "failed"));
    assert_ne!(ErrorKey::new("tool1", "x"), ErrorKey::new("tool2", "x"));
    assert_ne!(ErrorKey::new("ab", "c"), ErrorKey::new("a", "bc"));
}

#[test]
fn what_counts_is_bounded() {
    let long = "é".repeat(KEPT / 2);
    assert_ne!(key(&long), key(&long[2..]));
    assert_eq!(key(&long), key(&format!("{long} and more")));
    // Volatile parts do not move the bound.
    let text = |id: &str| format!("{id} {}end", "word ".repeat(KEPT / 5));
    assert_eq!(key(&text("1")), key(&text(&"1".repeat(999))));
    // What is read is bounded too, also within a character.
    for start in ["", "x"] {
        let endless = format!("{start}{}", "1é".repeat(1 << 20));
        assert_eq!(key(&endless), key(&format!("{endless}!")));
    }
}

/// Pieces that are next to each other in real messages, and that are not.
fn message() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        ".{0,12}",
        "[0-9a-f:.]{0,20}",
        "[A-Za-z0-9_-]{0,12}",
        "(nov|mon|may|ms|min| |, |-|\\+|/){0,4}",
        "[0-9]{0,6}",
    ];
    vec(pieces, 0..12).prop_map(|pieces| pieces.concat())
}

fn word() -> impl Strategy<Value = String> {
    "[a-zA-Z]{2,12}".prop_filter("a unit belongs to its number", |word| {
        left(&format!("1 {word} 1")).len() == word.len() + 4
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn other_digits_are_the_same_key(message in message(), digits in vec(0..10_u8, 64)) {
        let mut digits = digits.into_iter().cycle();
        let other = |char: char| match char {
            '0'..='9' => char::from(b'0' + digits.next().unwrap_or(0)),
            char => char,
        };
        let other: String = message.chars().map(other).collect();
        prop_assert_eq!(key(&message), key(&other));
        prop_assert!(left(&message).len() <= 3 * message.len());
    }

    #[test]
    fn longer_numbers_are_the_same_key_and_words_are_not(
        words in vec(word(), 1..8),
        numbers in vec(any::<u64>(), 8),
        others in vec(any::<u64>(), 8),
        which in any::<prop::sample::Index>(),
    ) {
        let text = |words: &[String], numbers: &[u64]| {
            let parts = words.iter().zip(numbers);
            parts.map(|(word, number)| format!("{word} {number} ")).collect::<String>()
        };
        let one = key(&text(&words, &numbers));
        prop_assert_eq!(one, key(&text(&words, &others)));

        let mut changed = words.clone();
        changed[which.index(words.len())].push('q');
        prop_assert_ne!(one, key(&text(&changed, &numbers)));
    }
}
