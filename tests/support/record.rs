//! What an upstream records of its calls.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use http::{HeaderMap, Uri};
use tokio::time::Instant;
use tower_agent::{Run, TerminalReason};

/// The record of one upstream; all clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    polls: AtomicUsize,
    frames: AtomicUsize,
    readiness_polls: AtomicUsize,
    requests: Mutex<Vec<RequestRecord>>,
    drops: Mutex<Vec<DropRecord>>,
}

/// One request, as it reached the upstream.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    /// The time of the call.
    pub(crate) at: Instant,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(super) body: Option<String>,
    pub(super) run: Option<Run>,
}

impl RequestRecord {
    /// The body.
    ///
    /// # Panics
    ///
    /// If the body was not there at once, or no text.
    pub(crate) fn body(&self) -> &str {
        self.body.as_deref().unwrap()
    }

    /// The node in the request's extensions: below a layer that opens attempts, the attempt.
    ///
    /// # Panics
    ///
    /// If there was none.
    pub(crate) fn run(&self) -> &Run {
        self.run.as_ref().unwrap()
    }
}

/// A future or body of the upstream that was dropped before its script had ended.
#[derive(Clone, Debug)]
pub(crate) struct DropRecord {
    /// The time of the drop.
    pub(crate) at: Instant,
    /// The terminal reason of the call's node at the drop.
    pub(crate) reason: Option<TerminalReason>,
    /// Polls of the upstream until the drop.
    pub(crate) polls: usize,
}

impl Record {
    pub(super) fn polls(&self) -> usize {
        self.inner.polls.load(Ordering::SeqCst)
    }

    pub(super) fn frames(&self) -> usize {
        self.inner.frames.load(Ordering::SeqCst)
    }

    pub(super) fn readiness_polls(&self) -> usize {
        self.inner.readiness_polls.load(Ordering::SeqCst)
    }

    pub(super) fn calls(&self) -> usize {
        self.inner.requests.lock().unwrap().len()
    }

    pub(super) fn requests(&self) -> Vec<RequestRecord> {
        self.inner.requests.lock().unwrap().clone()
    }

    pub(super) fn drops(&self) -> Vec<DropRecord> {
        self.inner.drops.lock().unwrap().clone()
    }

    /// Adds a request; answers how many came before it.
    pub(super) fn push_request(&self, request: RequestRecord) -> usize {
        let mut requests = self.inner.requests.lock().unwrap();
        requests.push(request);
        requests.len() - 1
    }

    pub(super) fn count_poll(&self) {
        self.inner.polls.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count_frame(&self) {
        self.inner.frames.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count_readiness_poll(&self) {
        self.inner.readiness_polls.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn push_drop(&self, run: Option<&Run>) {
        let record = DropRecord {
            at: Instant::now(),
            reason: run.and_then(Run::terminal_reason),
            polls: self.polls(),
        };
        self.inner.drops.lock().unwrap().push(record);
    }
}
