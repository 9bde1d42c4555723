//! `GET /candidates`: how each candidate fares.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::Watched;

/// Shows each candidate of the configuration, in its order: whether it rests, for how long and why, and
/// how it fared in the last five minutes.
pub(crate) async fn list(State(watched): State<Watched>) -> Response {
    let resting = watched.cooldowns.list();
    let of_late = watched.journal.candidates();
    let row = |name: &String| {
        let rests = resting
            .iter()
            .filter(|cooling| *cooling.candidate == **name);
        let longest = rests.max_by_key(|cooling| cooling.left);
        let fared = of_late.iter().find(|(known, _)| **known == **name);
        let fared = fared.map(|(_, fared)| json!(fared)).unwrap_or_default();
        let mut row = json!({
            "candidate": name,
            "state": if longest.is_some() { "resting" } else { "up" },
            "left_ms": longest.map(|it| u64::try_from(it.left.as_millis()).unwrap_or(u64::MAX)),
            "class": longest.map(|it| it.class.as_str()),
            "attempts": 0,
            "failures": 0,
            "failures_by_class": {},
            "first_content_p50_ms": null,
        });
        if let (Some(row), Value::Object(fared)) = (row.as_object_mut(), fared) {
            row.extend(fared);
        }
        row
    };
    let rows: Vec<_> = watched.candidates.iter().map(row).collect();
    Json(json!({ "candidates": rows })).into_response()
}
