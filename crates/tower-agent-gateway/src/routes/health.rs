//! `GET /healthz`: whether the gateway serves, which does not depend on the store of `[replicas]`.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower_agent::RunRegistry;

use crate::runs::SharedStore;

/// What an answer says of a store that does not answer.
pub(super) const LOST: &str = "lost";

/// Answers 200: with `ok`, or as JSON if the request accepts it by name.
pub(crate) async fn show(
    State((peers, registry)): State<(Option<SharedStore>, RunRegistry)>,
    headers: HeaderMap,
) -> Response {
    if !accepts_json(&headers) {
        return "ok\n".into_response();
    }
    let mut health = json!({ "status": "ok" });
    if let Some(peers) = &peers {
        health["replicas"] = json!(if peers.is_up() { "up" } else { LOST });
    }
    if registry.frozen().all {
        health["frozen"] = json!(true);
    }
    Json(health).into_response()
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).into_iter();
    let types = values.filter_map(|value| value.to_str().ok());
    let mut types = types.flat_map(|value| value.split(','));
    types.any(|entry| {
        let kind = entry.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json")
    })
}
