mod cooldown;
mod headers;
mod quotations;
mod request;
mod shared_secret;
mod wire;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};

use super::request::OriginalRequest;
use crate::{attempt::Candidate, body::ReplayBody};

const BODY: &str = r#"{"model":"asked","messages":[]}"#;

/// A chat request with these headers.
fn chat(headers: &[(&'static str, &'static str)]) -> OriginalRequest {
    post("/v1/chat/completions", headers, BODY)
}

fn post(
    path: &str,
    headers: &[(&'static str, &'static str)],
    body: &'static str,
) -> OriginalRequest {
    let mut request = Request::post(path).body(ReplayBody::from(body)).unwrap();
    for (name, value) in headers {
        let (name, value) = (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
        request.headers_mut().append(name, value);
    }
    OriginalRequest::read(request, None).unwrap()
}

/// A candidate with an upstream of its own.
fn elsewhere() -> Candidate {
    let url = Uri::from_static("https://other.example/v1");
    Candidate::new("served").base_url(url).unwrap()
}

/// The headers of an attempt at `candidate`.
fn sent(candidate: &Candidate, original: &OriginalRequest) -> HeaderMap {
    let id = HeaderValue::from_static("r-1");
    let request = candidate.request(&mut original.clone(), Some(id)).unwrap();
    request.into_parts().0.headers
}

fn bytes(body: &ReplayBody) -> Bytes {
    body.gathered()
}
