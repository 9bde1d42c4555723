use axum::{
    Json, Router,
    routing::{get, post},
};
use serde_json::{Value, json};

use crate::{
    config::Candidate,
    control::{self, Control},
    stack::Gateway,
    upload,
};

/// What the gateway forwards.
const OPERATIONS: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
];

pub(crate) fn app(gateway: Gateway, control: Control, candidates: &[Candidate]) -> Router {
    let models = Json(list(candidates));
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
        .layer(axum::middleware::from_fn(control::refuse_pages))
        .layer(axum::middleware::map_request(upload::read_to_end))
}

/// One list that the SDKs of both dialects read.
fn list(candidates: &[Candidate]) -> Value {
    let entries: Vec<Value> = candidates
        .iter()
        .map(|candidate| {
            json!({
                "id": candidate.name,
                "root": candidate.model,
                "object": "model",
                "type": "model",
                "display_name": candidate.name,
                "created": 0,
                "created_at": "1970-01-01T00:00:00Z",
                "owned_by": "tower-agent",
                "context_window": candidate.context_window,
            })
        })
        .collect();
    json!({
        "object": "list",
        "data": entries,
        "has_more": false,
        "first_id": candidates.first().map(|candidate| &candidate.name),
        "last_id": candidates.last().map(|candidate| &candidate.name),
    })
}
