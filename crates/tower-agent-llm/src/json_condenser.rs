//! Keeps the members of a long JSON document, and drops the bulk of its texts and lists.

use memchr::memchr2;

use super::text_channel::TextChannel;

/// The most bytes of a string that are kept, escapes as they are written.
const MAX_STRING: usize = 512;

/// The most elements of a list that are kept.
const MAX_ELEMENTS: u32 = 256;

/// The number of levels that are kept. No grammar reads deeper ones.
const MAX_LEVELS: usize = 12;

/// The most bytes of a condensed document. A document with more is dropped: no API sends so many
/// members.
const MAX_OUT: usize = 256 * 1024;

/// The most bytes of a key that are compared: no key of a model's text is longer.
const MAX_KEY: usize = 32;

/// Reads a JSON document in pieces, and writes it without the rest of each long string, the later
/// elements of each long list, and all that is nested too deep.
///
/// What it writes is as valid as what it reads, and has the values that the grammars read, as
/// these are short.
#[derive(Debug, Default)]
pub struct JsonCondenser {
    out: Vec<u8>,
    levels: Vec<CondensedLevel>,
    /// The number of open brackets that are not written.
    hidden: usize,
    string: CutString,
    /// The last key, and whether it is one of the model's text.
    key: Vec<u8>,
    is_text: bool,
    expects_key: bool,
    elided: u64,
    is_over: bool,
}

/// An object or a list of which the bracket was written.
#[derive(Debug)]
struct CondensedLevel {
    is_object: bool,
    elements: u32,
}

/// The string that is being read.
#[derive(Debug, Default)]
struct CutString {
    is_open: bool,
    is_escaped: bool,
    /// The digits of a `\u` that are still to come.
    digits: u8,
    /// The value of the digits of the last `\u` that have come.
    code: u16,
    kept: usize,
    /// Whether what is kept ends in the first half of a pair of surrogates.
    ends_in_half: bool,
    is_cut: bool,
}

impl JsonCondenser {
    /// Reads the next piece of the document.
    pub(crate) fn push(&mut self, mut piece: &[u8]) {
        while let Some((&byte, rest)) = piece.split_first() {
            if self.is_dropped() {
                return;
            }
            if self.string.is_open {
                piece = &piece[self.read_string(piece)..];
            } else {
                self.read_structure(byte);
                piece = rest;
            }
            if self.out.len() > MAX_OUT {
                self.drop_document();
            }
        }
    }

    /// The condensed document so far.
    pub(crate) fn written(&self) -> &[u8] {
        &self.out
    }

    /// Whether the document was an object, and ended.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_over && !self.out.is_empty()
    }

    /// Whether nothing of the document is kept, whatever follows.
    fn is_dropped(&self) -> bool {
        self.is_over && self.out.is_empty()
    }

    fn drop_document(&mut self) {
        self.is_over = true;
        self.out = Vec::new();
        self.levels = Vec::new();
    }

    /// The number of bytes of the model's text that were dropped.
    pub(crate) const fn elided(&self) -> u64 {
        self.elided
    }

    /// Whether the values at this place are dropped: they are nested too deep, or behind the last
    /// element of a list that is kept.
    fn is_hidden(&self) -> bool {
        let is_behind = |level: &CondensedLevel| level.elements >= MAX_ELEMENTS;
        self.hidden > 0 || self.levels.last().is_some_and(is_behind)
    }

    fn read_structure(&mut self, byte: u8) {
        if byte.is_ascii_whitespace() {
            return;
        }
        if self.is_over || (self.levels.is_empty() && byte != b'{') {
            // Not a JSON object, or bytes behind one.
            self.drop_document();
            return;
        }
        let is_hidden = self.is_hidden();
        match byte {
            b'"' => {
                self.string = CutString {
                    is_open: true,
                    ..CutString::default()
                };
                self.key.clear();
            }
            b'{' | b'[' if is_hidden || self.levels.len() == MAX_LEVELS => {
                if !is_hidden {
                    self.out.push(byte);
                }
                self.hidden += 1;
                return;
            }
            b'}' | b']' if self.hidden > 0 => {
                self.hidden -= 1;
                if self.hidden == 0 && !self.is_hidden() {
                    self.out.push(byte);
                }
                return;
            }
            b'{' | b'[' => {
                let is_object = byte == b'{';
                self.levels.push(CondensedLevel {
                    is_object,
                    elements: 0,
                });
                self.expects_key = is_object;
            }
            b'}' | b']' => {
                self.levels.pop();
                self.out.push(byte);
                self.expects_key = false;
                self.is_over = self.levels.is_empty();
                return;
            }
            b':' => self.expects_key = false,
            b',' if self.hidden == 0 => {
                if let Some(level) = self.levels.last_mut() {
                    level.elements += u32::from(!level.is_object);
                    self.expects_key = level.is_object;
                    self.is_text &= !level.is_object;
                }
                if self.is_hidden() {
                    return;
                }
            }
            _ => {}
        }
        if !is_hidden {
            self.out.push(byte);
        }
    }

    /// Reads a part of a string, and returns its length in bytes.
    fn read_string(&mut self, piece: &[u8]) -> usize {
        if std::mem::take(&mut self.string.is_escaped) {
            self.string.digits = if piece[0] == b'u' { 4 } else { 0 };
            self.take(&piece[..1], true);
            return 1;
        }
        if self.string.digits > 0 {
            let digit = char::from(piece[0]).to_digit(16).unwrap_or_default();
            self.string.digits -= 1;
            self.string.code = self.string.code << 4 | digit as u16;
            self.take(&piece[..1], true);
            let is_half = self.string.digits == 0 && (0xD800..0xDC00).contains(&self.string.code);
            self.string.ends_in_half |= is_half && !self.string.is_cut;
            return 1;
        }
        let len = memchr2(b'"', b'\\', piece).unwrap_or(piece.len());
        if len > 0 {
            self.take(&piece[..len], false);
            return len;
        }
        if piece[0] == b'\\' {
            self.string.is_escaped = true;
            self.take(&piece[..1], false);
        } else {
            self.close_string();
        }
        1
    }

    /// Keeps a part of a string, as far as there is room; `belongs` if it belongs to an escape, of
    /// which the beginning was kept if the string is not cut.
    fn take(&mut self, part: &[u8], belongs: bool) {
        if self.expects_key {
            let room = MAX_KEY.saturating_sub(self.key.len());
            self.key.extend_from_slice(&part[..part.len().min(room)]);
        }
        let room = match (self.string.is_cut, belongs) {
            (true, _) => 0,
            (false, true) => part.len(),
            (false, false) => MAX_STRING.saturating_sub(self.string.kept).min(part.len()),
        };
        self.string.is_cut |= room < part.len();
        self.string.kept += room;
        self.string.ends_in_half &= room == 0;
        if !self.is_hidden() {
            self.out.extend_from_slice(&part[..room]);
        }
        if self.is_text && !self.expects_key {
            self.elided += (part.len() - room) as u64;
        }
    }

    fn close_string(&mut self) {
        self.string.is_open = false;
        if self.expects_key && self.hidden == 0 {
            self.is_text = TextChannel::of_key(&self.key).is_some();
        }
        if self.is_hidden() {
            return;
        }
        if self.string.is_cut {
            let dropped = match self.string.ends_in_half {
                true => HALF,
                false => incomplete_end(&self.out),
            };
            self.out.truncate(self.out.len() - dropped);
        }
        self.out.push(b'"');
    }
}

/// The number of bytes of the first half of a pair of surrogates.
const HALF: usize = r"\ud83d".len();

/// The number of bytes at the end of a cut string that are a part of a character in UTF-8.
fn incomplete_end(text: &[u8]) -> usize {
    let is_continued = |byte: &&u8| (0x80..0xC0).contains(*byte);
    let continued = text.iter().rev().take(3).take_while(is_continued).count();
    let expected = match text.iter().rev().nth(continued) {
        Some(0xC0..=0xDF) => 1,
        Some(0xE0..=0xEF) => 2,
        Some(0xF0..) => 3,
        _ => return 0,
    };
    if continued < expected {
        continued + 1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn condense(document: &[u8], step: usize) -> JsonCondenser {
        let mut condenser = JsonCondenser::default();
        document.chunks(step).for_each(|it| condenser.push(it));
        condenser
    }

    fn written(document: &Value) -> Value {
        let text = document.to_string();
        let whole = condense(text.as_bytes(), text.len());
        assert!(whole.is_whole());
        for step in [1, 2, 3, 7] {
            let pieces = condense(text.as_bytes(), step);
            assert_eq!(pieces.written(), whole.written());
            assert_eq!(pieces.elided(), whole.elided());
        }
        serde_json::from_slice(whole.written()).unwrap()
    }

    #[test]
    fn a_short_document_stays_as_it_is() {
        let document =
            json!({"a": [1, -2.5e3, true, null, "\u{e9}\n\"\\"], "b": {"c": {}, "d": []}});
        assert_eq!(written(&document), document);
    }

    #[test]
    fn the_members_behind_a_long_text_are_kept() {
        let text = "ab\u{e9}\u{1f600}\"\\\n".repeat(100_000);
        let document = json!({
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}],
            "usage": {"completion_tokens": 90_000},
        });
        let condensed = written(&document);
        assert_eq!(condensed["choices"][0]["finish_reason"], "stop");
        assert_eq!(condensed["usage"], document["usage"]);
        let kept = condensed["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap();
        assert!(text.starts_with(kept) && kept.len() > MAX_STRING / 2);
    }

    #[test]
    fn dropped_text_is_counted_under_the_keys_of_text_alone() {
        for (key, counts) in [("content", true), ("input", true), ("b64_json", false)] {
            let document = json!({"delta": {key: "x".repeat(MAX_STRING + 1000)}}).to_string();
            let condensed = condense(document.as_bytes(), 100);
            assert_eq!(condensed.elided(), if counts { 1000 } else { 0 }, "{key}");
        }
    }

    #[test]
    fn long_lists_and_deep_values_are_cut() {
        let elements: Vec<_> = (0..5000).map(|at| json!([at, {"b": "x,]"}])).collect();
        let mut deep = json!("bottom");
        for _ in 0..50 {
            deep = json!({ "in": [deep, 1] });
        }
        let condensed = written(&json!({"list": elements, "deep": deep, "last": 7}));
        assert_eq!(
            condensed["list"].as_array().unwrap().len(),
            MAX_ELEMENTS as usize
        );
        assert_eq!(condensed["list"][255], json!([255, {"b": "x,]"}]));
        assert_eq!(condensed["last"], 7);
        assert!(condensed.to_string().find("bottom").is_none());
    }

    #[test]
    fn other_documents_are_not_whole() {
        for text in [
            "",
            "[1]",
            "12",
            "{\"a\":1",
            "{\"a\":1}{",
            "{\"a\":\"b",
            "x{}",
        ] {
            assert!(!condense(text.as_bytes(), 1).is_whole(), "{text}");
        }
    }

    #[test]
    fn a_document_of_many_members_is_dropped() {
        let members = |count: u32| -> String {
            let members = (0..count).map(|at| format!(r#""{at}":"{}""#, "x".repeat(MAX_STRING)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        };
        assert!(condense(members(100).as_bytes(), 1000).is_whole());
        let many = condense(members(10_000).as_bytes(), 1000);
        assert!(!many.is_whole());
        assert_eq!(many.written(), b"");
        assert_eq!(many.out.capacity(), 0);
    }

    #[test]
    fn a_string_is_cut_between_two_characters() {
        for (last, kept) in [
            (r"\\ud83d", r"\\ud83d"),
            (r"\ud83d", ""),
            (r"\ud83d\ude00", r"\ud83d\ude00"),
            (r"\u00e9", r"\u00e9"),
        ] {
            let start = "x".repeat(MAX_STRING - last.len());
            let document = format!(r#"{{"a":"{start}{last}{}"}}"#, "y".repeat(9));
            let condensed = condense(document.as_bytes(), 7);
            let expected = format!(r#"{{"a":"{start}{kept}"}}"#);
            assert_eq!(condensed.written(), expected.as_bytes(), "{last}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\\u{e9}\u{1f600}\u{1}]{0,4}".prop_map(Value::from),
            (0_usize..900, "[a\u{e9}\u{1f600}\\\\\u{1}]").prop_map(|(n, it)| it.repeat(n).into()),
        ];
        leaf.prop_recursive(16, 64, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,3}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_valid(value in values()) {
            written(&json!({"a": value, "end": 1}));
        }
    }
}
