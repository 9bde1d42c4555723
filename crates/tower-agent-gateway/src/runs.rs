use std::{
    io::{self, Write},
    time::Duration,
};

use tokio::sync::watch;
use tower_agent::{RunRegistry, Trajectory};

use crate::records::Records;

/// How long a slow reader has for the last records.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The runs of a gateway: their registry, their records and their end.
///
/// It lives as long as the app serves: when it is dropped, `/events` ends.
#[derive(Debug)]
pub struct Runs {
    registry: RunRegistry,
    records: Option<Records>,
    /// Becomes true at the shutdown.
    stopping: watch::Sender<bool>,
}

impl Default for Runs {
    fn default() -> Self {
        Self::new()
    }
}

impl Runs {
    /// Runs without records.
    #[must_use]
    pub fn new() -> Self {
        Self {
            registry: RunRegistry::new(),
            records: None,
            stopping: watch::Sender::new(false),
        }
    }

    /// Runs that leave a line of JSON in `out` for each that the harness ended.
    ///
    /// A thread of its own writes them, so that a reader that is slow holds up no run; a
    /// record for which there is no room is dropped, and the log says so.
    ///
    /// # Errors
    ///
    /// If the process can have no further thread.
    pub fn with_records(out: impl Write + Send + 'static) -> io::Result<Self> {
        let records = Records::new(out)?;
        Ok(Self {
            registry: RunRegistry::new().trajectory(&Trajectory::new(records.clone())),
            records: Some(records),
            ..Self::new()
        })
    }

    /// Where each run is found, observed and ended.
    #[must_use]
    pub const fn registry(&self) -> &RunRegistry {
        &self.registry
    }

    /// Ends all runs as `Shutdown` and admits none from now on; `/events` ends too.
    pub fn shutdown(&self) {
        self.registry.shutdown();
        self.stopping.send_replace(true);
    }

    /// Waits until the records so far are written, for a second at the longest.
    ///
    /// Blocks the thread: it is for the end of the process.
    pub fn flush(&self) {
        if let Some(records) = &self.records {
            records.written(LAST_LINES);
        }
    }

    /// Becomes true at the shutdown, for streams that are no calls.
    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}
