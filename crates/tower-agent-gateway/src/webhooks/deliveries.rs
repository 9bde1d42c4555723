//! Counts what became of the messages, and says in the log what was lost.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::telemetry::{count_missed_events, count_webhooks};

/// The time between two lines of the log about losses.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryOutcome {
    /// The receiver took it.
    Delivered,
    /// All tries failed.
    GaveUp,
    /// The queue was full.
    NoRoom,
    /// The receiver had answered 410, or is gone from the configuration.
    Closed,
}

/// The counts of messages, with the losses that the log has not said yet.
#[derive(Debug, Default)]
pub(super) struct Deliveries(Mutex<LossLog>);

#[derive(Debug, Default)]
struct LossLog {
    unsaid: u64,
    last_line: Option<Instant>,
}

impl DeliveryOutcome {
    const fn label(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::GaveUp => "gave_up",
            Self::NoRoom => "no_room",
            Self::Closed => "closed",
        }
    }
}

impl Deliveries {
    /// Counts a message. The log says lost ones with the receiver's host and the cause, at most once a
    /// minute.
    pub(super) fn count(&self, outcome: DeliveryOutcome, receiver: &str, cause: &str) {
        count_webhooks(outcome.label());
        if outcome == DeliveryOutcome::Delivered {
            return;
        }
        if let Some(lost) = self.claim_line(1) {
            let outcome = outcome.label();
            tracing::warn!(
                lost,
                outcome,
                receiver,
                cause,
                "webhooks are lost: agent_webhooks_total counts them"
            );
        }
    }

    /// Counts events that came faster than they were read.
    pub(super) fn count_missed(&self, events: u64) {
        count_missed_events(events);
        if self.claim_line(0).is_some() {
            tracing::warn!(
                events,
                "events of runs came too fast for the webhooks: the registry still has the ends among \
                 them; near caps, pauses and stuck runs are lost"
            );
        }
    }

    /// The losses since the last line, if a line may be written now.
    fn claim_line(&self, lost: u64) -> Option<u64> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.unsaid += lost;
        if log.last_line.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            return None;
        }
        log.last_line = Some(Instant::now());
        Some(std::mem::take(&mut log.unsaid))
    }
}
