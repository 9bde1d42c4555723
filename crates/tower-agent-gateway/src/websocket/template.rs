//! The request that the calls of a socket have in common: the one of its upgrade.

use axum::body::Body;
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header,
    request::Parts,
};
use tower_agent::layers::terminal_response::WithoutEarlyHead;

/// What an upgrade says about each call of its socket.
#[derive(Debug)]
pub(super) struct Template {
    uri: Uri,
    headers: HeaderMap,
    extensions: Extensions,
}

/// The headers that concern the transport alone.
static TRANSPORT: [HeaderName; 12] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_ACCEPT,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_VERSION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    // A client may ask for the compression of the answer to its upgrade.
    header::ACCEPT_ENCODING,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("x-responsesapi-include-timing-metrics"),
];

const OPENAI_BETA: HeaderName = HeaderName::from_static("openai-beta");

impl Template {
    pub(super) fn new(parts: Parts) -> Self {
        let mut headers = parts.headers;
        for name in named_by_connection(&headers) {
            headers.remove(name);
        }
        for name in &TRANSPORT {
            headers.remove(name);
        }
        let betas = headers.remove(OPENAI_BETA);
        if let Some(rest) = betas.as_ref().and_then(without_transport) {
            headers.insert(OPENAI_BETA, rest);
        }
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let events = HeaderValue::from_static("text/event-stream");
        headers.insert(header::ACCEPT, events);
        // An event of the socket has room for the status of a failure, however late it comes.
        let mut extensions = parts.extensions;
        extensions.insert(WithoutEarlyHead);
        Self {
            uri: parts.uri,
            headers,
            extensions,
        }
    }

    /// The POST of one call; `own` are the headers that hold for it alone.
    pub(super) fn request(&self, own: &HeaderMap, body: String) -> Request<Body> {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_11;
        request.uri_mut().clone_from(&self.uri);
        request.headers_mut().clone_from(&self.headers);
        request.extensions_mut().clone_from(&self.extensions);
        for (name, value) in own {
            request.headers_mut().insert(name, value.clone());
        }
        request
    }
}

/// The headers that `connection` names: they concern the connection alone.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',').map(str::trim));
    names.filter_map(|name| name.parse().ok()).collect()
}

/// The value of `openai-beta` without the part that asks for this transport.
fn without_transport(value: &HeaderValue) -> Option<HeaderValue> {
    let parts = value.to_str().ok()?.split(',').map(str::trim);
    let rest: Vec<_> = parts
        .filter(|part| !part.is_empty() && !part.starts_with("responses_websockets"))
        .collect();
    let rest = (!rest.is_empty()).then(|| rest.join(","))?;
    HeaderValue::try_from(rest).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_headers_of_the_upgrade_but_those_of_the_transport() {
        let (parts, ()) = Request::get("/v1/responses?api-version=1")
            .header("connection", "Upgrade, x-hop")
            .header("x-hop", "1")
            .header("upgrade", "websocket")
            .header("sec-websocket-key", "k")
            .header("sec-websocket-version", "13")
            .header(
                "openai-beta",
                "responses_websockets=2026-02-06, responses_multi_agent=v1",
            )
            .header("originator", "codex")
            .header("x-codex-turn-metadata", "old")
            .extension(7_u8)
            .body(())
            .unwrap()
            .into_parts();
        let template = Template::new(parts);
        let mut own = HeaderMap::new();
        own.insert("x-codex-turn-metadata", HeaderValue::from_static("new"));
        let request = template.request(&own, "{}".to_owned());
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/v1/responses?api-version=1");
        assert_eq!(request.extensions().get(), Some(&7_u8));
        let mut headers: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        headers.sort_unstable();
        let expected = [
            ("accept", "text/event-stream"),
            ("content-type", "application/json"),
            ("openai-beta", "responses_multi_agent=v1"),
            ("originator", "codex"),
            ("x-codex-turn-metadata", "new"),
        ];
        assert_eq!(headers, expected);
    }
}
