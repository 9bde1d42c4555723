//! The text that a model generated in an event, counted in bytes.
//!
//! Some upstreams state the tokens of an answer at its end or never. A cap on tokens then needs
//! an estimate while the answer streams: [`estimated_tokens`] takes one token for each
//! [`BYTES_PER_TOKEN`] bytes of generated text.

use crate::llm::json::{Scan, Scanner};

/// The bytes of generated text that count as one token.
///
/// OpenAI's guide to its tokenizers gives four characters of English for a token. Other scripts
/// have fewer characters in a token, and more bytes in a character.
const BYTES_PER_TOKEN: u64 = 4;

/// The tokens that these bytes of generated text stand for, rounded up.
pub(crate) const fn estimated_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The number of bytes in an event that its model generated: answers, reasoning, refusals and the
/// arguments of tools, as they stand in their JSON strings.
///
/// Some upstreams send a piece of reasoning under two keys: it counts once. The results of tools
/// that an upstream runs do not count. An event that is no JSON object has none.
pub(crate) fn generated_bytes(data: &[u8]) -> u64 {
    let mut bytes = 0;
    let read = Scanner::document(data, |json, key| {
        bytes += value(json, key)?;
        Ok(())
    });
    read.map_or(0, |()| bytes)
}

fn value(json: &mut Scanner<'_>, key: &[u8]) -> Scan<u64> {
    let mut bytes = 0;
    match json.first()? {
        b'{' => return object(json),
        b'[' => drop(json.array(|json| {
            bytes += value(json, b"")?;
            Ok(())
        })?),
        b'"' if is_generated(key) => {
            bytes = json.text()?.map_or(0, |text| text.raw().len() as u64);
        }
        _ => json.skip()?,
    }
    Ok(bytes)
}

fn object(json: &mut Scanner<'_>) -> Scan<u64> {
    let (mut bytes, mut reasoning, mut is_result) = (0, 0, false);
    json.object(|json, key| {
        if key == b"type" && json.first()? == b'"' {
            let kind = json.text()?;
            is_result = kind.is_some_and(|kind| kind.raw().ends_with(b"_tool_result"));
            return Ok(());
        }
        let own = value(json, key)?;
        match key {
            b"reasoning" | b"reasoning_content" | b"reasoning_details" => {
                reasoning = own.max(reasoning);
            }
            _ => bytes += own,
        }
        Ok(())
    })?;
    Ok(if is_result { 0 } else { bytes + reasoning })
}

/// Whether a string under this key is text of the model, wherever the key stands in an event with
/// content.
pub(super) fn is_generated(key: &[u8]) -> bool {
    matches!(
        key,
        b"content"
            | b"text"
            | b"delta"
            | b"arguments"
            | b"partial_json"
            | b"reasoning"
            | b"reasoning_content"
            | b"thinking"
            | b"refusal"
    )
}
