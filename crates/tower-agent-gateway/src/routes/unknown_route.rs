//! The answers to paths that the gateway does not serve, and to methods that a path does not take.

use axum::{extract::Request, response::Response};
use http::{HeaderValue, StatusCode, Uri, header};

use crate::{http::api, websocket::is_upgrade};

/// The most characters of a path that an error repeats.
const SHOWN: usize = 200;

/// Answers 404 to a path without a route, with the route that the caller may have meant.
pub(crate) async fn not_found(request: Request) -> Response {
    let (method, uri) = (request.method(), request.uri());
    let hint = hint(uri.path()).unwrap_or_default();
    let message = format!("There is no route {method} {}{hint}", shown(uri));
    let asked = (uri, request.headers());
    api::error(asked, StatusCode::NOT_FOUND, "not_found_error", &message)
}

/// Answers 405, or 426 to a WebSocket; axum adds the `allow` header.
pub(crate) async fn method_not_allowed(request: Request) -> Response {
    let (method, uri) = (request.method(), request.uri());
    let path = shown(uri);
    if is_operation(uri) && is_upgrade(request.headers()) {
        return no_websocket(&request);
    }
    let message =
        format!("The route {path} does not take {method}: the header `allow` lists what it takes");
    let status = StatusCode::METHOD_NOT_ALLOWED;
    let asked = (uri, request.headers());
    api::error(asked, status, "method_not_allowed", &message)
}

/// Answers 405 to a GET of the operation whose GETs are upgrades.
pub(crate) async fn no_get(request: Request) -> Response {
    let mut answer = method_not_allowed(request).await;
    let allowed = HeaderValue::from_static("POST");
    answer.headers_mut().insert(header::ALLOW, allowed);
    answer
}

/// Answers 426 to a client that asks for an operation over a WebSocket.
///
/// Codex opens `/v1/responses` as one. At a 426 it sends a POST at once; at any other refusal it first
/// connects five times more.
fn no_websocket(request: &Request) -> Response {
    let path = shown(request.uri());
    let message = format!("The route {path} does not speak WebSocket: send a POST");
    let asked = (request.uri(), request.headers());
    let mut answer = api::error(
        asked,
        StatusCode::UPGRADE_REQUIRED,
        "upgrade_required",
        &message,
    );
    // RFC 9110, 15.5.22 and 7.8: the answer names a protocol that would do.
    let protocol = HeaderValue::from_static("HTTP/1.1");
    answer.headers_mut().insert(header::UPGRADE, protocol);
    let named = HeaderValue::from_static("upgrade");
    answer.headers_mut().insert(header::CONNECTION, named);
    answer
}

fn is_operation(uri: &Uri) -> bool {
    api::OPERATIONS.contains(&uri.path())
}

/// The path as an error shows it: without the query, which may hold a key.
fn shown(uri: &Uri) -> String {
    let mut path: String = uri.path().chars().take(SHOWN).collect();
    if path.len() < uri.path().len() {
        path.push_str("..");
    }
    path
}

/// The end of the message for a path that ends as a route of an API does.
///
/// The rest of the path then tells how the base URL of the client is wrong.
fn hint(path: &str) -> Option<String> {
    let path = path.trim_end_matches('/').to_ascii_lowercase();
    let mut known = api::OPERATIONS.into_iter().chain([api::MODELS]);
    let (meant, base) = known.find_map(|known| {
        let operation = known.strip_prefix(api::VERSION)?;
        Some((known, path.strip_suffix(operation)?))
    })?;
    let why = match base {
        api::VERSION => "",
        "/v1/v1" => ": the client itself adds /v1 to the base URL",
        _ => ": the base URL ends in /v1, right after the host",
    };
    Some(format!(": did you mean {meant}{why}?"))
}
