//! The error of a configuration: the key, its place in the text, and the message.

use std::{error::Error, fmt, ops::Range};

use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

/// The beginning of the message about an unknown key.
const UNKNOWN: &str = "unknown key";

/// The reason why a configuration cannot be used.
///
/// The error prints as `NAME:LINE:COLUMN: KEY: MESSAGE`, as compilers print errors, so that editors
/// find the place. A part that is not known is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    name: Option<String>,
    position: Option<(usize, usize)>,
    key: Vec<KeyPart>,
    message: String,
}

/// A part of a key's dotted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// A key of a table.
    Name(String),
    /// The index of an entry, from 0.
    Index(usize),
}

impl ConfigError {
    /// Makes an error about the key at this path.
    #[must_use]
    pub fn new<P: Into<KeyPart>>(
        key: impl IntoIterator<Item = P>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            name: None,
            position: None,
            key: key.into_iter().map(Into::into).collect(),
            message: message.into(),
        }
    }

    /// The dotted path of the key, such as `agents.coder.timeout`; empty for the whole document.
    #[must_use]
    pub fn key(&self) -> String {
        let mut path = String::new();
        for part in &self.key {
            match part {
                KeyPart::Name(name) if path.is_empty() => path.push_str(name),
                KeyPart::Name(name) => path.extend([".", name]),
                KeyPart::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        path
    }

    /// The line and the column of the mistake, if they are known. Lines count from 1.
    ///
    /// The column counts from 1, in characters of TOML and in bytes of JSON. It is 0 if JSON ends
    /// too early, right after a line break.
    #[must_use]
    pub const fn position(&self) -> Option<(usize, usize)> {
        self.position
    }

    /// The message, on one line, without the key and its place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Sets the name of the text, such as the path of its file.
    #[must_use]
    pub fn in_file(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Finds the place of the key in the TOML document that was read, unless the place is known.
    #[must_use]
    pub fn in_toml(mut self, text: &str) -> Self {
        if let (None, Ok(document)) = (self.position, DeTable::parse(text)) {
            let span = place(&document, &self);
            self.position = span.map(|span| position(text, span.start));
        }
        self
    }

    pub(super) fn of_json(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        // serde_json appends the place to the message.
        let message = text
            .rsplit_once(" at line ")
            .map_or(&*text, |(message, _)| message);
        let mut wrong = Self::new([""; 0], message);
        wrong.position = (error.line() > 0).then(|| (error.line(), error.column()));
        wrong
    }

    pub(super) fn at(mut self, path: &Path) -> Self {
        self.key = path
            .iter()
            .filter_map(|part| match part {
                Segment::Seq { index } => Some(KeyPart::Index(*index)),
                Segment::Map { key } => Some(KeyPart::Name(key.clone())),
                Segment::Enum { .. } | Segment::Unknown => None,
            })
            .collect();
        // Serde's message for an unknown key. The error's path ends at the key or at its table.
        let unknown = self.message.strip_prefix("unknown field `");
        if let Some((name, known)) = unknown.and_then(|rest| rest.split_once('`')) {
            let last = KeyPart::from(name);
            if self.key.last() != Some(&last) {
                self.key.push(last);
            }
            self.message = format!("{UNKNOWN}{known}");
        }
        self.message = self.message.replacen("missing field", "missing key", 1);
        self
    }
}

/// Parses a TOML document.
///
/// # Errors
///
/// If the text is no TOML, with the line and the column of the mistake.
pub fn parse_toml(text: &str) -> Result<toml::Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        let message = error.message().replace('\n', ": ");
        let mut wrong = ConfigError::new([""; 0], message);
        wrong.position = error.span().map(|span| position(text, span.start));
        wrong
    })
}

/// Reads a type from a part of a TOML document; an error names the key in that part.
///
/// # Errors
///
/// For the first key that is unknown, missing, or has a wrong value.
pub fn read_table<T: DeserializeOwned>(table: toml::Table) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| {
        let message = error.inner().message();
        ConfigError::new([""; 0], message).at(error.path())
    })
}

/// The byte range of the error's value, or of the innermost table or entry on its path that exists.
///
/// For a table, and for an unknown key, the result is the range of the key.
fn place(document: &Spanned<DeTable<'_>>, error: &ConfigError) -> Option<Range<usize>> {
    let mut table = Some(document.get_ref());
    let mut array = None;
    let mut found: Option<(Range<usize>, &Spanned<DeValue<'_>>)> = None;
    for part in &error.key {
        let next = match part {
            KeyPart::Name(name) => table
                .and_then(|table| table.get_key_value(&**name))
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
    let is_key = value.get_ref().is_table() || error.message.starts_with(UNKNOWN);
    Some(if is_key { key } else { value.span() })
}

/// Line and column of a byte, from 1, the column in characters.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

impl From<&str> for KeyPart {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<usize> for KeyPart {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}:")?;
        }
        if let Some((line, column)) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        let known = self.name.is_some() || self.position.is_some();
        f.write_str(if known { " " } else { "" })?;
        let key = self.key();
        if !key.is_empty() {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl Error for ConfigError {}
