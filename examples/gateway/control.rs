use std::net::IpAddr;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower_agent::{RunId, RunRegistry, TerminalReason};

use crate::config::Secret;

/// What the operator's routes act on, and who may use them.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    registry: RunRegistry,
    token: Option<Secret>,
}

type Answer = Result<Response, (StatusCode, String)>;

impl Control {
    pub(crate) const fn new(registry: RunRegistry, token: Option<Secret>) -> Self {
        Self { registry, token }
    }
}

/// Lets only the operator through: with a token whoever knows it; without one
/// whoever is on this machine and is not a page of another origin.
pub(crate) async fn guard(
    State(control): State<Control>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let allowed = match &control.token {
        Some(token) => bearer(headers).is_some_and(|given| same(given, token.expose())),
        None => is_local(request.uri(), headers),
    };
    if allowed {
        next.run(request).await
    } else {
        let message = match control.token {
            Some(_) => "this route needs the control token",
            None => "this route serves requests from this machine only",
        };
        (StatusCode::FORBIDDEN, message).into_response()
    }
}

/// Refuses pages of another origin on every route: whoever can make a browser
/// post here would spend the operator's key.
pub(crate) async fn refuse_pages(request: Request, next: Next) -> Response {
    if is_of_this_machine(request.headers()) {
        next.run(request).await
    } else {
        let message = "this server does not answer pages of another origin";
        (StatusCode::FORBIDDEN, message).into_response()
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}

/// Compares in a time that does not depend on where the two differ.
fn same(given: &str, wanted: &str) -> bool {
    let differing = given
        .bytes()
        .zip(wanted.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == wanted.len() && differing == 0
}

/// Whether the request names this machine, and no page of another origin sent
/// it: a browser can be made to resolve a foreign name to a loopback address.
fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let host = uri
        .authority()
        .map(|authority| authority.as_str())
        .or_else(|| text(header::HOST));
    host.is_some_and(is_loopback) && is_of_this_machine(headers)
}

fn is_of_this_machine(headers: &HeaderMap) -> bool {
    let origin = headers
        .get(header::ORIGIN)
        .map(|value| value.to_str().unwrap_or(""));
    origin.is_none_or(|origin| {
        let authority = origin
            .strip_prefix("http://")
            .or(origin.strip_prefix("https://"));
        authority.is_some_and(is_loopback)
    })
}

fn is_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<http::uri::Authority>() else {
        return false;
    };
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

pub(crate) async fn list(State(control): State<Control>) -> Response {
    Json(json!({ "runs": control.registry.list() })).into_response()
}

pub(crate) async fn show(State(control): State<Control>, Path(id): Path<String>) -> Answer {
    let runs = control.registry.find(&parse(&id)?);
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
pub(crate) async fn abort(State(control): State<Control>, Path(id): Path<String>) -> Answer {
    let runs = control.registry.find(&parse(&id)?);
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
