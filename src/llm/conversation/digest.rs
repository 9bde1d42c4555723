use std::hash::{DefaultHasher, Hash, Hasher};

use crate::llm::json::{Scan, Scanner};

/// A number that equal values share, within one process.
pub(crate) fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The digest of a JSON text, whatever the order of its keys and the white space
/// between its tokens; numbers and strings count as they are written. Of a text
/// that is not JSON, or nested more than 127 deep, that of its bytes. Nothing at
/// all is what models call no arguments, and the same as `{}`.
pub(crate) fn canonical(json: &[u8]) -> u64 {
    let json = json.trim_ascii();
    let mut scanner = Scanner::new(if json.is_empty() { b"{}" } else { json });
    match value(&mut scanner) {
        Ok(read) if scanner.position() >= json.len() => read,
        _ => digest(json),
    }
}

/// As deep as the scanner lets it.
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
