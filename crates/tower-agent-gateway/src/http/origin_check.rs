//! The check of the page behind a request.
//!
//! tower-http's `CsrfLayer` is not enough: it admits every GET, so a page could have a browser ask
//! `/metrics` or wait for a run. It also admits a page whose origin equals the request's host, which
//! a page has once its name resolves to this machine, and it knows its origins by a list, which
//! cannot name each port of this machine.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};

use super::check_layer::Check;
use crate::config::Cors;

/// Refuses requests of pages from origins that may not use a route.
///
/// CORS alone is not enough. A browser sends a simple POST without a preflight, so a page that
/// cannot read the answer could still spend the operator's keys.
#[derive(Clone, Debug)]
pub(crate) enum OriginCheck {
    /// Admits pages that this server itself has served.
    Same,
    /// Admits pages of this machine, and of the listed origins.
    Listed(Option<Cors>),
}

impl OriginCheck {
    fn admits(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut origins = headers.get_all(header::ORIGIN).into_iter();
        match self {
            Self::Same => {
                let host = host(uri, headers);
                origins.all(|origin| host.is_some() && authority(origin) == host)
                    && headers.get(FETCH_SITE).is_none_or(is_own)
            }
            Self::Listed(listed) => origins
                .all(|origin| authority(origin).is_some_and(is_loopback) || lists(listed, origin)),
        }
    }
}

/// `Sec-Fetch-Site`: how the page behind a request relates to this server.
///
/// Browsers send `Sec-Fetch-Site` also where they send no `Origin`: for an image, a script, a link.
const FETCH_SITE: &str = "sec-fetch-site";

fn is_own(site: &HeaderValue) -> bool {
    // `none` says that no page caused the request; the user typed the address, for example.
    matches!(site.as_bytes(), b"same-origin" | b"none")
}

fn lists(listed: &Option<Cors>, origin: &HeaderValue) -> bool {
    match listed {
        None => false,
        Some(Cors::Any) => true,
        Some(Cors::Of(origins)) => origins.contains(origin),
    }
}

/// The authority that a request names: that of its URI, else its `Host` header.
pub(super) fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let host = headers.get(header::HOST);
    let named = host.map(|value| value.to_str().unwrap_or(""));
    uri.authority()
        .map(|authority| authority.as_str())
        .or(named)
}

fn authority(origin: &HeaderValue) -> Option<&str> {
    let origin = origin.to_str().ok()?;
    origin
        .strip_prefix("http://")
        .or(origin.strip_prefix("https://"))
}

impl Check for OriginCheck {
    fn check(&self, request: &mut Request) -> Result<(), Box<Response>> {
        if self.admits(request.uri(), request.headers()) {
            return Ok(());
        }
        let message = "this route does not answer pages of another origin\n";
        Err(Box::new((StatusCode::FORBIDDEN, message).into_response()))
    }
}

/// Whether an authority names this machine.
pub(super) fn is_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<http::uri::Authority>() else {
        return false;
    };
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}
