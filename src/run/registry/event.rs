use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};

use crate::run::{RunId, RunSnapshot, TerminalReason, Terminated, core::Node, info::Info};

/// Something that happened to a run.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// A run ended. There is exactly one for each, and nothing after it.
    Ended {
        /// Its id.
        run: RunId,
        /// Its session.
        session: Option<Arc<str>>,
        /// One more than that of the registry's event before.
        sequence: u64,
        /// Why.
        reason: TerminalReason,
        /// The message for people.
        message: String,
        /// All that was known at the end.
        snapshot: Arc<RunSnapshot>,
    },
    /// The observer was too slow for this many events.
    Lost {
        /// How many.
        events: u64,
    },
}

impl RunEvent {
    pub(super) fn ended(node: &Node<Info>, sequence: u64) -> Self {
        let end = Terminated::of(node);
        let at = node.nearest_end().map(|end| end.at).unwrap_or_default();
        let snapshot = Arc::new(RunSnapshot::of(node, at));
        Self::Ended {
            message: end.message(),
            run: end.run,
            session: snapshot.session.clone(),
            sequence,
            reason: end.reason,
            snapshot,
        }
    }
}

/// An observer of a [`RunRegistry`](super::RunRegistry).
#[derive(Debug)]
pub struct RunEvents {
    receiver: broadcast::Receiver<RunEvent>,
}

impl RunEvents {
    pub(super) const fn new(receiver: broadcast::Receiver<RunEvent>) -> Self {
        Self { receiver }
    }

    /// The next event; `None` once the registry is gone.
    ///
    /// # Cancel safety
    ///
    /// No event is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<RunEvent> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(events)) => Some(RunEvent::Lost { events }),
            Err(RecvError::Closed) => None,
        }
    }
}
