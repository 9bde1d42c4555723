//! Answers of the upstream that are errors, in the shape of the dialect.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

use super::request::Operation;

/// Why a request is refused.
#[derive(Debug)]
pub(super) enum Refused {
    BadJson(serde_json::Error),
    UnknownModel(String),
}

impl Refused {
    pub(super) fn respond(&self, operation: Operation) -> Response {
        let anthropic = matches!(operation, Operation::Messages | Operation::CountTokens);
        let (status, kind, code, message) = match self {
            Self::BadJson(error) => {
                let message = format!("could not parse the JSON body of your request: {error}");
                (
                    StatusCode::BAD_REQUEST,
                    "invalid_request_error",
                    None,
                    message,
                )
            }
            Self::UnknownModel(model) if anthropic => (
                StatusCode::NOT_FOUND,
                "not_found_error",
                None,
                format!("model: {model}"),
            ),
            Self::UnknownModel(model) => {
                let message =
                    format!("The model `{model}` does not exist or you do not have access to it.");
                (
                    StatusCode::NOT_FOUND,
                    "invalid_request_error",
                    Some("model_not_found"),
                    message,
                )
            }
        };
        let body = if anthropic {
            json!({"type": "error", "error": {"type": kind, "message": message}})
        } else {
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        };
        (status, Json(body)).into_response()
    }
}
