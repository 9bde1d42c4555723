use std::hash::{DefaultHasher, Hash, Hasher};

use crate::llm::json::{Scan, Scanner};

/// Hashes a value; equal values have the same hash within one process.
pub(crate) fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Hashes a JSON text, whatever its key order and white space.
///
/// Numbers and strings count as written. A text that is not JSON, or nested more than
/// 127 deep, is digested as bytes. An empty text equals `{}`, because models send
/// either for a call without arguments.
pub(crate) fn canonical(json: &[u8]) -> u64 {
    let json = json.trim_ascii();
    let mut scanner = Scanner::new(if json.is_empty() { b"{}" } else { json });
    match value(&mut scanner) {
        Ok(read) if scanner.position() >= json.len() => read,
        _ => digest(json),
    }
}

/// Hashes the next value of the scanner, by recursion to the scanner's limited depth.
fn value(json: &mut Scanner<'_>) -> Scan<u64> {
    match json.first()? {
        b'{' => {
            let mut members = Vec::new();
            json.object(|json, key| {
                members.push((digest(key), value(json)?));
                Ok(())
            })?;
            members.sort_unstable();
            Ok(digest(('{', members)))
        }
        b'[' => {
            let mut elements = DefaultHasher::new();
            '['.hash(&mut elements);
            json.array(|json| {
                value(json)?.hash(&mut elements);
                Ok(())
            })?;
            Ok(elements.finish())
        }
        _ => json.span().map(digest),
    }
}
