//! The messages of an upstream's socket: events, of which some end a response.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{body::SocketBody, error::SocketError};

/// An event, as much of it as is needed; the rest is checked to be JSON.
#[derive(Debug, Deserialize)]
pub(super) struct UpstreamEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
}

/// What an event means for the response of which it is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// An output item is whole.
    Item,
    /// The response has ended, and the next one may continue it.
    End,
    /// The response has failed.
    Failure,
    /// There is no response, or no more of it.
    Error,
    Other,
}

/// The error that an upstream sends in the place of a response.
#[derive(Debug)]
pub(super) struct ErrorEvent(Value);

impl<'a> UpstreamEvent<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, SocketError> {
        serde_json::from_str(text).map_err(SocketError::NoEvent)
    }

    pub(super) fn meaning(&self) -> Meaning {
        match &*self.kind {
            "response.output_item.done" => Meaning::Item,
            "response.completed" | "response.incomplete" => Meaning::End,
            "response.failed" => Meaning::Failure,
            "error" => Meaning::Error,
            _ => Meaning::Other,
        }
    }

    /// Whether the event belongs to no response, and is not an error.
    pub(super) fn is_aside(&self) -> bool {
        self.meaning() != Meaning::Error && !self.kind.starts_with("response.")
    }

    /// The output item of the event.
    pub(super) const fn item(&self) -> Option<&'a RawValue> {
        self.item
    }

    /// The id of the event's response.
    pub(super) fn response_id(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct NamedEvent {
            id: String,
        }
        let named: NamedEvent = serde_json::from_str(self.response?.get()).ok()?;
        Some(named.id).filter(|id| !id.is_empty())
    }

    /// The event as one of SSE; `text` is all of it.
    pub(super) fn to_sse(&self, text: &str) -> Bytes {
        let mut sse = String::with_capacity(text.len() + self.kind.len() + 18);
        if !self.kind.is_empty() && !self.kind.contains(['\r', '\n']) {
            sse.extend(["event: ", &*self.kind, "\n"]);
        }
        for line in text.split(['\r', '\n']) {
            sse.extend(["data: ", line, "\n"]);
        }
        sse.push('\n');
        sse.into()
    }
}

impl ErrorEvent {
    /// Reads an event that is an error.
    pub(super) fn read(text: &str) -> Result<Self, SocketError> {
        serde_json::from_str(text)
            .map(Self)
            .map_err(SocketError::NoEvent)
    }

    /// Whether the upstream has forgotten the response that was to be continued.
    pub(super) fn is_forgotten(&self) -> bool {
        self.code() == Some("previous_response_not_found")
    }

    /// Whether the socket is too old, or one too many.
    pub(super) fn is_of_socket(&self) -> bool {
        self.code() == Some("websocket_connection_limit_reached")
    }

    fn code(&self) -> Option<&str> {
        let code = self.0["error"]["code"].as_str();
        code.or_else(|| self.0["code"].as_str())
    }

    /// The HTTP answer that says the same.
    pub(super) fn to_answer(&self) -> Response<SocketBody> {
        let error = match &self.0["error"] {
            Value::Null => &self.0,
            error => error,
        };
        let body = serde_json::json!({ "error": error }).to_string();
        let mut answer = Response::new(SocketBody::whole(body.into()));
        *answer.status_mut() = self.status().unwrap_or(StatusCode::BAD_GATEWAY);
        let headers = answer.headers_mut();
        for named in [&self.0["error"]["headers"], &self.0["headers"]] {
            read_headers(named, headers);
        }
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        answer
    }

    fn status(&self) -> Option<StatusCode> {
        let status = self.0["status"].as_u64();
        let status = status.or_else(|| self.0["status_code"].as_u64())?;
        let status = StatusCode::from_u16(status.try_into().ok()?).ok()?;
        (status.is_client_error() || status.is_server_error()).then_some(status)
    }
}

/// Adds the headers that an error names, but for those that frame a body or are of a connection.
fn read_headers(named: &Value, headers: &mut HeaderMap) {
    let named = named.as_object().into_iter().flatten();
    for (name, value) in named {
        let value = match value {
            Value::String(text) => Cow::Borrowed(&**text),
            Value::Number(_) | Value::Bool(_) => Cow::Owned(value.to_string()),
            _ => continue,
        };
        let name = name.parse::<HeaderName>();
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) else {
            continue;
        };
        let is_framing = name.as_str().starts_with("content-")
            || [header::TRANSFER_ENCODING, header::TRAILER].contains(&name);
        if !is_framing {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sse(text: &str) -> Bytes {
        UpstreamEvent::read(text).unwrap().to_sse(text)
    }

    #[test]
    fn an_event_of_several_lines_is_one_of_sse() {
        assert_eq!(
            sse("{\"type\":\"a\",\r\n\"b\":1}"),
            "event: a\ndata: {\"type\":\"a\",\ndata: \ndata: \"b\":1}\n\n"
        );
        assert_eq!(sse("{}"), "data: {}\n\n");
        // A name cannot begin a line of its own.
        let forged = r#"{"type":"a\ndata: x"}"#;
        assert_eq!(sse(forged), format!("data: {forged}\n\n"));
    }

    #[test]
    fn an_error_is_the_answer_that_says_the_same() {
        for (text, status, retry_after) in [
            (
                r#"{"type":"error","status":429,"headers":{"retry-after":7}}"#,
                429,
                Some("7"),
            ),
            (
                r#"{"type":"error","status_code":503,"error":{"headers":{"Retry-After":"8"}}}"#,
                503,
                Some("8"),
            ),
            (r#"{"type":"error","status":200}"#, 502, None),
            (r#"{"type":"error","status":"429"}"#, 502, None),
            (
                r#"{"type":"error","headers":{"content-length":1,"transfer-encoding":"chunked"}}"#,
                502,
                None,
            ),
        ] {
            let answer = ErrorEvent::read(text).unwrap().to_answer();
            assert_eq!(answer.status(), status, "{text}");
            let headers = answer.headers();
            let found = headers.get("retry-after");
            assert_eq!(found.map(|it| it.to_str().unwrap()), retry_after, "{text}");
            assert_eq!(headers.len(), 1 + usize::from(found.is_some()), "{text}");
        }
    }
}
