//! A forward scanner of JSON objects: it walks the keys that a judge asks for and skips the rest.
//!
//! Every valid document reads as `serde_json` reads it. What is skipped is checked for structure
//! only, so a broken number or a bad escape in there goes unnoticed: a judge may be lenient. It may
//! be nested to any depth, too, or a few brackets where nobody looks would hide all the rest.

mod scanner;
mod text;
mod tokens;

pub(crate) use self::{scanner::Scanner, text::Text};

/// Not JSON, or walked too deeply.
#[derive(Debug)]
pub(crate) struct Malformed;

pub(crate) type Scan<T> = Result<T, Malformed>;
