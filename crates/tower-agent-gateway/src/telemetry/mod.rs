//! What the gateway tells about itself: spans, metrics, and lines of the log and of records.
//!
//! [`Telemetry`] sends the spans. [`TraceParent`] makes the caller's span the parent of a call's span,
//! [`name_attempt`] tells the upstream the span of its attempt; both by the headers of W3C's trace
//! context. [`record_metrics`] starts the recorder that [`render_metrics`] reads, and [`TimedStore`]
//! records the waits for the store of `[replicas]`. [`LineWriter`] writes lines for a slow reader.

mod line_writer;
mod log_fields;
mod log_time;
mod metrics;
mod otlp_client;
mod propagation;
mod spans;
mod timed_store;

pub use self::{
    line_writer::LineWriter, log_fields::LogFields, log_time::LogTime, spans::Telemetry,
};
pub(crate) use self::{
    metrics::{
        Gauges, OpenSocket, count_missed_events, count_refused_upload, count_webhooks,
        record_metrics, render_metrics,
    },
    propagation::{TraceParent, name_attempt},
    timed_store::TimedStore,
};
