use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// The units of a size; one without a `B` of its own is not a unit.
const UNITS: [(&str, usize); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// A number of bytes of at least `LEAST` MiB: a text such as `"256 MiB"`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteSize<const LEAST: usize>(usize);

impl<const LEAST: usize> ByteSize<LEAST> {
    pub(super) const fn get(self) -> usize {
        self.0
    }
}

/// Reads a whole number with a unit.
fn parse(text: &str) -> Option<usize> {
    let text = text.trim();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))?;
    let number = number.trim_end();
    let is_plain = number.bytes().all(|digit| digit.is_ascii_digit());
    let number = number.parse::<usize>().ok().filter(|_| is_plain)?;
    number.checked_mul(*unit)
}

/// Writes a number of bytes in the largest unit of which it is a whole number.
pub(super) fn text(bytes: usize) -> String {
    let mut units = [("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter();
    let unit = units.find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    let (unit, shift) = unit.unwrap_or(("B", 0));
    format!("{} {unit}", bytes >> shift)
}

struct SizeVisitor<const LEAST: usize>;

impl<const LEAST: usize> SizeVisitor<LEAST> {
    fn check<E: Error>(
        shown: impl fmt::Display,
        size: Option<usize>,
    ) -> Result<ByteSize<LEAST>, E> {
        match size {
            Some(size) if size >= LEAST << 20 => Ok(ByteSize(size)),
            Some(_) => Err(E::custom(format_args!(
                "{shown} is less than {LEAST} MiB, the longest request"
            ))),
            None => Err(E::custom(format_args!(
                "{shown} is not a size such as \"256 MiB\""
            ))),
        }
    }
}

impl<const LEAST: usize> Visitor<'_> for SizeVisitor<LEAST> {
    type Value = ByteSize<LEAST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"256 MiB\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Self::check(format_args!("{text:?}"), parse(text))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Self::check(number, usize::try_from(number).ok())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Self::check(number, usize::try_from(number).ok())
    }
}

impl<'de, const LEAST: usize> Deserialize<'de> for ByteSize<LEAST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl<const LEAST: usize> JsonSchema for ByteSize<LEAST> {
    fn schema_name() -> Cow<'static, str> {
        format!("ByteSizeFrom{LEAST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let units = UNITS.map(|(unit, _)| unit).join("|");
        json_schema!({
            "type": ["string", "integer"],
            "pattern": format!("^\\s*[0-9]+\\s*({units})\\s*$"),
            "minimum": LEAST << 20,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_whole_number_with_a_unit() {
        for (text, bytes) in [
            ("256 MiB", Some(256 << 20)),
            ("256MiB", Some(256 << 20)),
            (" 1 GiB ", Some(1 << 30)),
            ("64 KiB", Some(65_536)),
            ("2 GB", Some(2_000_000_000)),
            ("33554432 B", Some(32 << 20)),
            ("33554432", None),
            ("1.5 GiB", None),
            ("-1 GiB", None),
            ("+1 GiB", None),
            ("GiB", None),
            ("256 M", None),
            ("99999999999999 GiB", None),
            ("", None),
        ] {
            assert_eq!(parse(text), bytes, "{text}");
        }
    }

    #[test]
    fn a_size_is_written_in_its_largest_unit() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1_000, "1000 B"),
            (65_536, "64 KiB"),
            (33_554_432, "32 MiB"),
            (3 << 30, "3 GiB"),
            ((3 << 30) + 1_024, "3145729 KiB"),
        ] {
            assert_eq!(text(bytes), expected);
            assert_eq!(parse(expected), Some(bytes));
        }
    }
}
