//! What the operator sees and does, across owners.

mod limit;
mod page;

use axum::{
    Json,
    extract::{Path, RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::future::join_all;
use serde_json::json;
use tower_agent::{Run, RunId, RunRegistry, RunSnapshot, TerminalReason};

type ControlResult = Result<Response, (StatusCode, String)>;

/// A page of all runs, newest first; `next` is there if there are more.
pub(crate) async fn list(
    State(registry): State<RunRegistry>,
    RawQuery(query): RawQuery,
) -> ControlResult {
    let page = page::read(query.as_deref()).map_err(bad)?;
    let page = registry.page(page.after, page.limit);
    let mut list = json!({ "runs": page.runs });
    if let Some(next) = page.next {
        list["next"] = json!(next.to_string());
    }
    Ok(Json(list).into_response())
}

pub(crate) async fn show(
    State(registry): State<RunRegistry>,
    Path(id): Path<String>,
) -> ControlResult {
    let runs = known(&registry, &id)?;
    Ok(shown(runs.iter().map(Run::snapshot).collect()))
}

/// Waits until the runs of this id have ended, all of them. A client that leaves
/// waits no longer: its connection drops the future.
pub(crate) async fn wait(
    State(registry): State<RunRegistry>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> ControlResult {
    let limit = limit::read(query.as_deref()).map_err(bad)?;
    let runs = known(&registry, &id)?;
    let ends = join_all(runs.iter().map(|run| run.wait(limit))).await;
    let ends: Option<Vec<RunSnapshot>> = ends.into_iter().collect();
    let on = || Json(json!({ "ended": false })).into_response();
    Ok(ends.map_or_else(on, shown))
}

/// Ends the runs of this id, whoever owns them.
pub(crate) async fn abort(
    State(registry): State<RunRegistry>,
    Path(id): Path<String>,
) -> ControlResult {
    let ended = end(registry.find(&parse(&id)?));
    Ok(Json(json!({ "aborted": !ended.is_empty() })).into_response())
}

/// Ends the live runs of this session, whoever owns them.
pub(crate) async fn abort_session(
    State(registry): State<RunRegistry>,
    Path(session): Path<String>,
) -> Response {
    let ended = end(registry.find_session(&session));
    Json(json!({ "runs": ended })).into_response()
}

/// The ids of those that this ended.
fn end(runs: Vec<Run>) -> Vec<RunId> {
    let runs = runs.into_iter();
    let ended = runs.filter(|run| {
        // One that is over stays as it is.
        run.terminal_reason().is_none() && run.end(TerminalReason::Aborted)
    });
    ended.map(|run| run.id()).collect()
}

/// The runs of this id, of all owners.
fn known(registry: &RunRegistry, id: &str) -> Result<Vec<Run>, (StatusCode, String)> {
    let runs = registry.find(&parse(id)?);
    match runs.is_empty() {
        true => Err((StatusCode::NOT_FOUND, format!("no run {id}\n"))),
        false => Ok(runs),
    }
}

/// One as it is, several in a list.
fn shown(mut runs: Vec<RunSnapshot>) -> Response {
    match (runs.pop(), runs.is_empty()) {
        (Some(run), true) => Json(run).into_response(),
        (last, _) => {
            runs.extend(last);
            Json(json!({ "runs": runs })).into_response()
        }
    }
}

fn parse(id: &str) -> Result<RunId, (StatusCode, String)> {
    id.parse().map_err(bad)
}

fn bad(error: impl std::fmt::Display) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, format!("{error}\n"))
}
