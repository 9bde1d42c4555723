//! The paths of the APIs that callers' clients speak, and errors in the shape of those APIs.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use tower_agent::llm::{
    dialect::{Dialect, error_body},
    sse::ErrorInfo,
};

/// The path that all others of the APIs begin with.
pub(crate) const VERSION: &str = "/v1";

/// The operations that the gateway forwards.
pub(crate) const OPERATIONS: [&str; 8] = [
    "/v1/chat/completions",
    RESPONSES,
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
];

/// The operation that is also served over WebSocket.
pub(crate) const RESPONSES: &str = "/v1/responses";

/// The list of models, which the gateway answers itself.
pub(crate) const MODELS: &str = "/v1/models";

/// An error of the gateway's own, in the shape of the API that the request speaks.
///
/// Of a path that no API has, Anthropic's version header tells the API.
pub(crate) fn error(
    (uri, headers): (&Uri, &HeaderMap),
    status: StatusCode,
    code: &str,
    message: &str,
) -> Response {
    error_in(dialect(uri, headers), status, code, message)
}

/// The dialect in which the gateway answers a request.
pub(crate) fn dialect(uri: &Uri, headers: &HeaderMap) -> Dialect {
    match Dialect::from_path(uri.path()) {
        Dialect::Any if headers.contains_key("anthropic-version") => Dialect::Anthropic,
        known => known,
    }
}

/// An [`error`] in a dialect that is known already.
pub(crate) fn error_in(
    dialect: Dialect,
    status: StatusCode,
    code: &str,
    message: &str,
) -> Response {
    let info = ErrorInfo {
        code,
        message,
        run_id: None,
        sequence: 0,
        response_id: None,
    };
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, error_body(dialect, &info)).into_response()
}
