//! `GET /metrics`: the metrics that the library records, as text for Prometheus.

use std::{
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::Duration,
};

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tower_agent::RunRegistry;

use crate::buffered_uploads::HeldBytes;

#[cfg(test)]
mod tests;

/// The recorder of the process, which all its gateways share. `None` if it could not be installed,
/// mostly because the program had installed another recorder before.
static INSTALLED: LazyLock<Option<PrometheusHandle>> = LazyLock::new(|| match install() {
    Ok(recorder) => Some(recorder),
    Err(error) => {
        tracing::warn!(%error, "/metrics has nothing to show");
        None
    }
});

/// The interval at which the recorder sorts the recorded values into the buckets.
///
/// Until a value is sorted, it takes memory of its own. One stream may record more than a thousand
/// values.
const UPKEEP: Duration = Duration::from_secs(1);

/// The buckets of durations in OpenTelemetry's convention, in seconds.
const DURATIONS: [f64; 14] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];

/// The buckets of the time from a disconnect to the release of the upstream, in seconds.
///
/// Mostly the release takes as long as one drop, far less than the first bucket of the convention.
const LATENCIES: [f64; 12] = [
    0.000_01, 0.000_1, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0,
];

const OPEN_RUNS: &str = "agent_runs_open";

const HELD_BYTES: &str = "agent_upload_buffer_bytes";

const REFUSED_UPLOADS: &str = "agent_uploads_refused_total";

fn builder() -> Result<PrometheusBuilder, BuildError> {
    let latency = Matcher::Full("agent_cancel_latency_seconds".to_owned());
    let tokens = Matcher::Full("gen_ai.client.token.usage".to_owned());
    let durations = Matcher::Prefix("gen_ai.client.operation.".to_owned());
    // The buckets of counts of tokens in OpenTelemetry's convention.
    let powers_of_four: [f64; 14] = std::array::from_fn(|power| 4_u32.pow(power as u32).into());
    PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets_for_metric(latency, &LATENCIES)?
        .set_buckets_for_metric(tokens, &powers_of_four)?
        .set_buckets_for_metric(durations, &DURATIONS)
}

fn install() -> Result<PrometheusHandle, BuildError> {
    let recorder = builder()?.install_recorder()?;
    describe();
    let upkept = recorder.clone();
    // The upkeep runs on a thread and not in a task, because the recorder outlives each runtime.
    let upkeep = move || loop {
        thread::sleep(UPKEEP);
        upkept.run_upkeep();
    };
    let named = thread::Builder::new().name("metrics".to_owned());
    if let Err(error) = named.spawn(upkeep) {
        tracing::warn!(%error, "the recorder of /metrics is tidied at each scrape alone");
    }
    Ok(recorder)
}

fn describe() {
    tower_agent::metrics::describe();
    metrics::describe_gauge!(OPEN_RUNS, "Runs that have not ended.");
    metrics::describe_gauge!(
        HELD_BYTES,
        "Bytes of request bodies that are held in memory."
    );
    metrics::describe_counter!(
        REFUSED_UPLOADS,
        "Uploads that were refused because they exceeded `max_buffered`."
    );
}

/// Records metrics from now on, unless the program has installed another recorder.
pub(crate) fn start() {
    LazyLock::force(&INSTALLED);
}

/// Counts an upload that did not fit into the share of its owner, or else into that of all.
pub(crate) fn count_refused_upload(is_of_owner: bool) {
    let limit = if is_of_owner { "owner" } else { "all" };
    metrics::counter!(REFUSED_UPLOADS, "limit" => limit).increment(1);
}

/// Answers with all metrics of the process, the number of open runs of the registry, and the bytes
/// that are held. Answers with 501 if the gateway has no recorder.
pub(crate) async fn metrics(State((registry, held)): State<(RunRegistry, HeldBytes)>) -> Response {
    let Some(recorder) = &*INSTALLED else {
        let message = "the program that runs this gateway records metrics elsewhere\n";
        return (StatusCode::NOT_IMPLEMENTED, message).into_response();
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([("content-type", kind)], scrape(recorder, &registry, &held)).into_response()
}

fn scrape(recorder: &PrometheusHandle, registry: &RunRegistry, held: &HeldBytes) -> String {
    // Two gateways of one process share the gauges: under the lock, each scrape renders the numbers
    // that it has set.
    static SCRAPE: Mutex<()> = Mutex::new(());
    let _alone = SCRAPE.lock().unwrap_or_else(PoisonError::into_inner);
    #[allow(clippy::cast_precision_loss, reason = "no registry has so many runs")]
    metrics::gauge!(OPEN_RUNS).set(registry.open_runs() as f64);
    #[allow(clippy::cast_precision_loss, reason = "no process has so much memory")]
    metrics::gauge!(HELD_BYTES).set(held.total() as f64);
    recorder.render()
}
