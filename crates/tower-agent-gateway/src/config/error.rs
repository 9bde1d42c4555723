//! The error of a configuration: a message and its place in the file.

use std::error::Error;
use std::ops::Range;
use std::{fmt, io};

/// A configuration that cannot be used.
///
/// Its `Display` is `FILE:LINE:COLUMN: message`, as compilers print it, so that editors find
/// the place.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConfigError {
    /// The path of the file, or the name that the caller of `parse` gave.
    pub source_name: String,
    /// Line and column, both from 1; `None` if the mistake has no place in the file.
    pub position: Option<(usize, usize)>,
    /// The mistake, on one line.
    pub message: String,
    source: Option<io::Error>,
}

/// A message and the bytes of the document that it is about.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) span: Option<Range<usize>>,
}

impl ConfigError {
    pub(super) fn new(text: &str, source_name: &str, problem: Problem) -> Self {
        Self {
            source_name: source_name.to_owned(),
            position: problem.span.map(|span| position(text, span.start)),
            message: problem.message,
            source: None,
        }
    }

    pub(super) fn unreadable(source_name: &str, error: io::Error) -> Self {
        Self {
            source_name: source_name.to_owned(),
            position: None,
            message: "cannot be read".to_owned(),
            source: Some(error),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source_name)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Error for ConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            span: None,
        }
    }

    pub(super) fn at(self, span: Range<usize>) -> Self {
        Self {
            span: Some(span),
            ..self
        }
    }
}

impl From<toml::de::Error> for Problem {
    fn from(error: toml::de::Error) -> Self {
        // Serde says "field"; readers of a TOML file know them as keys.
        let message = error
            .message()
            .replacen("unknown field", "unknown key", 1)
            .replacen("missing field", "missing key", 1);
        Self {
            message,
            span: error.span(),
        }
    }
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
