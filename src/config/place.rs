//! Finds the key of a mistake in the text of its document.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::{key::KeyPart, tables::ALIASES};
use crate::llm::{Malformed, Scan, Scanner};

/// The byte range of the key's value, or of the innermost table or entry on its path that exists.
///
/// For a table, and for an unknown key, the result is the range of the key.
pub(super) fn in_toml(
    document: &Spanned<DeTable<'_>>,
    path: &[KeyPart],
    is_unknown: bool,
) -> Option<Range<usize>> {
    let mut table = Some(document.get_ref());
    let mut array = None;
    let mut found: Option<(Range<usize>, &Spanned<DeValue<'_>>)> = None;
    for part in path {
        let next = match part {
            KeyPart::Name(name) => table
                .and_then(|table| {
                    let known = table.get_key_value(&**name);
                    known.or_else(|| table.get_key_value(alias(name)?))
                })
                .map(|(key, value)| (key.span(), value)),
            KeyPart::Index(index) => array
                .and_then(|array: &DeArray<'_>| array.get(*index))
                .map(|value| (value.span(), value)),
        };
        let Some((key, value)) = next else {
            break;
        };
        (table, array) = (value.get_ref().as_table(), value.get_ref().as_array());
        found = Some((key, value));
    }
    let (key, value) = found?;
    let is_key = value.get_ref().is_table() || is_unknown;
    Some(if is_key { key } else { value.span() })
}

/// The first byte of the key's value in a JSON document, or of the innermost value on its path that
/// exists.
pub(super) fn in_json(text: &str, path: &[KeyPart]) -> Option<usize> {
    let mut ends = (1..=path.len()).rev();
    ends.find_map(|end| Some(json_entry(text.as_bytes(), &path[..end])?.value.start))
}

/// An entry of an object or an array, in bytes.
pub(super) struct JsonEntry {
    /// The end of the entry before it, or the container's start; in between are a comma and the
    /// entry's key.
    pub(super) before: usize,
    pub(super) value: Range<usize>,
}

/// Finds the entry at this path of a JSON document; of two equal keys the last.
pub(super) fn json_entry(text: &[u8], path: &[KeyPart]) -> Option<JsonEntry> {
    entry(&mut Scanner::new(text), path).ok()?
}

fn entry(json: &mut Scanner<'_>, path: &[KeyPart]) -> Scan<Option<JsonEntry>> {
    let (part, rest) = path.split_first().ok_or(Malformed)?;
    json.peek()?;
    let (mut found, mut before) = (None, json.position() + 1);
    let mut read = |json: &mut Scanner<'_>, is_it: bool| {
        json.peek()?;
        let start = json.position();
        match is_it {
            true if !rest.is_empty() => found = entry(json, rest)?,
            _ => json.skip()?,
        }
        if is_it && rest.is_empty() {
            let value = start..json.position();
            found = Some(JsonEntry { before, value });
        }
        before = json.position();
        Ok(())
    };
    match part {
        KeyPart::Name(name) => {
            let alias = alias(name).unwrap_or(name).as_bytes();
            json.object(|json, key| read(json, key == name.as_bytes() || key == alias))?;
        }
        KeyPart::Index(index) => {
            let mut at = 0;
            json.array(|json| {
                at += 1;
                read(json, at - 1 == *index)
            })?;
        }
    }
    Ok(found)
}

/// The name of the key `name` in agents' own configurations.
fn alias(name: &str) -> Option<&'static str> {
    let known = ALIASES.iter().find(|(own, _)| *own == name)?;
    Some(known.1)
}

/// The line and the column of a byte, from 1, the column in characters.
pub(super) fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}
