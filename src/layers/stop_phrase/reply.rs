//! Builds the assistant message that answers a stop phrase, in each API.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
use serde_json::Value;

use crate::{
    body::ReplayBody,
    llm::{History, dialect::Dialect},
    supervise::dialect_of,
};

/// The dialect in which to answer the request.
///
/// The path decides, else the dialect in the request's extensions. Without either, the dialect
/// stays unknown for a body with `input`, is Anthropic's with the `anthropic-version` header or a
/// key that only Anthropic has, and else is chat.
pub(super) fn reply_dialect(request: &Request<ReplayBody>, history: &History<'_>) -> Dialect {
    let anthropic = request.headers().contains_key("anthropic-version") || history.is_anthropic;
    match dialect_of(request) {
        Dialect::Any if history.is_responses => Dialect::Any,
        Dialect::Any if anthropic => Dialect::Anthropic,
        Dialect::Any => Dialect::OpenAiChat,
        known => known,
    }
}

/// The assistant message that answers a stop phrase; `None` for a dialect without a known format.
///
/// The message's ids are made from `number`, and `model` is the model that the request names.
/// `text` must have no characters that JSON escapes.
pub(super) fn reply(
    dialect: Dialect,
    streams: bool,
    number: u64,
    model: &str,
    text: &str,
) -> Option<Response<Full<Bytes>>> {
    let (document, events) = match dialect {
        Dialect::OpenAiChat => (
            include_str!("replies/chat.json"),
            include_str!("replies/chat.sse"),
        ),
        Dialect::OpenAiResponses => (
            include_str!("replies/responses.json"),
            include_str!("replies/responses.sse"),
        ),
        Dialect::Anthropic => (
            include_str!("replies/messages.json"),
            include_str!("replies/messages.sse"),
        ),
        _ => return None,
    };
    let (template, content_type) = match streams {
        true => (events, "text/event-stream"),
        false => (document.trim_end(), "application/json"),
    };
    // Insert the model last: it is the caller's text, and may contain another placeholder.
    let body = template
        .replace("{id}", &format!("{number:016x}"))
        .replace("{text}", text)
        .replace("\"{model}\"", &Value::from(model).to_string());
    let mut answer = Response::new(Full::from(body));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if streams {
        let fresh = HeaderValue::from_static("no-cache");
        headers.insert(header::CACHE_CONTROL, fresh);
    }
    Some(answer)
}
