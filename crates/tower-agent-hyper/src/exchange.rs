//! A request under way, and what its end says about the connections of its origin.

use std::{sync::Arc, time::Duration};

use hyper_util::client::legacy::connect::CaptureConnection;
use tokio::time::Instant;
use tower_agent::{Run, TerminalReason};

use crate::{clients::PoolLease, connection::ConnectionRecord};

/// How long a connection must have been silent when a call is dropped for another reason than
/// silence, so that the connection counts as dead.
pub const SILENCE: Duration = Duration::from_secs(5);

/// The same if a [`StepTimeoutLayer`](tower_agent::StepTimeoutLayer) ended the call. That layer
/// also ends calls whose heartbeats come, and a connection that has just been read is alive.
const STEP_SILENCE: Duration = Duration::from_millis(500);

/// A request from its start to the end of its answer.
///
/// Its drop before that end takes connections out of the pool that have been silent.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) began: Instant,
    /// The request had no connection before this: what was read until then is not an answer to it.
    pub(crate) not_before: Instant,
    run: Option<Run>,
    pub(crate) lease: PoolLease,
    /// `None` once the exchange is over.
    phase: Option<Phase>,
}

#[derive(Debug)]
enum Phase {
    /// The connection is known once the request has been handed to it.
    Sent(CaptureConnection),
    Answered {
        record: Arc<ConnectionRecord>,
        /// What had been read of the connection when the caller began to wait for a frame; `None`
        /// while a frame waits for the caller, as far as is known.
        pending: Option<u64>,
    },
}

impl Exchange {
    pub(crate) fn new(run: Option<Run>, lease: PoolLease, capture: CaptureConnection) -> Self {
        let began = Instant::now();
        Self {
            began,
            not_before: began,
            run,
            lease,
            phase: Some(Phase::Sent(capture)),
        }
    }

    pub(crate) const fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// Whether the request has no connection yet.
    pub(crate) fn waits_for_connection(&self) -> bool {
        match &self.phase {
            Some(Phase::Sent(capture)) => capture.connection_metadata().is_none(),
            _ => false,
        }
    }

    /// The request goes out again, on another connection.
    pub(crate) fn resent(&mut self, capture: CaptureConnection) {
        self.began = Instant::now();
        self.phase = Some(Phase::Sent(capture));
    }

    /// The head of the answer came, on the connection of this record.
    pub(crate) fn answered(&mut self, record: Option<Arc<ConnectionRecord>>) {
        let Some(Phase::Sent(capture)) = self.phase.take() else {
            return;
        };
        self.phase = record.map(|record| {
            record.answered(&capture);
            let pending = None;
            Phase::Answered { record, pending }
        });
    }

    /// The caller asked for a frame, and none is there.
    pub(crate) fn waits_for_frame(&mut self) {
        if let Some(Phase::Answered { record, pending }) = &mut self.phase {
            pending.get_or_insert_with(|| record.bytes_read());
        }
    }

    /// A frame of the answer came.
    pub(crate) fn progressed(&mut self) {
        if let Some(Phase::Answered { pending, .. }) = &mut self.phase {
            *pending = None;
        }
    }

    /// The answer ended, or the request failed.
    pub(crate) fn finished(&mut self) {
        self.phase = None;
        self.lease.release();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let (record, capture, is_silent) = match self.phase.take() {
            None => return,
            Some(Phase::Answered { record, pending }) => {
                // If the call does not wait, the silence is the caller's.
                let is_silent = pending.is_some_and(|read| read == record.bytes_read());
                (record, None, is_silent)
            }
            Some(Phase::Sent(capture)) => {
                let connected = capture.connection_metadata();
                let record = connected.as_ref().and_then(ConnectionRecord::of);
                drop(connected);
                let Some(record) = record else {
                    return;
                };
                // What was read of a connection without an answer was its handshake.
                let is_silent = record.is_silent_since(self.began) || !record.is_proven();
                (record, Some(capture), is_silent)
            }
        };
        // Whoever ends a node stores the reason before the drop.
        let reason = self.run.as_ref().and_then(Run::terminal_reason);
        let has_timed_out = reason == Some(TerminalReason::StepTimeout);
        let least = match reason {
            Some(TerminalReason::Completed) => return,
            _ if has_timed_out => STEP_SILENCE,
            _ => SILENCE,
        };
        let since = self.began.max(record.last_read());
        if !is_silent || since.elapsed() < least {
            return;
        }
        tracing::debug!(silent = ?since.elapsed(), has_timed_out, "silent connections are not used again");
        // A caller may leave a model that thinks, which says nothing about other connections.
        match has_timed_out {
            true => record.condemn_silent_peers(since),
            false => record.condemn(),
        }
        // A record without an answer does not know its entry in the pool, which an HTTP/2
        // connection has from its start.
        let capture = capture.as_ref().map(CaptureConnection::connection_metadata);
        if let Some(connected) = capture.as_ref().and_then(|it| it.as_ref()) {
            connected.poison();
        }
    }
}
