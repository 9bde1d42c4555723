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

/// What proxies say of whom they speak for.
const FORWARDED: [&str; 6] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
];

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
        && !FORWARDED.iter().any(|name| headers.contains_key(*name))
}
