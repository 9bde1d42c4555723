//! `GET /metrics`: the metrics of the process, as text for Prometheus.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tower_agent::RunRegistry;

use crate::{
    http::HeldBytes,
    telemetry::{Gauges, render_metrics},
};

/// Answers with all metrics of the process, the number of open runs of the registry, and the bytes
/// that are held. Answers with 501 if the gateway has no recorder.
pub(crate) async fn show(State((registry, held)): State<(RunRegistry, HeldBytes)>) -> Response {
    let gauges = Gauges {
        open_runs: registry.open_runs(),
        held_bytes: held.total(),
    };
    let Some(text) = render_metrics(gauges) else {
        let message = "the program that runs this gateway records metrics elsewhere\n";
        return (StatusCode::NOT_IMPLEMENTED, message).into_response();
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([("content-type", kind)], text).into_response()
}
