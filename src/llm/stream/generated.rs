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
/// An event that is no JSON object has none.
pub(crate) fn generated_bytes(data: &[u8]) -> u64 {
    let mut bytes = 0;
    let read = Scanner::document(data, |json, key| member(json, key, &mut bytes));
    read.map_or(0, |()| bytes)
}

fn member(json: &mut Scanner<'_>, key: &[u8], bytes: &mut u64) -> Scan<()> {
    match json.first()? {
        b'{' => json.object(|json, key| member(json, key, bytes)).map(drop),
        b'[' => json.array(|json| member(json, b"", bytes)).map(drop),
        b'"' if is_generated(key) => {
            *bytes += json.text()?.map_or(0, |text| text.raw().len() as u64);
            Ok(())
        }
        _ => json.skip(),
    }
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
