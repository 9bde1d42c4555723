//! Opens a WebSocket by an HTTP/1.1 upgrade of an attempt's request.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use tower::ServiceExt;
use tower_agent::{BoxError, ReplayBody, llm::failure::TransportError};
use tower_agent_hyper::{HyperBody, HyperService};

use super::socket::UpstreamSocket;

/// The longest wait for the answer to an upgrade: an upstream that knows none may say nothing.
const MOST_WAIT: Duration = Duration::from_secs(15);

const OPENAI_BETA: HeaderName = HeaderName::from_static("openai-beta");

/// The part of `openai-beta` that asks for the API over WebSocket, and its value.
const BETA: &str = "responses_websockets";
const BETA_OF: &str = "responses_websockets=2026-02-06";

/// What an upstream makes of an upgrade.
pub(super) enum Upgrade {
    Open(UpstreamSocket),
    /// The upstream speaks no WebSocket at this URL, for this reason.
    Unknown(UpgradeRefusal),
    /// The upstream refuses the request itself.
    Answer(Response<HyperBody>),
}

#[derive(Debug)]
pub(super) enum UpgradeRefusal {
    Status(StatusCode),
    Silence,
}

/// Asks for a WebSocket in the place of `request`, with its headers.
///
/// # Errors
///
/// The errors of the client.
///
/// # Cancel safety
///
/// A drop of the future drops the connection.
pub(super) async fn upgrade(
    client: &HyperService,
    request: &Request<ReplayBody>,
) -> Result<Upgrade, BoxError> {
    let key = generate_key();
    let request = upgrade_request(request, &key)?;
    let Ok(answer) = timeout(MOST_WAIT, client.clone().oneshot(request)).await else {
        return Ok(Upgrade::Unknown(UpgradeRefusal::Silence));
    };
    let mut answer = answer?;
    let status = answer.status();
    if is_switched(&answer, &key) {
        let upgraded = hyper::upgrade::on(&mut answer).await;
        let upgraded = upgraded.map_err(TransportError::new)?;
        return Ok(Upgrade::Open(UpstreamSocket::new(upgraded).await));
    }
    Ok(match is_unknown(status) {
        true => Upgrade::Unknown(UpgradeRefusal::Status(status)),
        false => Upgrade::Answer(answer),
    })
}

fn upgrade_request(
    request: &Request<ReplayBody>,
    key: &str,
) -> Result<Request<ReplayBody>, BoxError> {
    let mut upgrade = Request::new(ReplayBody::default());
    *upgrade.method_mut() = Method::GET;
    *upgrade.uri_mut() = request.uri().clone();
    let mut headers = request.headers().clone();
    let of_post = headers.keys().filter(|name| {
        let name = name.as_str();
        let starts = ["content-", "sec-websocket-"];
        starts.iter().any(|start| name.starts_with(start))
            || ["accept", "transfer-encoding"].contains(&name)
            || is_of_turn(name)
    });
    for name in of_post.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
    for (name, value) in [
        (header::CONNECTION, "upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_VERSION, "13"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::SEC_WEBSOCKET_KEY, key.parse()?);
    headers.insert(OPENAI_BETA, beta(&headers)?);
    *upgrade.headers_mut() = headers;
    Ok(upgrade)
}

/// Whether a header holds for one turn: a socket lives longer.
fn is_of_turn(name: &str) -> bool {
    matches!(name, "traceparent" | "tracestate") || name.starts_with("x-openai-internal-")
}

/// The headers that hold for one turn, as members of the metadata of its event.
pub(super) fn of_turn(headers: &HeaderMap) -> Vec<(String, String)> {
    let of_turn = headers.iter().filter(|(name, _)| is_of_turn(name.as_str()));
    let named = of_turn.filter_map(|(name, value)| {
        let name = name.as_str().replace('-', "_");
        Some((
            format!("ws_request_header_{name}"),
            value.to_str().ok()?.to_owned(),
        ))
    });
    named.collect()
}

/// The header `openai-beta` with what the request's own asks for beside WebSockets.
fn beta(headers: &HeaderMap) -> Result<HeaderValue, BoxError> {
    let asked = headers.get_all(OPENAI_BETA).into_iter();
    let asked = asked.filter_map(|value| value.to_str().ok());
    let parts = asked.flat_map(|value| value.split(',')).map(str::trim);
    let others = parts.filter(|part| !part.is_empty() && !part.starts_with(BETA));
    let all: Vec<_> = others.chain([BETA_OF]).collect();
    Ok(all.join(", ").parse()?)
}

/// Whether an answer makes its connection a WebSocket (RFC 6455, 4.1).
fn is_switched(answer: &Response<HyperBody>, key: &str) -> bool {
    let is = |name: HeaderName, wanted: &str| {
        let value = answer.headers().get(name);
        value.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    let accepted = answer.headers().get(header::SEC_WEBSOCKET_ACCEPT);
    answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && is(header::UPGRADE, "websocket")
        && accepted.is_some_and(|accepted| {
            accepted.as_bytes() == derive_accept_key(key.as_bytes()).as_bytes()
        })
}

/// Whether the answer to an upgrade says nothing about the request itself.
///
/// A server that ignores the upgrade sees a GET without a query or a body.
fn is_unknown(status: StatusCode) -> bool {
    !(status.is_client_error() || status.is_server_error())
        || matches!(
            status,
            StatusCode::BAD_REQUEST
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::NOT_ACCEPTABLE
                | StatusCode::UNPROCESSABLE_ENTITY
                | StatusCode::UPGRADE_REQUIRED
                | StatusCode::NOT_IMPLEMENTED
                | StatusCode::HTTP_VERSION_NOT_SUPPORTED
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upgrade_has_the_headers_of_the_post_but_those_of_its_body_and_of_another_socket() {
        let mut post = Request::post("https://h/v1/responses?a=b");
        for (name, value) in [
            ("authorization", "Bearer k"),
            ("accept", "text/event-stream"),
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
            (
                "openai-beta",
                "responses_multi_agent=v1, responses_websockets=2025-01-01",
            ),
            ("openai-beta", "other"),
            ("sec-websocket-extensions", "permessage-deflate"),
            ("sec-websocket-key", "k"),
            ("sec-websocket-protocol", "p"),
            ("transfer-encoding", "chunked"),
            ("traceparent", "00-1"),
            ("x-openai-internal-codex-responses-lite", "true"),
        ] {
            post = post.header(name, value);
        }

        let post = post.body("{}".into()).unwrap();
        let upgrade = upgrade_request(&post, "key").unwrap();

        let mut of_turn = of_turn(post.headers());
        of_turn.sort_unstable();
        let lite = "ws_request_header_x_openai_internal_codex_responses_lite";
        let wanted = [("ws_request_header_traceparent", "00-1"), (lite, "true")];
        assert_eq!(
            of_turn,
            wanted.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );

        assert_eq!(upgrade.method(), Method::GET);
        assert_eq!(upgrade.uri(), "https://h/v1/responses?a=b");
        assert!(upgrade.body().is_empty());
        let wanted = [
            ("authorization", "Bearer k"),
            ("connection", "upgrade"),
            (
                "openai-beta",
                "responses_multi_agent=v1, other, responses_websockets=2026-02-06",
            ),
            ("sec-websocket-key", "key"),
            ("sec-websocket-version", "13"),
            ("upgrade", "websocket"),
        ];
        let sent = upgrade.headers().iter();
        let mut sent: Vec<_> = sent
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        sent.sort_unstable();
        assert_eq!(sent, wanted);
    }
}
