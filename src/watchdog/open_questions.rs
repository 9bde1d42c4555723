//! Bounds the questions to a person that are open at a time.

use std::time::Duration;

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use crate::{lock::Lock, run::Run};

/// The maximum number of open questions of a watchdog.
///
/// Each holds a connection to the service that asks the person, and a person who is away answers
/// none of them.
const MAX_OPEN: usize = 64;

/// The shortest time between two lines of the log about questions that were not asked.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The open questions of a watchdog.
#[derive(Debug)]
pub(super) struct OpenQuestions {
    permits: Semaphore,
    refused: Lock<RefusedQuestions>,
}

/// The questions that were not asked since the last line of the log.
#[derive(Debug, Default)]
struct RefusedQuestions {
    count: u64,
    logged: Option<Instant>,
}

impl Default for OpenQuestions {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(MAX_OPEN),
            refused: Lock::default(),
        }
    }
}

impl OpenQuestions {
    /// Opens a question about `run`, which is over when the permit drops; `None` if too many are
    /// open. Logs a refusal, at most once a minute.
    pub(super) fn open(&self, run: &Run) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Some(permit);
        }
        if let Some(not_asked) = self.refuse(Instant::now()) {
            tracing::warn!(
                target: "tower_agent",
                run = %run.id(),
                open = MAX_OPEN,
                not_asked,
                "question not asked"
            );
        }
        None
    }

    /// Counts a question that is not asked. Returns how many were not since the last line of the
    /// log, if another line is due.
    fn refuse(&self, now: Instant) -> Option<u64> {
        let mut refused = self.refused.lock();
        refused.count += 1;
        let is_due = |logged| now.saturating_duration_since(logged) >= LOG_EVERY;
        if !refused.logged.is_none_or(is_due) {
            return None;
        }
        refused.logged = Some(now);
        Some(std::mem::take(&mut refused.count))
    }
}
