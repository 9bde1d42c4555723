use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::config::Cors;

/// The pages that may use a route: those of this machine, and maybe some more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages(Option<Cors>);

impl Pages {
    /// Also those that a configuration lists.
    pub(crate) const fn of(listed: Option<Cors>) -> Self {
        Self(listed)
    }

    fn may(&self, headers: &HeaderMap) -> bool {
        headers
            .get_all(header::ORIGIN)
            .into_iter()
            .all(|origin| is_of_this_machine(origin) || self.lists(origin))
    }

    fn lists(&self, origin: &HeaderValue) -> bool {
        match &self.0 {
            None => false,
            Some(Cors::Any) => true,
            Some(Cors::Of(origins)) => origins.contains(origin),
        }
    }
}

/// Refuses pages of other origins. A browser posts what is simple without
/// asking first, so it is not enough that the page may not read the answer:
/// whoever can make it post here would spend the operator's key.
pub(crate) async fn refuse_pages(
    State(pages): State<Pages>,
    request: Request,
    next: Next,
) -> Response {
    if pages.may(request.headers()) {
        next.run(request).await
    } else {
        let message = "this route does not answer pages of another origin\n";
        (StatusCode::FORBIDDEN, message).into_response()
    }
}

fn is_of_this_machine(origin: &HeaderValue) -> bool {
    let origin = origin.to_str().unwrap_or("");
    let authority = origin
        .strip_prefix("http://")
        .or(origin.strip_prefix("https://"));
    authority.is_some_and(is_loopback)
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
