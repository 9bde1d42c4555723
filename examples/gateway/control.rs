//! What the operator sees and does, across owners.

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower_agent::{RunId, RunRegistry, TerminalReason};

type Answer = Result<Response, (StatusCode, String)>;

pub(crate) async fn list(State(registry): State<RunRegistry>) -> Response {
    Json(json!({ "runs": registry.list() })).into_response()
}

pub(crate) async fn show(State(registry): State<RunRegistry>, Path(id): Path<String>) -> Answer {
    let runs = registry.find(&parse(&id)?);
    match runs.as_slice() {
        [] => Err((StatusCode::NOT_FOUND, format!("no run {id}\n"))),
        [run] => Ok(Json(run.snapshot()).into_response()),
        several => {
            let runs: Vec<_> = several.iter().map(tower_agent::Run::snapshot).collect();
            Ok(Json(json!({ "runs": runs })).into_response())
        }
    }
}

/// Ends the runs of this id, whoever owns them.
pub(crate) async fn abort(State(registry): State<RunRegistry>, Path(id): Path<String>) -> Answer {
    let runs = registry.find(&parse(&id)?);
    let ended = runs
        .iter()
        .filter(|run| run.end(TerminalReason::Aborted))
        .count();
    Ok(Json(json!({ "aborted": ended > 0 })).into_response())
}

fn parse(id: &str) -> Result<RunId, (StatusCode, String)> {
    id.parse()
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))
}
