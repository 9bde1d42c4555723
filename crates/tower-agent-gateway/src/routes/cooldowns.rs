//! The operator's routes of cooldowns.

use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower_agent::Cooldowns;

/// Lists the running cooldowns, the one that ends first at the front.
pub(crate) async fn list(State(cooldowns): State<Cooldowns>) -> Response {
    let list = cooldowns.list().into_iter().map(|cooling| {
        let left = u64::try_from(cooling.left.as_millis()).unwrap_or(u64::MAX);
        json!({
            "candidate": cooling.candidate,
            "left_ms": left,
            "class": cooling.class.as_str(),
        })
    });
    Json(json!({ "cooldowns": list.collect::<Vec<_>>() })).into_response()
}

/// Ends the cooldowns that hold calls back from this candidate.
pub(crate) async fn clear(
    State(cooldowns): State<Cooldowns>,
    Path(candidate): Path<String>,
) -> Response {
    Json(json!({ "cleared": cooldowns.clear(&candidate) })).into_response()
}
