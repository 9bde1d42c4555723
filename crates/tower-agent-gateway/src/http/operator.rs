//! The check of the operator's credential.

use std::net::SocketAddr;

use axum::{
    extract::{ConnectInfo, Request},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};

use super::{
    callers::bearers,
    check_layer::Check,
    origin_check::{host, is_loopback},
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
/// this machine. [`OriginCheck`](super::OriginCheck) has refused pages of other origins before.
impl Check for Operator {
    fn check(&self, request: &mut Request) -> Result<(), Box<Response>> {
        let (is_allowed, refusal) = match &self.token {
            Some(token) => (
                bearers(request.headers()).any(|given| token.is(given)),
                "this route needs the control token\n",
            ),
            None => (
                is_local(request),
                "this route serves requests from this machine only\n",
            ),
        };
        if is_allowed {
            return Ok(());
        }
        Err(Box::new((StatusCode::FORBIDDEN, refusal).into_response()))
    }
}

/// Whether a request comes from this machine, names it as its host, and came through no proxy.
///
/// The peer's address alone proves nothing: a page can have its own name resolve to a loopback
/// address.
fn is_local(request: &Request) -> bool {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
        && host(request.uri(), request.headers()).is_some_and(is_loopback)
        // A proxy on this machine forwards requests of other machines.
        && !is_proxied(request.headers())
}

fn is_proxied(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        PROXIED.contains(&name)
            || PROXIED_BEGINS.iter().any(|begins| name.starts_with(begins))
            || PROXIED_ENDS.iter().any(|ends| name.ends_with(ends))
    })
}
