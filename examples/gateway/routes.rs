use axum::{
    Json, Router,
    routing::{get, post},
};
use serde_json::{Value, json};

use crate::{
    control::{self, Control},
    stack::Gateway,
};

/// What the gateway forwards.
const OPERATIONS: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
];

pub(crate) fn app(gateway: Gateway, control: Control, models: Vec<String>) -> Router {
    let models = Json(list(&models));
    let operated = Router::new()
        .route("/runs", get(control::list))
        .route("/runs/{id}", get(control::show))
        .route("/runs/{id}/abort", post(control::abort))
        .layer(axum::middleware::from_fn_with_state(
            control.clone(),
            control::guard,
        ))
        .with_state(control);
    OPERATIONS
        .into_iter()
        .fold(Router::new(), |app, path| {
            app.route(path, axum::routing::post_service(gateway.clone()))
        })
        .route("/v1/models", get(|| async move { models }))
        .route("/healthz", get(|| async { "ok\n" }))
        .merge(operated)
}

/// One list that the SDKs of both dialects read.
fn list(models: &[String]) -> Value {
    let entries: Vec<Value> = models
        .iter()
        .map(|model| {
            json!({
                "id": model,
                "object": "model",
                "type": "model",
                "display_name": model,
                "created": 0,
                "created_at": "1970-01-01T00:00:00Z",
                "owned_by": "tower-agent",
            })
        })
        .collect();
    json!({
        "object": "list",
        "data": entries,
        "has_more": false,
        "first_id": models.first(),
        "last_id": models.last(),
    })
}
