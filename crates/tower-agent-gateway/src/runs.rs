use std::{
    io::{self, Write},
    time::Duration,
};

use tokio::sync::watch;
use tower_agent::{RunRegistry, Trajectory};

use crate::telemetry::LineWriter;

/// The time that a slow reader has for the last records.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The runs of a gateway: their registry, their records and their end.
///
/// The value must outlive the app: when it is dropped, `/events` ends.
#[derive(Debug, Default)]
pub struct Runs {
    registry: RunRegistry,
    records: Option<LineWriter>,
    /// Set to true at the shutdown.
    stopping: watch::Sender<bool>,
}

impl Runs {
    /// Creates runs without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates runs with a trajectory in `out`, a line of JSON for each record.
    ///
    /// A separate thread writes the records, so that a slow reader delays no run. A record that
    /// finds no room in the queue is dropped, and the log says so.
    ///
    /// # Errors
    ///
    /// If the process can start no further thread.
    pub fn with_records(out: impl Write + Send + 'static) -> io::Result<Self> {
        let records = LineWriter::records(out)?;
        Ok(Self {
            registry: RunRegistry::new().trajectory(&Trajectory::new(records.clone())),
            records: Some(records),
            ..Self::new()
        })
    }

    /// The registry, to find, observe and end runs.
    #[must_use]
    pub const fn registry(&self) -> &RunRegistry {
        &self.registry
    }

    /// Ends all runs as `Shutdown`, admits no more, and ends `/events`.
    pub fn shutdown(&self) {
        self.registry.shutdown();
        self.stopping.send_replace(true);
    }

    /// Waits until the records so far are written, for at most a second.
    ///
    /// Blocks the thread, so it is only for the end of the process.
    pub fn flush(&self) {
        if let Some(records) = &self.records {
            records.flush_within(LAST_LINES);
        }
    }

    /// A receiver of the shutdown, for streams that belong to no run.
    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}
