//! The recorder of the metrics that the library and the gateway count.

use std::{
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::Duration,
};

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tower_agent_redis::RedisStats;

#[cfg(test)]
mod tests;

/// The recorder of the process, which all its gateways share. `None` if it could not be installed,
/// mostly because the program had installed another recorder before.
static INSTALLED: LazyLock<Option<PrometheusHandle>> = LazyLock::new(|| match install() {
    Ok(recorder) => Some(recorder),
    Err(error) => {
        tracing::warn!(%error, "metrics recorder not installed: /metrics is empty");
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

/// The buckets of the waits for the store of runs, in seconds. A wait ends after 50 ms by default.
const STORE_WAITS: [f64; 11] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0,
];

const OPEN_RUNS: &str = "agent_runs_open";

const HELD_BYTES: &str = "agent_upload_buffer_bytes";

const REFUSED_UPLOADS: &str = "agent_uploads_refused_total";

const DROPPED_LINES: &str = "agent_lines_dropped_total";

const OPEN_SOCKETS: &str = "agent_websockets_open";

const STORE_UP: &str = "agent_store_up";

const STORE_LAG: &str = "agent_store_lag_seconds";

const STORE_WAIT: &str = "agent_store_wait_seconds";

const STORE_DROPPED: &str = "agent_store_dropped_total";

const WEBHOOKS: &str = "agent_webhooks_total";

const WEBHOOKS_MISSED: &str = "agent_webhooks_missed_events_total";

const WEBHOOKS_WAITING: &str = "agent_webhooks_waiting";

fn builder() -> Result<PrometheusBuilder, BuildError> {
    let latency = Matcher::Full("agent_cancel_latency_seconds".to_owned());
    let waits = Matcher::Full(STORE_WAIT.to_owned());
    let tokens = Matcher::Full("gen_ai.client.token.usage".to_owned());
    let durations = Matcher::Prefix("gen_ai.client.operation.".to_owned());
    // The buckets of counts of tokens in OpenTelemetry's convention.
    let powers_of_four: [f64; 14] = std::array::from_fn(|power| 4_u32.pow(power as u32).into());
    PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets_for_metric(latency, &LATENCIES)?
        .set_buckets_for_metric(waits, &STORE_WAITS)?
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
        tracing::warn!(%error, "metrics upkeep not started: the recorder drops old samples only at a scrape");
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
    metrics::describe_counter!(
        DROPPED_LINES,
        "Lines of the log or of records that could not be written."
    );
    metrics::describe_gauge!(OPEN_SOCKETS, "WebSockets of callers that are open.");
    metrics::describe_gauge!(
        STORE_UP,
        "Whether the store of runs answers, and its news are read: 1 or 0."
    );
    metrics::describe_gauge!(
        STORE_LAG,
        metrics::Unit::Seconds,
        "Time since the news of the store of runs were last read."
    );
    metrics::describe_histogram!(
        STORE_WAIT,
        metrics::Unit::Seconds,
        "Waits for the store of runs, with those that got no answer."
    );
    metrics::describe_counter!(
        STORE_DROPPED,
        "Ends and other news that the store of runs has never got."
    );
    metrics::describe_counter!(WEBHOOKS, "Webhooks by what became of them.");
    metrics::describe_counter!(
        WEBHOOKS_MISSED,
        "Events of runs that came too fast to be read for webhooks."
    );
    metrics::describe_gauge!(WEBHOOKS_WAITING, "Webhooks that wait for their receivers.");
}

/// Records metrics from now on, unless the program has installed another recorder.
pub(crate) fn record_metrics() {
    LazyLock::force(&INSTALLED);
}

/// Counts an upload that did not fit into the share of its owner, or else into that of all.
pub(crate) fn count_refused_upload(is_of_owner: bool) {
    let limit = if is_of_owner { "owner" } else { "all" };
    metrics::counter!(REFUSED_UPLOADS, "limit" => limit).increment(1);
}

/// A caller's WebSocket among those that are open, until the drop.
#[derive(Debug)]
pub(crate) struct OpenSocket(());

impl OpenSocket {
    pub(crate) fn new() -> Self {
        metrics::gauge!(OPEN_SOCKETS).increment(1.0);
        Self(())
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        metrics::gauge!(OPEN_SOCKETS).decrement(1.0);
    }
}

/// Counts a webhook by what became of it.
pub(crate) fn count_webhooks(outcome: &'static str) {
    metrics::counter!(WEBHOOKS, "outcome" => outcome).increment(1);
}

/// Counts events of runs that came too fast to be read for webhooks.
pub(crate) fn count_missed_events(events: u64) {
    metrics::counter!(WEBHOOKS_MISSED).increment(events);
}

/// Counts lines of the log or of records that could not be written.
pub(super) fn count_dropped_lines(output: &'static str, lines: u64) {
    if lines > 0 {
        metrics::counter!(DROPPED_LINES, "output" => output).increment(lines);
    }
}

/// Records how long a question to the store of runs has waited.
pub(super) fn record_store_wait(wait: Duration) {
    metrics::histogram!(STORE_WAIT).record(wait.as_secs_f64());
}

/// The numbers of one gateway that are read at a scrape, and not counted as they change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// Runs that have not ended.
    pub(crate) open_runs: usize,
    /// Bytes of request bodies that are held in memory.
    pub(crate) held_bytes: usize,
    /// Webhooks that wait for their receivers.
    pub(crate) webhooks: usize,
    /// What the store of runs has counted, of a gateway with `[replicas]`.
    pub(crate) store: Option<RedisStats>,
}

/// The metrics of the process with these gauges, as text for Prometheus. `None` if the gateway has
/// no recorder.
pub(crate) fn render_metrics(gauges: Gauges) -> Option<String> {
    let recorder = INSTALLED.as_ref()?;
    Some(render(recorder, gauges))
}

fn render(recorder: &PrometheusHandle, gauges: Gauges) -> String {
    // Two gateways of one process share the gauges: under the lock, each scrape renders the numbers
    // that it has set.
    static SCRAPE: Mutex<()> = Mutex::new(());
    let _alone = SCRAPE.lock().unwrap_or_else(PoisonError::into_inner);
    #[allow(clippy::cast_precision_loss, reason = "no registry has so many runs")]
    metrics::gauge!(OPEN_RUNS).set(gauges.open_runs as f64);
    #[allow(clippy::cast_precision_loss, reason = "no process has so much memory")]
    metrics::gauge!(HELD_BYTES).set(gauges.held_bytes as f64);
    #[allow(clippy::cast_precision_loss, reason = "they are bounded")]
    metrics::gauge!(WEBHOOKS_WAITING).set(gauges.webhooks as f64);
    if let Some(store) = gauges.store {
        metrics::gauge!(STORE_UP).set(f64::from(u8::from(store.up)));
        metrics::gauge!(STORE_LAG).set(store.lag.as_secs_f64());
        metrics::counter!(STORE_DROPPED).absolute(store.dropped);
    }
    recorder.render()
}
