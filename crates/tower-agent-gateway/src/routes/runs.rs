//! The routes of runs: the operator's, across owners, and those of a caller, for its own runs.
//!
//! With `[replicas]` an answer covers the other gateways, too: see [`replicas`](super::replicas).

use std::time::Duration;

use axum::{
    Extension, Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{Instant, timeout},
};
use tower_agent::{
    Owner, Run, RunId, RunSnapshot,
    registry::{AbortOutcome, RunCursor, store::Reach},
};

use super::{
    Watched,
    health::LOST,
    queries::{PageQuery, PageStart, WaitQuery},
    replicas::{
        Completion, ControlAnswer, ControlQuestion, OtherGateways, Page, Positions, Reached,
        completion, merge, merge_sorted, page_of, raw,
    },
    selection::{RunOrder, Selection},
};
use crate::http::Caller;

/// How long the answer to an abort waits for other gateways.
const REACH: Duration = Duration::from_millis(250);

/// The time between two looks for the end of a run at another gateway: at first, and at most. Each is
/// twice the one before.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

type ControlResult = Result<Response, Refusal>;

/// A status of 4xx, and the error as JSON.
pub(super) type Refusal = (StatusCode, Json<Value>);

/// Lists a page of the runs that are wanted, newest first, or the first of them in another order; `next`
/// is the next page's cursor.
pub(crate) async fn list(
    State(watched): State<Watched>,
    page: Result<Query<PageQuery>, QueryRejection>,
) -> ControlResult {
    let Query(page) = page.map_err(bad)?;
    if page.sort != RunOrder::Started && page.after.is_some() {
        return Err(bad("after: goes with `sort=started` alone"));
    }
    // Before the list: events with higher numbers tell what changes in it.
    let sequence = watched.registry.last_event();
    let wanted = List {
        selection: page.selection(&watched.names),
        sort: page.sort,
        limit: page.limit,
    };
    let others = watched.others().filter(|_| page.replicas.is_some());
    let mut list = match (page.after, others) {
        (None, None) => own_page(&watched, None, &wanted),
        (Some(PageStart::Own(after)), None) => own_page(&watched, Some(after), &wanted),
        (None, Some(others)) => all_pages(&watched, &others, Positions::default(), wanted).await,
        (Some(PageStart::All(after)), Some(others)) => {
            all_pages(&watched, &others, after, wanted).await
        }
        (Some(PageStart::All(_)), None) => {
            return Err(bad(
                "after: a cursor of several gateways needs `replicas=all`",
            ));
        }
        (Some(PageStart::Own(_)), Some(_)) => {
            return Err(bad(
                "after: with `replicas=all` a cursor is that of such a list",
            ));
        }
    };
    list["registry_sequence"] = json!(sequence);
    Ok(Json(list).into_response())
}

/// What a list shows.
struct List {
    selection: Selection,
    sort: RunOrder,
    limit: usize,
}

fn own_page(watched: &Watched, after: Option<RunCursor>, wanted: &List) -> Value {
    let after = after.and_then(|after| after.to_string().parse().ok());
    let List {
        selection,
        sort,
        limit,
    } = wanted;
    let row = |run: &RunSnapshot| raw(&watched.names.row(run));
    let page = page_of(&watched.registry, after, *limit, selection, *sort, row);
    let next = page.next();
    let mut list = json!({ "runs": page.into_rows() });
    if let Some(next) = next {
        list["next"] = json!(next.to_string());
    }
    list
}

/// A page of the runs of all gateways, merged by when each was opened at its gateway.
async fn all_pages(
    watched: &Watched,
    others: &OtherGateways,
    after: Positions,
    wanted: List,
) -> Value {
    let List {
        selection,
        sort,
        limit,
    } = wanted;
    let own_after = after.of(others.own_id());
    let row = |run: &RunSnapshot| raw(run);
    let own = page_of(&watched.registry, own_after, limit, &selection, sort, row);
    let question = ControlQuestion::List {
        limit,
        after: after.clone(),
        wanted: selection,
        sort,
    };
    let is_it = |answer| match answer {
        ControlAnswer::Page(page) => Some(page),
        _ => None,
    };
    let asked = others.ask(&question, is_it).await;
    let own = Page {
        replica: asked.own,
        id: others.own_id().to_owned(),
        page: own,
    };
    let pages = asked.answers.into_iter().map(|answer| Page {
        replica: answer.replica,
        id: answer.id,
        page: answer.answer,
    });
    let pages = pages.chain([own]).collect();
    let (runs, next) = match sort {
        RunOrder::Started => merge(pages, &after, limit),
        _ => (merge_sorted(pages, limit), None),
    };
    let runs = runs.into_iter().map(|run| watched.names.named(run));
    let mut list = json!({ "runs": runs.collect::<Vec<_>>() });
    if let Some(next) = next {
        list["next"] = json!(next.to_string());
    }
    asked.reached.tell_operator(&mut list);
    list
}

/// A run with its work in flight and its last attempts.
fn detail(watched: &Watched, run: &Run) -> Value {
    let snapshot = run.snapshot();
    let attempts = snapshot
        .owner
        .map(|owner| watched.journal.attempts(owner, &snapshot.run));
    let mut row = watched.names.row(&snapshot);
    let work = run.work();
    let work = work.iter().map(|work| watched.names.row(work));
    row["work"] = json!(work.collect::<Vec<_>>());
    row["attempts_of_late"] = json!(attempts.unwrap_or_default());
    row
}

/// Shows the runs of this id, of all owners. Those that this gateway does not know are asked for at
/// the others.
pub(crate) async fn show(State(watched): State<Watched>, Path(id): Path<String>) -> ControlResult {
    let id = parse(&id)?;
    let runs = watched.registry.find(&id);
    if !runs.is_empty() {
        return Ok(shown(
            runs.iter().map(|run| detail(&watched, run)).collect(),
        ));
    }
    let Some(others) = watched.others() else {
        return Err(unknown(&id));
    };
    let found = others.find(&id, None).await;
    match found.runs.is_empty() {
        true => Err(unknown_to_operator(&id, &found.reached)),
        false => {
            let runs = found.runs.into_iter().map(|run| watched.names.named(run));
            Ok(shown(runs.collect()))
        }
    }
}

/// Waits until all runs of this id have ended, or the query's limit has passed.
///
/// The disconnect of the client ends the wait, because hyper then drops the future. For a run of another
/// gateway it looks again and again, and when another gateway tells the end of the run: so nothing
/// has to be held there, and a gateway that goes meanwhile is noticed.
pub(crate) async fn wait(
    State(watched): State<Watched>,
    Path(id): Path<String>,
    wait: Result<Query<WaitQuery>, QueryRejection>,
) -> ControlResult {
    let Query(WaitQuery { limit }) = wait.map_err(bad)?;
    let (id, until) = (parse(&id)?, Instant::now() + limit);
    let others = watched.others();
    let mut ends = others.as_ref().map(OtherGateways::ends);
    let (mut is_known, mut look) = (false, FIRST_LOOK);
    loop {
        // A request of the run may have come here meanwhile.
        let runs = watched.registry.find(&id);
        if !runs.is_empty() {
            return Ok(wait_here(&runs, until - Instant::now()).await);
        }
        let (Some(others), Some(ends)) = (&others, &mut ends) else {
            return Err(unknown(&id));
        };
        let found = others.find(&id, None).await;
        if !found.runs.is_empty() && found.have_ended {
            return Ok(shown(found.runs));
        }
        let is_gone = found.runs.is_empty() && !found.reached.is_partial();
        is_known |= !found.runs.is_empty();
        if is_gone || !is_known {
            return Err(unknown_to_operator(&id, &found.reached));
        }
        let rest = until - Instant::now();
        if rest.is_zero() {
            let mut on = json!({ "ended": false });
            found.reached.tell_operator(&mut on);
            return Ok(Json(on).into_response());
        }
        look = match timeout(look.min(rest), heard_end(ends, &id)).await {
            // It is told before every gateway has carried it out.
            Ok(()) => FIRST_LOOK,
            Err(_) => (2 * look).min(LONGEST_LOOK),
        };
    }
}

async fn wait_here(runs: &[Run], limit: Duration) -> Response {
    let ends = join_all(runs.iter().map(|run| run.wait(limit))).await;
    let ends: Option<Vec<RunSnapshot>> = ends.into_iter().collect();
    let on = || Json(json!({ "ended": false })).into_response();
    ends.map_or_else(on, shown)
}

/// Waits until another gateway tells the end of a run of this id, or some ends were missed.
async fn heard_end(ends: &mut broadcast::Receiver<RunId>, id: &RunId) {
    loop {
        match ends.recv().await {
            Ok(ended) if ended == *id => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Ends the runs of this id, of all owners and at all gateways; 404 if there are none, and no other
/// gateway was told.
pub(crate) async fn abort(State(watched): State<Watched>, Path(id): Path<String>) -> ControlResult {
    let id = parse(&id)?;
    let outcome = watched.registry.abort_for_all(&id);
    let answer = aborted(Owner::default(), outcome, &id, &watched).await;
    answer.map_err(|refusal| name_session(refusal, &id, &watched))
}

/// Says of an unknown run's id that it is a session's, if it is: an operator pastes what the log shows.
fn name_session((status, Json(mut answer)): Refusal, id: &RunId, watched: &Watched) -> Refusal {
    let session = id.to_string();
    let open = watched.registry.find_session(&session).len();
    if open > 0 {
        let message = format!(
            "no run {id} is known, but a session with {open} open runs is: POST /sessions/{id}/abort \
             ends them"
        );
        answer["error"]["message"] = json!(message);
    }
    (status, Json(answer))
}

/// Completes the runs of this id, of all owners and at all gateways, because their work is done; 404 if
/// there are none.
pub(crate) async fn complete(
    State(watched): State<Watched>,
    Path(id): Path<String>,
) -> ControlResult {
    let id = parse(&id)?;
    let runs = watched.registry.find(&id);
    let (done, reached) = complete_everywhere(&watched, &runs, &id, None).await;
    match done.runs {
        0 => Err(unknown_to_operator(&id, &reached)),
        _ => Ok(completed(&done, |answer| reached.tell_operator(answer))),
    }
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

/// Shows the caller's run of this id, here or at another gateway; 404 if the caller has none.
pub(crate) async fn show_own(
    State(watched): State<Watched>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ControlResult {
    let id = parse(&id)?;
    if let Some(run) = watched.registry.get(caller.owner, &id) {
        return Ok(Json(run.snapshot()).into_response());
    }
    let Some(others) = watched.others() else {
        return Err(unknown(&id));
    };
    let mut found = others.find(&id, Some(caller.owner)).await;
    match found.runs.pop() {
        Some(run) => Ok(Json(run).into_response()),
        None => Err(unknown_to_caller(&id, &found.reached)),
    }
}

/// Ends the caller's run of this id, at all gateways; 404 if the caller has none, and no other gateway
/// was told.
pub(crate) async fn abort_own(
    State(watched): State<Watched>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ControlResult {
    let id = parse(&id)?;
    let outcome = watched.registry.abort(caller.owner, &id);
    aborted(caller.owner, outcome, &id, &watched).await
}

/// Completes the caller's run of this id, at all gateways, because its work is done; 404 if the caller
/// has none.
pub(crate) async fn complete_own(
    State(watched): State<Watched>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ControlResult {
    let id = parse(&id)?;
    let run = watched.registry.get(caller.owner, &id);
    let runs: Vec<_> = run.into_iter().collect();
    let owner = Some(caller.owner);
    let (done, reached) = complete_everywhere(&watched, &runs, &id, owner).await;
    match done.runs {
        0 => Err(unknown_to_caller(&id, &reached)),
        _ => Ok(completed(&done, |answer| reached.tell_caller(answer))),
    }
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
    id: &RunId,
    watched: &Watched,
) -> ControlResult {
    match outcome {
        AbortOutcome::Ended | AbortOutcome::Told => {}
        AbortOutcome::AlreadyOver => {
            return Ok(Json(json!({ "aborted": false })).into_response());
        }
        AbortOutcome::Unknown => return Err(unknown(id)),
    }
    let reach = watched.registry.reach(owner, id, REACH);
    let answer = told(json!({ "aborted": true }), watched, reach).await;
    if let Some(others) = watched.others() {
        others.has_ended(id);
    }
    Ok(answer)
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

/// Completes these runs, which are here, and those of this id at other gateways, of all owners or of one.
async fn complete_everywhere(
    watched: &Watched,
    runs: &[Run],
    id: &RunId,
    owner: Option<Owner>,
) -> (Completion, Reached) {
    let mut done = completion(runs);
    let Some(others) = watched.others() else {
        return (done, Reached::Alone);
    };
    let (elsewhere, reached) = others.complete(id, owner).await;
    done.add(elsewhere);
    others.has_ended(id);
    (done, reached)
}

/// Says whether all runs have completed: 200 if they have now or had before, 202 with the work in flight
/// of those that complete after it, and 200 with the reason of one that had ended otherwise.
fn completed(done: &Completion, tell: impl Fn(&mut Value)) -> Response {
    let (status, mut answer) = done.answer();
    tell(&mut answer);
    (status, Json(answer)).into_response()
}

/// Answers with a single run as an object, and with several as a list.
fn shown<T: Serialize>(mut runs: Vec<T>) -> Response {
    match (runs.pop(), runs.is_empty()) {
        (Some(run), true) => Json(run).into_response(),
        (last, _) => {
            runs.extend(last);
            Json(json!({ "runs": runs })).into_response()
        }
    }
}

fn unknown(id: &RunId) -> Refusal {
    let message = format!("no run {id} is known; an ended run is known for ten minutes");
    refusal(StatusCode::NOT_FOUND, "run_not_found", &message)
}

/// The refusal for a run that no gateway knows, as far as they were reached.
pub(super) fn unknown_to_operator(id: &RunId, reached: &Reached) -> Refusal {
    let (status, Json(mut answer)) = unknown_to_caller(id, reached);
    reached.tell_operator(&mut answer);
    (status, Json(answer))
}

fn unknown_to_caller(id: &RunId, reached: &Reached) -> Refusal {
    let (status, Json(mut answer)) = unknown(id);
    if reached.is_partial() {
        let message = format!(
            "no run {id} is known here; not all other gateways answered, and one of them may have it"
        );
        answer["error"]["message"] = json!(message);
    }
    reached.tell_caller(&mut answer);
    (status, Json(answer))
}

pub(super) fn parse(id: &str) -> Result<RunId, Refusal> {
    id.parse().map_err(bad)
}

pub(super) fn bad(error: impl std::fmt::Display) -> Refusal {
    refusal(
        StatusCode::BAD_REQUEST,
        "invalid_request_error",
        &error.to_string(),
    )
}

pub(super) fn refusal(status: StatusCode, code: &str, message: &str) -> Refusal {
    let error = json!({ "message": message, "type": "invalid_request_error", "code": code });
    (status, Json(json!({ "error": error })))
}
