//! A forward scanner of JSON objects that skips the keys it does not need.
//!
//! Every valid document gives the same values as with `serde_json`. Skipped values are
//! checked for structure only, so a broken number or a bad escape in them goes unnoticed.
//! Skipped values may be nested to any depth: otherwise a few brackets in one would hide
//! the rest of the document.

mod scanner;
mod text;
mod tokens;

pub(crate) use self::{scanner::Scanner, text::Text};

/// The error of a text that is not JSON, or that is nested too deeply in its walked part.
#[derive(Debug)]
pub(crate) struct Malformed;

pub(crate) type Scan<T> = Result<T, Malformed>;
