//! Decides whether a caller expects an event stream, and so may get an early head.

use std::any::Any;

use http::{Request, header, request::Parts};

use crate::{attempt::generates, body::ReplayBody, llm::RequestFields};

/// Whether a caller asks for an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamWish {
    Stream,
    Other,
    /// The body may say so, and no layer has read it yet; `accepts` is what the head says.
    Unread {
        accepts: bool,
    },
}

impl StreamWish {
    /// Decides by a body that was read, else by the head alone, if that asks for a stream.
    pub(super) fn of_body(body: Option<&ReplayBody>, accepts: bool) -> Self {
        let says = body.map(|body| says_stream(body).unwrap_or(accepts));
        match says {
            None if !accepts => Self::Unread { accepts },
            says => Self::of(says.unwrap_or(accepts)),
        }
    }

    const fn of(streams: bool) -> Self {
        if streams { Self::Stream } else { Self::Other }
    }
}

/// Whether a request asks for an event stream, so that the layer may send an early head.
///
/// Only answers that a model generates are streams: embeddings and the like are none.
pub(super) fn wants_stream<B: 'static>(
    request: Request<B>,
    streams: Option<fn(&Parts) -> bool>,
) -> (StreamWish, Request<B>) {
    let is_generated = generates(&request);
    let (parts, body) = request.into_parts();
    let wish = match streams {
        Some(streams) => StreamWish::of(streams(&parts)),
        None if !is_generated => StreamWish::Other,
        None => {
            let accepts = accepts_events_alone(&parts);
            match (&body as &dyn Any).downcast_ref::<ReplayBody>() {
                Some(body) => StreamWish::of_body(Some(body), accepts),
                None => StreamWish::Unread { accepts },
            }
        }
    };
    (wish, Request::from_parts(parts, body))
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

/// The `stream` flag of a JSON object; `None` for any other body.
fn says_stream(body: &ReplayBody) -> Option<bool> {
    let fields = RequestFields::read(&body.gathered()).ok()?;
    Some(fields.stream())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask<B: 'static>(path: &str, accept: Option<&str>, body: B) -> StreamWish {
        let mut request = Request::post(path);
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        wants_stream(request.body(body).unwrap(), None).0
    }

    fn wants<B: 'static>(accept: Option<&str>, body: B) -> StreamWish {
        ask("/v1/messages", accept, body)
    }

    const fn unread(accepts: bool) -> StreamWish {
        StreamWish::Unread { accepts }
    }

    #[test]
    fn a_request_for_a_stream_is_told_by_what_it_accepts() {
        for (accept, accepts) in [
            (Some("text/event-stream"), true),
            (Some("text/plain, Text/Event-Stream;q=0.5"), true),
            (Some("application/json, text/event-stream"), false),
            (Some("text/event-stream, */*;q=0.1"), false),
            (Some("application/json"), false),
            (Some("text/event-streams"), false),
            (None, false),
        ] {
            assert_eq!(wants(accept, ()), unread(accepts), "{accept:?}");
        }
        assert_eq!(StreamWish::of_body(None, true), StreamWish::Stream);
        assert_eq!(StreamWish::of_body(None, false), unread(false));
    }

    #[test]
    fn its_body_decides_if_that_is_at_hand() {
        let events = Some("text/event-stream");
        let streams = r#"{"model":"m","stream":true}"#;
        for (accept, body, expected) in [
            (None, streams, StreamWish::Stream),
            (Some("application/json"), streams, StreamWish::Stream),
            (None, r#"{"stream":false}"#, StreamWish::Other),
            (events, r#"{"stream":false}"#, StreamWish::Other),
            (events, "", StreamWish::Stream),
            (None, r#"{"a":{"stream":true}}"#, StreamWish::Other),
            (None, "stream", StreamWish::Other),
        ] {
            let found = wants(accept, ReplayBody::from(body));
            assert_eq!(found, expected, "{accept:?} {body}");
        }
        let unread = wants(None, streams.to_owned());
        assert_eq!(unread, StreamWish::Unread { accepts: false });
    }

    #[test]
    fn no_stream_answers_an_operation_that_generates_nothing() {
        let body = || ReplayBody::from(r#"{"stream":true}"#);
        let events = Some("text/event-stream");
        for path in ["/v1/embeddings", "/v1/messages/count_tokens"] {
            assert_eq!(ask(path, events, body()), StreamWish::Other);
        }
        for path in ["/v1/chat/completions", "/v1/responses", "/mine"] {
            assert_eq!(ask(path, None, body()), StreamWish::Stream);
        }
    }

    #[test]
    fn the_program_knows_better() {
        let streams = |parts: &Parts| parts.uri.path() == "/stream";
        let ask = |path: &str| {
            let request = Request::get(path).header("accept", "text/event-stream");
            wants_stream(request.body(()).unwrap(), Some(streams)).0
        };
        assert_eq!(ask("/stream"), StreamWish::Stream);
        assert_eq!(ask("/other"), StreamWish::Other);
    }
}
