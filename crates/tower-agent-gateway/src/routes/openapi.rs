//! `GET /openapi.json`: a description of the routes.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

/// The description; a test holds it against the router.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

pub(crate) async fn show() -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], OPENAPI).into_response()
}
