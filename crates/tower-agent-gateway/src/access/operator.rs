use std::net::SocketAddr;

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, StatusCode, Uri},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    bearers,
    origin::{host, is_loopback},
};
use crate::config::Secret;

/// How the operator is known.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    token: Option<Secret>,
}

/// Headers that proxies add, whole and by how their names begin and end.
const PROXIED: [&str; 5] = ["client-ip", "forwarded", "via", "x-forwarded", "x-real-ip"];
const PROXIED_BEGINS: [&str; 3] = ["x-forwarded-", "x-envoy-", "cf-"];
const PROXIED_ENDS: [&str; 2] = ["-client-ip", "-connecting-ip"];

impl Operator {
    pub(crate) const fn new(token: Option<Secret>) -> Self {
        Self { token }
    }
}

/// Lets only the operator through: with a token whoever knows it; without one
/// whoever is on this machine. Pages of other origins are refused before.
pub(crate) async fn guard(
    State(operator): State<Operator>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let allowed = match &operator.token {
        Some(token) => bearers(headers).any(|given| token.is(given)),
        None => is_local(peer, request.uri(), headers),
    };
    if allowed {
        next.run(request).await
    } else {
        let message = match operator.token {
            Some(_) => "this route needs the control token\n",
            None => "this route serves requests from this machine only\n",
        };
        (StatusCode::FORBIDDEN, message).into_response()
    }
}

/// Whether the request is of this machine, and meant for it: a browser can be
/// made to resolve a foreign name to a loopback address.
fn is_local(peer: SocketAddr, uri: &Uri, headers: &HeaderMap) -> bool {
    peer.ip().to_canonical().is_loopback()
        && host(uri, headers).is_some_and(is_loopback)
        // A proxy on this machine speaks for others.
        && !is_proxied(headers)
}

fn is_proxied(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        PROXIED.contains(&name)
            || PROXIED_BEGINS.iter().any(|begins| name.starts_with(begins))
            || PROXIED_ENDS.iter().any(|ends| name.ends_with(ends))
    })
}
