//! Decides whether a caller expects an event stream, and so may get an early head.

use std::any::Any;

use http::{Request, header, request::Parts};

use crate::{body::ReplayBody, llm::RequestFields};

/// Whether a request asks for an event stream, so that the layer may send an early head.
pub(super) fn wants_stream<B: 'static>(
    request: Request<B>,
    streams: Option<fn(&Parts) -> bool>,
) -> (bool, Request<B>) {
    let (parts, body) = request.into_parts();
    let wants = match streams {
        Some(streams) => streams(&parts),
        None => says_stream(&body).unwrap_or_else(|| accepts_events_alone(&parts)),
    };
    (wants, Request::from_parts(parts, body))
}

/// Whether the caller's `accept` header names an event stream, and allows no JSON.
///
/// A client that accepts both does not say which one it expects.
fn accepts_events_alone(parts: &Parts) -> bool {
    let accepts = |wanted: &[&str]| {
        let values = parts.headers.get_all(header::ACCEPT).iter();
        let mut kinds = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        kinds.any(|kind| {
            let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
            let essence = essence.trim_ascii();
            let mut wanted = wanted.iter();
            wanted.any(|wanted| essence.eq_ignore_ascii_case(wanted.as_bytes()))
        })
    };
    accepts(&["text/event-stream"]) && !accepts(&["application/json", "application/*", "*/*"])
}

/// The `stream` flag of the body; `None` if it is no `ReplayBody` in one piece with a JSON object.
fn says_stream<B: 'static>(body: &B) -> Option<bool> {
    let body = (body as &dyn Any).downcast_ref::<ReplayBody>()?;
    let fields = RequestFields::read(body.contiguous()?).ok()?;
    Some(fields.stream())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants<B: 'static>(accept: Option<&str>, body: B) -> bool {
        let mut request = Request::builder();
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        wants_stream(request.body(body).unwrap(), None).0
    }

    #[test]
    fn a_request_for_a_stream_is_told_by_what_it_accepts() {
        assert!(wants(Some("text/event-stream"), ()));
        assert!(wants(Some("text/plain, Text/Event-Stream;q=0.5"), ()));
        assert!(!wants(Some("application/json, text/event-stream"), ()));
        assert!(!wants(Some("text/event-stream, */*;q=0.1"), ()));
        assert!(!wants(Some("application/json"), ()));
        assert!(!wants(Some("text/event-streams"), ()));
        assert!(!wants(None, ()));
    }

    #[test]
    fn its_body_decides_if_that_is_at_hand() {
        let streams = r#"{"model":"m","stream":true}"#;
        assert!(wants(None, ReplayBody::from(streams)));
        assert!(wants(Some("application/json"), ReplayBody::from(streams)));
        assert!(!wants(None, ReplayBody::from(r#"{"stream":false}"#)));
        let events = Some("text/event-stream");
        assert!(!wants(events, ReplayBody::from(r#"{"stream":false}"#)));
        assert!(wants(events, ReplayBody::default()), "it says nothing");
        assert!(!wants(None, ReplayBody::from(r#"{"a":{"stream":true}}"#)));
        assert!(!wants(None, ReplayBody::from("stream")));
        assert!(!wants(None, streams.to_owned()), "it is not read");
    }

    #[test]
    fn the_program_knows_better() {
        let streams = |parts: &Parts| parts.uri.path() == "/stream";
        let ask = |path: &str| {
            let request = Request::get(path).header("accept", "text/event-stream");
            wants_stream(request.body(()).unwrap(), Some(streams)).0
        };
        assert!(ask("/stream"));
        assert!(!ask("/other"));
    }
}
