//! The headers that tell browsers which pages may call.

use std::time::Duration;

use http::{HeaderName, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::Cors;

/// The time for which a browser may cache the answer to a preflight.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The response headers that a page may read. SDKs decide by them whether to retry, and users
/// quote them in reports.
const EXPOSED: [&str; 7] = [
    "x-should-retry",
    "x-terminal-reason",
    "x-run-id",
    "retry-after",
    "x-served-model",
    "x-served-candidate",
    "x-attempt",
];

/// Builds the layer that tells browsers which pages may call.
pub(crate) fn cors_layer(listed: &Cors) -> CorsLayer {
    let origins = match listed {
        Cors::Any => AllowOrigin::any(),
        Cors::Of(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // The request's headers are mirrored, and not allowed by `*`: SDKs send headers of their
        // own, and `*` does not cover `authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED.map(HeaderName::from_static))
        .max_age(MAX_AGE)
}
