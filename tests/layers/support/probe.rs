//! What happened to an upstream.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::time::Instant;
use tower_agent::{Run, TerminalReason};

/// Watches one scripted upstream; all clones watch the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    calls: AtomicUsize,
    polls: AtomicUsize,
    frames: AtomicUsize,
    dropped: Mutex<Vec<Dropped>>,
    runs: Mutex<Vec<Run>>,
}

/// A future or body of the upstream was dropped before its script had ended.
#[derive(Clone, Debug)]
pub(crate) struct Dropped {
    pub(crate) at: Instant,
    /// What the node said just then.
    pub(crate) reason: Option<TerminalReason>,
    /// Polls of the upstream until then.
    pub(crate) polls: usize,
}

impl Probe {
    /// How many calls reached the upstream.
    pub(crate) fn calls(&self) -> usize {
        self.seen.calls.load(Ordering::SeqCst)
    }

    /// How often futures and bodies were polled.
    pub(crate) fn polls(&self) -> usize {
        self.seen.polls.load(Ordering::SeqCst)
    }

    /// How many frames were taken.
    pub(crate) fn frames(&self) -> usize {
        self.seen.frames.load(Ordering::SeqCst)
    }

    /// The node that the latest call found in its request.
    pub(crate) fn run(&self) -> Run {
        self.seen.runs.lock().unwrap().last().unwrap().clone()
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.seen.runs.lock().unwrap().clone()
    }

    pub(crate) fn all_dropped(&self) -> Vec<Dropped> {
        self.seen.dropped.lock().unwrap().clone()
    }

    /// The one drop there was.
    pub(crate) fn dropped(&self) -> Dropped {
        let dropped = self.all_dropped();
        assert_eq!(dropped.len(), 1, "{dropped:?}");
        dropped[0].clone()
    }

    pub(crate) fn is_dropped(&self) -> bool {
        !self.all_dropped().is_empty()
    }

    pub(super) fn called(&self, run: Option<&Run>) {
        self.seen.calls.fetch_add(1, Ordering::SeqCst);
        self.seen.runs.lock().unwrap().extend(run.cloned());
    }

    pub(super) fn polled(&self) {
        self.seen.polls.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn took(&self) {
        self.seen.frames.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn drop_of(&self, run: Option<&Run>) {
        self.seen.dropped.lock().unwrap().push(Dropped {
            at: Instant::now(),
            reason: run.and_then(Run::terminal_reason),
            polls: self.polls(),
        });
    }
}
