//! What happened, in order.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tower_agent::{Run, TerminalReason};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Called,
    /// The upstream was asked and had nothing.
    Pending,
    /// The upstream gave its head, or a frame of so many bytes.
    Gave(usize),
    /// The upstream said that it ended; or failed.
    Ended(bool),
    Dropped,
    /// The reader asks.
    Asked,
    Got(String),
    Head(u16),
    /// How the reader's answer ended: cleanly, with a reason, with an error.
    Over(Over),
    /// Something came after an error.
    Unfused,
    /// The reader drops what it has.
    Left,
    Acted(&'static str),
    /// An observer saw the end of the run, or of the call.
    Noticed(Node, TerminalReason),
    /// Everything is gone: what is in flight, in the run and in the registry,
    /// and how many tasks live.
    Gone(usize, usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Run,
    Call,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Whole,
    Reason(TerminalReason),
    Error(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Duration,
    pub(crate) event: Event,
    /// What run and call said just then.
    pub(crate) reasons: [Option<TerminalReason>; 2],
}

/// Append only; all clones are the same.
#[derive(Clone)]
pub(crate) struct Trace {
    start: Instant,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    entries: Vec<Entry>,
    call: Option<Run>,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            shared: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn know(&self, call: Run) {
        self.lock().call = Some(call);
    }

    pub(crate) fn call(&self) -> Option<Run> {
        self.lock().call.clone()
    }

    pub(crate) fn push(&self, event: Event) {
        let mut shared = self.lock();
        let reasons = shared.call.as_ref().map_or([None, None], |call| {
            [call.run().terminal_reason(), call.terminal_reason()]
        });
        let at = self.start.elapsed();
        if shared.entries.len() > 2_000 {
            // Once: what unwinds is dropped, and says so here.
            assert!(std::thread::panicking(), "it spins");
            return;
        }
        shared.entries.push(Entry { at, event, reasons });
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.lock().entries.clone()
    }
}

/// A trace that is complete.
pub(crate) struct Story {
    pub(crate) entries: Vec<Entry>,
    /// All that the upstream gave, and all that the reader got.
    pub(crate) given: String,
}

impl Story {
    pub(crate) fn at(&self, wanted: impl Fn(&Event) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| wanted(&entry.event))
    }

    pub(crate) fn got(&self) -> String {
        let got = self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Got(text) => Some(&**text),
            _ => None,
        });
        got.collect()
    }

    pub(crate) fn over(&self) -> Option<&Over> {
        self.entries.iter().find_map(|entry| match &entry.event {
            Event::Over(over) => Some(over),
            _ => None,
        })
    }

    pub(crate) fn last(&self) -> &Entry {
        self.entries.last().unwrap()
    }

    /// The call's reason in the end; the run's, if it was the call.
    pub(crate) fn end(&self) -> String {
        let reason = &self.last().reasons[1];
        reason
            .as_ref()
            .map_or("none", TerminalReason::as_str)
            .to_owned()
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Entry { at, event, reasons } in &self.entries {
            writeln!(f, "{:6.2} {event:?} {reasons:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
