//! Tests of the rule on volatile words against its first, plain form.

use proptest::{collection::vec, prelude::*, sample::select};

use super::super::volatile_words::{self, ID, LONG, PLACEHOLDER, PREFIXES, ShortNumbers, UNITS};

/// What `normalize` passes on, by the rule as it was written first: on characters, without tables.
fn normalize(text: &str, short: ShortNumbers, mut emit: impl FnMut(u8)) {
    let mut rest = text.trim();
    // Whether the number before, and so the next one, is part of a time such as `10:31:07`.
    let mut in_time = false;
    while let Some(first) = rest.chars().next() {
        let (word, after) = rest.split_at(word_end(rest));
        let then = without_unit(word, after);
        let goes_on = matches!(after.as_bytes(), [b':', b'0'..=b'9', ..]);
        let is_short = is_number(word) && word.len() < LONG && then == after;
        let stays = is_short && !goes_on && !in_time && short == ShortNumbers::Kept;
        if !word.is_empty() {
            in_time = goes_on && is_number(word);
        }
        if is_volatile(word) && !stays {
            emit(PLACEHOLDER);
            rest = then;
        } else if first.is_whitespace() {
            emit(b' ');
            rest = rest.trim_start();
        } else {
            let (kept, later) = rest.split_at(word.len().max(first.len_utf8()));
            for lower in kept.chars().flat_map(char::to_lowercase) {
                lower.encode_utf8(&mut [0; 4]).bytes().for_each(&mut emit);
            }
            rest = later;
        }
    }
}

/// The index at which the word at the start of `text` ends. A word is ASCII letters and digits, and
/// the characters that join two of them, as in `1.5`, `1,000` and `2026-11-03`.
fn word_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let next = |at: usize| bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric);
    let mut chars = text.char_indices();
    let end = chars.find(|&(at, char)| match char {
        '-' | '_' => at == 0 || !next(at),
        '.' | ',' => at == 0 || !digit(at - 1) || !digit(at + 1),
        // Unicode has two micro signs, and both are part of a unit.
        '\u{b5}' | '\u{3bc}' => false,
        _ => !char.is_ascii_alphanumeric(),
    });
    end.map_or(text.len(), |(at, _)| at)
}

/// Whether a word may differ between two occurrences of one error: a number or an id.
fn is_volatile(word: &str) -> bool {
    let is_id = |(prefix, id): (&str, &str)| {
        let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        id.len() >= ID && plain && PREFIXES.contains(&prefix)
    };
    word.bytes().any(|byte| byte.is_ascii_digit()) || word.split_once(['-', '_']).is_some_and(is_id)
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| b"0123456789.,".contains(&byte))
}

/// The text that follows a volatile word, without its unit if the word is a number.
fn without_unit<'a>(word: &str, after: &'a str) -> &'a str {
    let rest = after.trim_start();
    let (unit, rest) = rest.split_at(word_end(rest));
    let mut units = UNITS.iter();
    match is_number(word) && units.any(|known| known.eq_ignore_ascii_case(unit)) {
        true => rest,
        false => after,
    }
}

fn compare(text: &str) -> Result<(), TestCaseError> {
    for short in [ShortNumbers::Replaced, ShortNumbers::Kept] {
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        normalize(text, short, |byte| expected.push(byte));
        volatile_words::normalize(text, short, |piece, len| {
            found.extend_from_slice(&piece[..len]);
        });
        prop_assert_eq!(expected, found, "{:?}", text);
    }
    Ok(())
}

/// Pieces that the rule knows, and what may stand around them.
fn piece() -> BoxedStrategy<String> {
    const MARKS: [&str; 31] = [
        " ", " ", " ", "  ", "\t", "\n", "\u{a0}", "\u{85}", "\u{2003}", "\u{3000}", "\u{1c}",
        "\0", "!", "@", "[", "`", "{", "\u{7f}", "-", "_", ".", ",", ":", "(", "/", "\u{b5}",
        "\u{3bc}", "\u{c2}", "\u{3c2}", "\u{130}", "\u{df}",
    ];
    let mark = select(&MARKS[..]).prop_map(str::to_owned);
    prop_oneof![
        6 => mark,
        3 => "[a-zA-Z]{1,9}",
        2 => "[0-9]{1,11}",
        1 => select(&UNITS[..]).prop_map(str::to_owned),
        1 => (select(&PREFIXES[..]), "[-_]", "[a-zA-Z0-9]{12,18}").prop_map(|(a, b, c)| a.to_owned() + &b + &c),
        1 => "[a-zA-Z0-9_.,:-]{0,12}",
        1 => ".{0,4}",
    ]
    .boxed()
}

/// Each character after, before and between letters, at each offset of the eight bytes that are
/// read at once.
#[test]
fn each_character_is_judged_as_before() {
    for char in ('\0'..='\u{3ff}').chain('\u{2000}'..='\u{2030}') {
        for letters in 0..9 {
            let word = &"QuickerBrown"[..letters];
            for text in [
                format!("{word}{char}Fox jumps"),
                format!("a {word} {char} z{char}9 - over"),
                format!("{char}{word}"),
                format!("{word}{char}"),
                format!("1{char}2{word}{char}{char}3{char}ms{char}{word}"),
            ] {
                compare(&text).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_rule_is_that_of_its_first_form(pieces in vec(piece(), 0..24)) {
        compare(&pieces.concat())?;
    }
}
