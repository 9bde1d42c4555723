//! Requests that came through a proxy, as far as their headers say so.

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};

/// What proxies add.
const NAMES: [&str; 5] = ["client-ip", "forwarded", "via", "x-forwarded", "x-real-ip"];
const BEGINNINGS: [&str; 3] = ["x-forwarded-", "x-envoy-", "cf-"];
const ENDS: [&str; 2] = ["-client-ip", "-connecting-ip"];

/// Refuses what came through a proxy: it speaks for others, though it is of this machine.
pub(crate) async fn refuse(request: Request, next: Next) -> Response {
    if !is_proxied(request.headers()) {
        return next.run(request).await;
    }
    let message = "this route serves no requests that came through a proxy\n";
    (StatusCode::FORBIDDEN, message).into_response()
}

fn is_proxied(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        NAMES.contains(&name)
            || BEGINNINGS.iter().any(|begins| name.starts_with(begins))
            || ENDS.iter().any(|ends| name.ends_with(ends))
    })
}
