//! `GET /metrics`: the metrics of the process, as text for Prometheus.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tower_agent::RunRegistry;

use crate::{
    http::HeldBytes,
    runs::SharedStore,
    telemetry::{Gauges, render_metrics},
    webhooks::Webhooks,
};

/// What one gateway shows at a scrape.
pub(crate) type Scraped = (RunRegistry, HeldBytes, Option<SharedStore>, Webhooks);

/// Answers with all metrics of the process, the number of open runs of the registry, the bytes
/// that are held, the webhooks that wait, and the state of the store of runs. Answers with 501 if the
/// gateway has no recorder.
pub(crate) async fn show(State((registry, held, peers, webhooks)): State<Scraped>) -> Response {
    let gauges = Gauges {
        open_runs: registry.open_runs(),
        held_bytes: held.total(),
        webhooks: webhooks.waiting(),
        store: peers.map(|peers| peers.store.stats()),
    };
    let Some(text) = render_metrics(gauges) else {
        let message = "the program that runs this gateway records metrics elsewhere\n";
        return (StatusCode::NOT_IMPLEMENTED, message).into_response();
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([("content-type", kind)], text).into_response()
}
