use std::{error::Error, fmt};

use http::StatusCode;

/// The upstream of a candidate with a base URL answered 1xx or 3xx: the request
/// would have to go elsewhere, with the prompt, and no caller is handed the answer.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// The answer's.
    pub status: StatusCode,
}

/// A whole answer, announced as JSON under a good status, is no JSON document, or half
/// of one: it does not close what it opens.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteJson {
    /// Its bytes.
    pub length: u64,
}

impl Redirected {
    /// The error of an answer with this status, which is a 1xx or 3xx.
    #[must_use]
    pub const fn new(status: StatusCode) -> Self {
        Self { status }
    }
}

impl IncompleteJson {
    /// The error of an answer of `length` bytes.
    #[must_use]
    pub const fn new(length: u64) -> Self {
        Self { length }
    }
}

impl fmt::Display for Redirected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.as_u16();
        write!(f, "upstream answered {status}, which is not followed")
    }
}

impl fmt::Display for IncompleteJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length;
        write!(f, "answer of {length} bytes is no whole JSON document")
    }
}

impl Error for Redirected {}

impl Error for IncompleteJson {}
