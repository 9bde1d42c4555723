use std::time::Duration;

use http::{HeaderName, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::Cors;

/// How long a browser need not ask again.
const MAX_AGE: Duration = Duration::from_secs(600);

/// What pages may read of an answer besides its body: whose SDK decides by it,
/// or whose people ask for it.
const EXPOSED: [&str; 6] = [
    "x-should-retry",
    "x-terminal-reason",
    "x-run-id",
    "retry-after",
    "x-served-model",
    "x-attempt",
];

/// Says to browsers which pages may call.
pub(crate) fn cors(listed: &Cors) -> CorsLayer {
    let origins = match listed {
        Cors::Any => AllowOrigin::any(),
        Cors::Of(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // SDKs send headers of their own; and a wildcard would not let
        // `authorization` pass.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED.map(HeaderName::from_static))
        .max_age(MAX_AGE)
}
