//! `POST /abort`: ends the runs that a selector names.

use std::{collections::HashSet, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_agent::{Run, RunRegistry, RunSnapshot, TerminalReason};

use super::{
    Watched,
    replicas::Reached,
    runs::{Refusal, bad},
    selection::{RunPhase, Selection},
};

/// The body. A key that is unknown, and a body without a key, are errors: a typo never means all.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AbortRequest {
    owner: Option<String>,
    session: Option<String>,
    candidate: Option<String>,
    older_than: Option<String>,
    all: Option<bool>,
    dry_run: bool,
}

/// Ends the open runs that fit all keys of the body; with `dry_run` only says which.
///
/// The body is read whatever its content type says, as `curl -d` sends none of JSON.
pub(crate) async fn abort(
    State(watched): State<Watched>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request: AbortRequest = serde_json::from_slice(&body).map_err(bad)?;
    let selection = request.selection(&watched).map_err(bad)?;
    let mut runs = carry_out(&watched.registry, &selection, request.dry_run);
    let mut reached = Reached::Alone;
    if let Some(others) = watched.others() {
        let (elsewhere, asked) = others.abort(&selection, request.dry_run).await;
        runs.extend(elsewhere);
        reached = asked;
    }
    for run in &mut runs {
        *run = watched.names.named(run.take());
    }
    // A run that two gateways have is one.
    let ids = runs
        .iter()
        .map(|run| (run["owner"].as_str(), run["run"].as_str()));
    let count = ids.collect::<HashSet<_>>().len();
    let mut answer = json!({ "count": count, "dry_run": request.dry_run, "runs": runs });
    reached.tell_operator(&mut answer);
    if !request.dry_run && count > 0 {
        tracing::warn!(count, ?selection, "runs aborted by the operator");
    }
    Ok(Json(answer).into_response())
}

impl AbortRequest {
    fn selection(&self, watched: &Watched) -> Result<Selection, String> {
        let texts = [
            &self.owner,
            &self.session,
            &self.candidate,
            &self.older_than,
        ];
        if let Some(all) = self.all {
            if !all {
                return Err("all: `false` selects nothing; name what to abort".to_owned());
            }
        } else if texts.iter().all(|text| text.is_none()) {
            return Err(
                "name what to abort: `owner`, `session`, `candidate`, `older_than`, or \
                        `\"all\": true`"
                    .to_owned(),
            );
        }
        if texts.into_iter().flatten().any(String::is_empty) {
            return Err("an empty text selects nothing".to_owned());
        }
        let older_than = self.older_than.as_deref().map(humantime::parse_duration);
        let older_than = older_than
            .transpose()
            .map_err(|error| format!("older_than: not a duration such as \"1h\": {error}"))?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Ok(Selection {
            state: Some(RunPhase::Open),
            owner: self
                .owner
                .as_deref()
                .map(|text| watched.names.printed(text)),
            session: self.session.clone(),
            candidate: self.candidate.clone(),
            reason: None,
            older_than_ms: older_than.map(millis),
        })
    }
}

/// Ends the open runs of this gateway that fit. Returns those that it ended, or would end.
pub(crate) fn carry_out(registry: &RunRegistry, selection: &Selection, is_dry: bool) -> Vec<Value> {
    let live = registry.live_runs();
    let fit = live.iter().filter_map(|(_, run)| {
        let shown = run.snapshot();
        selection.fits(&shown).then_some((run, shown))
    });
    let fit: Vec<_> = fit.collect();
    let ended = fit.into_iter().filter(|(run, _)| is_dry || end(run));
    let row = |(_, run): (&Run, RunSnapshot)| {
        json!({
            "run": run.run,
            "owner": run.owner,
            "session": run.session,
            "candidate": run.candidate,
            "elapsed_ms": u64::try_from(run.elapsed.as_millis()).unwrap_or(u64::MAX),
        })
    };
    ended.map(row).collect()
}

/// Whether this ended the run; one that has ended meanwhile keeps its reason.
fn end(run: &Run) -> bool {
    run.end(TerminalReason::Aborted)
}
