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

/// The credential of the operator: the control token, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    token: Option<Secret>,
}

/// Headers that proxies add: whole names, then beginnings, then endings.
const PROXIED: [&str; 5] = ["client-ip", "forwarded", "via", "x-forwarded", "x-real-ip"];
const PROXIED_BEGINS: [&str; 3] = ["x-forwarded-", "x-envoy-", "cf-"];
const PROXIED_ENDS: [&str; 2] = ["-client-ip", "-connecting-ip"];

impl Operator {
    pub(crate) const fn new(token: Option<Secret>) -> Self {
        Self { token }
    }
}

/// Admits only the operator's requests.
///
/// If there is a control token, the request must carry it. Otherwise the request must come from
/// this machine. [`Pages`](super::Pages) has refused pages of other origins before.
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

/// Whether a request comes from this machine, names it as its host, and came through no proxy.
///
/// The peer's address alone proves nothing: a page can have its own name resolve to a loopback
/// address.
fn is_local(peer: SocketAddr, uri: &Uri, headers: &HeaderMap) -> bool {
    peer.ip().to_canonical().is_loopback()
        && host(uri, headers).is_some_and(is_loopback)
        // A proxy on this machine forwards requests of other machines.
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
