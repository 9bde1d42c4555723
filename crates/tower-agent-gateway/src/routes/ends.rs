//! `GET /ends`: how many calls ended in each minute of the last hour.

use std::time::Duration;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Watched,
    runs::{Refusal, bad},
};
use crate::journal::{EndKey, EndsBy, KEPT_MINUTES};

/// `?by=reason&per=minute&last=60m`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EndsQuery {
    by: By,
    per: Per,
    last: String,
}

impl Default for EndsQuery {
    fn default() -> Self {
        Self {
            by: By::Reason,
            per: Per::Minute,
            last: "60m".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    Reason,
    Candidate,
    Owner,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Per {
    Minute,
}

/// Shows the ends of calls by minute, the oldest first.
pub(crate) async fn show(
    State(watched): State<Watched>,
    query: Result<Query<EndsQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(bad)?;
    let Per::Minute = query.per;
    let last = humantime::parse_duration(&query.last);
    let last = last.map_err(|error| {
        bad(format!(
            "last: {:?} is not a duration such as \"60m\": {error}",
            query.last
        ))
    })?;
    let by = match query.by {
        By::Reason => EndsBy::Reason,
        By::Candidate => EndsBy::Candidate,
        By::Owner => EndsBy::Owner,
    };
    let name = |key: &EndKey| match key {
        EndKey::Name(name) => name.to_string(),
        EndKey::Owner(owner) => watched.names.show(*owner),
        EndKey::None => "none".to_owned(),
        EndKey::Others => "others".to_owned(),
    };
    let minutes = watched.journal.ends(by, minutes_of(last));
    let minutes = minutes.into_iter().map(|minute| {
        let counts = minute.counts.iter();
        let counts: Map<String, Value> = counts
            .map(|(key, count)| (name(key), Value::from(*count)))
            .collect();
        json!({ "began_unix_ms": minute.began_unix_ms, "ends": counts })
    });
    Ok(Json(json!({ "minutes": minutes.collect::<Vec<_>>() })).into_response())
}

/// The minutes that a time spans, the begun one included.
fn minutes_of(last: Duration) -> usize {
    let minutes = last.as_secs().div_ceil(60).clamp(1, KEPT_MINUTES as u64);
    minutes as usize
}
