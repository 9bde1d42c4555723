//! Error answers of the simulated upstream, in the shape of each dialect.

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Value, json};

use super::behavior::FailureMode;
use super::error_content::ErrorContent;
use super::request::Endpoint;
use super::sse::{data, typed};

/// The reason why a request is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    BadJson(serde_json::Error),
    UnknownModel(String),
    /// The simulated model answers with an error by design.
    Simulated {
        model: &'static str,
        how: FailureMode,
    },
}

impl Refusal {
    pub(super) fn respond(&self, operation: Endpoint) -> Response {
        let content = self.content(operation);
        let status = StatusCode::from_u16(content.status).unwrap_or_default();
        let mut answer = (status, Json(content.body(operation))).into_response();
        if let Self::Simulated {
            how: FailureMode::RateLimited { retry_after },
            ..
        } = self
        {
            answer
                .headers_mut()
                .insert(RETRY_AFTER, (*retry_after).into());
        }
        answer
    }

    /// The error as the one event of a stream with status 200.
    pub(super) fn stream(&self, operation: Endpoint) -> Response {
        let content = self.content(operation);
        let event: Bytes = match operation {
            Endpoint::Responses => {
                let mut event = content.body(operation);
                event["type"] = json!("error");
                event["sequence_number"] = json!(0);
                typed(&event)
            }
            _ if anthropic(operation) => typed(&content.body(operation)),
            _ => data(&content.body(operation)),
        };
        let headers = [
            (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (CACHE_CONTROL, "no-cache"),
        ];
        (headers, event).into_response()
    }

    fn content(&self, operation: Endpoint) -> ErrorContent {
        match (self, anthropic(operation)) {
            (Self::BadJson(error), _) => {
                let message = format!("could not parse the JSON body of your request: {error}");
                ErrorContent::new(400, "invalid_request_error", None, message)
            }
            (Self::UnknownModel(model), true) => {
                ErrorContent::new(404, "not_found_error", None, format!("model: {model}"))
            }
            (Self::UnknownModel(model), false) => {
                let message =
                    format!("The model `{model}` does not exist or you do not have access to it.");
                ErrorContent::new(
                    404,
                    "invalid_request_error",
                    Some("model_not_found"),
                    message,
                )
            }
            (Self::Simulated { model, how }, true) => how.content_as_anthropic(model),
            (Self::Simulated { model, how }, false) => how.content_as_openai(model),
        }
    }
}

impl ErrorContent {
    fn body(&self, operation: Endpoint) -> Value {
        let Self {
            kind,
            code,
            message,
            ..
        } = self;
        if anthropic(operation) {
            json!({"type": "error", "error": {"type": kind, "message": message}})
        } else {
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
    }
}

const fn anthropic(operation: Endpoint) -> bool {
    matches!(operation, Endpoint::Messages | Endpoint::CountTokens)
}
