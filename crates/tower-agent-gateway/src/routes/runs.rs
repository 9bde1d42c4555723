//! The routes of runs: the operator's, across owners, and those of a caller, for its own runs.

use std::time::Duration;

use axum::{
    Extension, Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tower_agent::{
    Owner, Run, RunId, RunRegistry, RunSnapshot,
    registry::{AbortOutcome, store::Reach},
    run::RunCompletion,
};

use super::{
    Watched,
    health::LOST,
    queries::{PageQuery, WaitQuery},
};
use crate::http::Caller;

/// How long the answer to an abort waits for other gateways.
const REACH: Duration = Duration::from_millis(250);

type ControlResult = Result<Response, Refusal>;

/// A status of 4xx, and the error as JSON.
type Refusal = (StatusCode, Json<Value>);

/// Lists a page of all runs, newest first; `next` is the next page's cursor.
pub(crate) async fn list(
    State(registry): State<RunRegistry>,
    page: Result<Query<PageQuery>, QueryRejection>,
) -> ControlResult {
    let Query(page) = page.map_err(bad)?;
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

/// Waits until all runs of this id have ended, or the query's limit has passed.
///
/// The disconnect of the client ends the wait, because hyper then drops the future.
pub(crate) async fn wait(
    State(registry): State<RunRegistry>,
    Path(id): Path<String>,
    wait: Result<Query<WaitQuery>, QueryRejection>,
) -> ControlResult {
    let Query(WaitQuery { limit }) = wait.map_err(bad)?;
    let runs = known(&registry, &id)?;
    let ends = join_all(runs.iter().map(|run| run.wait(limit))).await;
    let ends: Option<Vec<RunSnapshot>> = ends.into_iter().collect();
    let on = || Json(json!({ "ended": false })).into_response();
    Ok(ends.map_or_else(on, shown))
}

/// Ends the runs of this id, of all owners and at all gateways; 404 if there are none, and no other
/// gateway was told.
pub(crate) async fn abort(State(watched): State<Watched>, Path(id): Path<String>) -> ControlResult {
    let outcome = watched.registry.abort_for_all(&parse(&id)?);
    aborted(Owner::default(), outcome, &id, &watched).await
}

/// Completes the runs of this id, of all owners, because their work is done; 404 if there are none.
pub(crate) async fn complete(
    State(registry): State<RunRegistry>,
    Path(id): Path<String>,
) -> ControlResult {
    let runs = known(&registry, &id)?;
    Ok(completed(&runs))
}

/// Ends the live runs of this session, of all owners and at all gateways; the answer has those of
/// this one.
///
/// The registry knows sessions by their live runs, so an unknown session is one without such runs.
pub(crate) async fn abort_session(
    State(watched): State<Watched>,
    Path(session): Path<String>,
) -> Response {
    let ended = watched.registry.abort_session_for_all(&session);
    let reach = watched
        .registry
        .reach_session(Owner::default(), &session, REACH);
    told(json!({ "runs": ended }), &watched, reach).await
}

/// Shows the caller's run of this id; 404 if the caller has none.
pub(crate) async fn show_own(
    State(registry): State<RunRegistry>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ControlResult {
    let run = registry.get(caller.owner, &parse(&id)?);
    let run = run.ok_or_else(|| unknown(&id))?;
    Ok(Json(run.snapshot()).into_response())
}

/// Ends the caller's run of this id, at all gateways; 404 if the caller has none, and no other gateway
/// was told.
pub(crate) async fn abort_own(
    State(watched): State<Watched>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ControlResult {
    let outcome = watched.registry.abort(caller.owner, &parse(&id)?);
    aborted(caller.owner, outcome, &id, &watched).await
}

/// Completes the caller's run of this id, because its work is done; 404 if the caller has none.
pub(crate) async fn complete_own(
    State(registry): State<RunRegistry>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ControlResult {
    let run = registry.get(caller.owner, &parse(&id)?);
    let run = run.ok_or_else(|| unknown(&id))?;
    Ok(completed(&[run]))
}

/// Ends the live runs of the caller's session, at all gateways; the answer has those of this one.
pub(crate) async fn abort_own_session(
    State(watched): State<Watched>,
    Extension(caller): Extension<Caller>,
    Path(session): Path<String>,
) -> Response {
    let ended = watched.registry.abort_session(caller.owner, &session);
    let reach = watched
        .registry
        .reach_session(caller.owner, &session, REACH);
    told(json!({ "runs": ended }), &watched, reach).await
}

/// Whether an abort ended a run, here or at a gateway that was told. The news are about this owner:
/// the default one for those of all owners.
async fn aborted(
    owner: Owner,
    outcome: AbortOutcome,
    id: &str,
    watched: &Watched,
) -> ControlResult {
    match outcome {
        AbortOutcome::Ended | AbortOutcome::Told => {}
        AbortOutcome::AlreadyOver => {
            return Ok(Json(json!({ "aborted": false })).into_response());
        }
        AbortOutcome::Unknown => return Err(unknown(id)),
    }
    let reach = watched.registry.reach(owner, &parse(id)?, REACH);
    Ok(told(json!({ "aborted": true }), watched, reach).await)
}

/// Answers, with `[replicas]` after the other gateways have carried it out, and says how many have; or
/// that they hear of it only later.
async fn told(
    mut answer: Value,
    watched: &Watched,
    reach: impl Future<Output = Option<Reach>>,
) -> Response {
    if watched.peers.is_some() {
        let reach = reach.await;
        answer["replicas"] = reach.map_or(json!(LOST), |reach| json!(reach.replicas));
    }
    Json(answer).into_response()
}

/// Completes each of `runs`, and says whether all have completed: 200 if they have now or had
/// before, 202 with the work in flight of those that complete after it, and 200 with the reason of
/// one that had ended otherwise.
fn completed(runs: &[Run]) -> Response {
    let (mut in_flight, mut ended) = (0, None);
    for run in runs {
        match run.complete() {
            RunCompletion::Completed => {}
            RunCompletion::Ended(reason) => ended = Some(reason),
            // Work that has ended since completes the run in this moment.
            _ => in_flight += run.in_flight().max(1),
        }
    }
    if let Some(reason) = ended {
        let answer = json!({ "completed": false, "reason": reason.as_str() });
        return Json(answer).into_response();
    }
    if in_flight > 0 {
        let answer = json!({ "completed": false, "in_flight": in_flight });
        return (StatusCode::ACCEPTED, Json(answer)).into_response();
    }
    Json(json!({ "completed": true })).into_response()
}

/// Finds the runs of this id, of all owners; 404 if there are none.
fn known(registry: &RunRegistry, id: &str) -> Result<Vec<Run>, Refusal> {
    let runs = registry.find(&parse(id)?);
    match runs.is_empty() {
        true => Err(unknown(id)),
        false => Ok(runs),
    }
}

/// Answers with a single run as an object, and with several as a list.
fn shown(mut runs: Vec<RunSnapshot>) -> Response {
    match (runs.pop(), runs.is_empty()) {
        (Some(run), true) => Json(run).into_response(),
        (last, _) => {
            runs.extend(last);
            Json(json!({ "runs": runs })).into_response()
        }
    }
}

fn unknown(id: &str) -> Refusal {
    let message = format!("no run {id} is known; an ended run is known for ten minutes");
    refusal(StatusCode::NOT_FOUND, "run_not_found", &message)
}

fn parse(id: &str) -> Result<RunId, Refusal> {
    id.parse().map_err(bad)
}

fn bad(error: impl std::fmt::Display) -> Refusal {
    refusal(
        StatusCode::BAD_REQUEST,
        "invalid_request_error",
        &error.to_string(),
    )
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Refusal {
    let error = json!({ "message": message, "type": "invalid_request_error", "code": code });
    (status, Json(json!({ "error": error })))
}
