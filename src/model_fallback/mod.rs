//! The models that a request may go to, and what each of them is sent.
//!
//! A [`Candidate`] is one model at one upstream. Whichever of them is asked,
//! it gets the original request: only the bytes of the top-level `model` value
//! change, with the length and the headers that belong to one upstream. A
//! prompt that goes through a JSON library and back comes out different
//! (`1.0000000000000000001` becomes `1.0`), and a caller's key that goes to
//! another provider is a leak.
//!
//! ```
//! use http::Uri;
//! use tower_agent::{Candidate, CandidateDialect};
//!
//! # fn main() -> Result<(), tower_agent::BoxError> {
//! let candidates = [
//!     Candidate::new("gpt-large"),
//!     Candidate::new("local-small")
//!         .base_url(Uri::from_static("http://localhost:8000/v1"))?
//!         .api_key("secret")?
//!         .dialect(CandidateDialect::OpenAi),
//! ];
//! # let _ = candidates;
//! # Ok(())
//! # }
//! ```

#![allow(
    dead_code,
    unused_imports,
    reason = "the layer that makes attempts of candidates comes next"
)]

mod base_url;
mod candidate;
mod credential;
mod dialect;
mod headers;
mod operation;
mod original;
mod patch;
#[cfg(test)]
mod tests;

pub use self::{base_url::InvalidBaseUrl, candidate::Candidate, dialect::CandidateDialect};

pub(crate) use self::{headers::strip_hop, operation::Operation, original::Original};
