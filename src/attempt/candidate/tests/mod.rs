mod account;
mod base_url;
mod candidate;
mod operation;
mod rewrites;

use bytes::Bytes;
use http::Uri;

use super::Candidate;
use crate::body::ReplayBody;

/// A candidate with an upstream of its own.
fn elsewhere() -> Candidate {
    let url = Uri::from_static("https://other.example/v1");
    Candidate::new("served").base_url(url).unwrap()
}

fn bytes(body: &ReplayBody) -> Bytes {
    body.gathered()
}
