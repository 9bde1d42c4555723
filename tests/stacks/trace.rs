//! What happened, in order.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tower_agent::{NodeKind, Run, TerminalReason, run::CallSummary};

use super::plan::Plan;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request, made out to a model, came to the layer at this index, which
    /// may try more than once.
    Came(usize, Option<String>),
    /// That layer asked whether it may try once more.
    Willing(usize, Option<String>),
    /// That layer tried.
    Tried(usize, Option<String>),
    /// A connection was refused; a node that is over must not ask for one.
    Refused(Option<TerminalReason>),
    /// The upstream was asked whether it is healthy.
    Probed(bool),
    /// The upstream is not ready for another call.
    Busy,
    Called(usize, Asked),
    /// The upstream was asked for more of that call and had nothing.
    Pending(usize),
    Gave(usize, Given),
    /// The upstream said that it ended; or failed.
    Ended(usize, bool),
    Dropped(usize),
    /// The reader asks.
    Asked,
    Got(String),
    /// A status, the model that served, the number of the attempt.
    Head(u16, Option<String>, Option<u32>),
    /// How the reader's answer ended: cleanly, with a reason, with an error.
    Over(Over),
    /// Something came after an error.
    Unfused,
    /// The reader drops what it has.
    Left,
    Acted(&'static str),
    /// The end is stored; a thread stands between that and its spreading.
    Stored,
    /// What the outsider ended has spread to all that is below.
    Spread,
    /// The tool is over: by itself, or by the end of this node.
    ToolOver(Option<NodeKind>),
    /// A call is of the request with this number, of several.
    Visited(usize),
    /// The operation with this number succeeded; the run has had so many turns.
    Operated(usize, u32),
    /// Of so many turns that the run's cap held, the operation with this number let so many go on.
    LetGo(usize, u32, u32),
    /// An observer saw the end of the run, or of the call.
    Noticed(Node, TerminalReason),
    /// Everything is gone: what is in flight, in the run and in the registry,
    /// and how many tasks live.
    Gone(usize, usize, usize),
}

/// What the upstream sees of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) model: String,
    /// Whether all else of the body is what the caller sent.
    pub(crate) intact: bool,
    /// `x-attempt`.
    pub(crate) attempt: Option<u32>,
    /// When the attempt was opened, if it is one.
    pub(crate) opened: Duration,
    /// Why the call may not start: the nearest node that is over.
    pub(crate) over: Option<TerminalReason>,
}

/// What the upstream gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Head,
    Content,
    Terminator,
    Error,
    /// Pings and preludes, and what is no whole event.
    Rest,
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

/// The summary of a call, as a hook of the program heard it.
pub(crate) struct Summarised {
    /// The layer that has the hook.
    pub(crate) layer: usize,
    pub(crate) at: Duration,
    pub(crate) summary: CallSummary,
}

/// Append only; all clones are the same.
#[derive(Clone)]
pub(crate) struct Trace {
    start: Instant,
    state: Arc<Mutex<TraceState>>,
    /// By itself: an end may be noticed while the other is locked.
    summaries: Arc<Mutex<Vec<Summarised>>>,
}

#[derive(Default)]
struct TraceState {
    entries: Vec<Entry>,
    call: Option<Run>,
    /// The node that each upstream call found.
    found: Vec<Run>,
    /// The text that each upstream call has given.
    said: Vec<String>,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            state: Arc::default(),
            summaries: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TraceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A layer put this node into a request. The nearest that is no attempt is the
    /// call.
    pub(crate) fn know(&self, node: Run) {
        let nodes = std::iter::successors(Some(node), Run::parent);
        let call = nodes
            .into_iter()
            .find(|node| node.kind() != NodeKind::Attempt);
        self.lock().call = call;
    }

    /// An upstream call starts under this node; answers its number.
    pub(crate) fn start(&self, asked: Asked, found: Run) -> usize {
        let call = self.calls();
        let mut shared = self.lock();
        shared.found.push(found);
        shared.said.push(String::new());
        drop(shared);
        self.push(Event::Called(call, asked));
        call
    }

    /// An upstream call gives a text.
    pub(crate) fn said(&self, call: usize, text: &str) {
        if let Some(said) = self.lock().said.get_mut(call) {
            said.push_str(text);
        }
    }

    /// The text that each upstream call has given.
    pub(crate) fn all_said(&self) -> Vec<String> {
        self.lock().said.clone()
    }

    /// How many upstream calls there were.
    pub(crate) fn calls(&self) -> usize {
        self.lock().found.len()
    }

    /// The node of the latest upstream call.
    pub(crate) fn latest(&self) -> Option<Run> {
        self.lock().found.last().cloned()
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
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

    /// Whether an outsider's end is stored, and has not spread.
    pub(crate) fn is_spreading(&self) -> bool {
        let of_outsider = |event: &Event| matches!(event, Event::Acted(_) | Event::Spread);
        let entries = &self.lock().entries;
        let last = entries.iter().rfind(|entry| of_outsider(&entry.event));
        last.is_some_and(|entry| entry.event != Event::Spread)
    }

    /// A hook of the program hears how the call ended.
    pub(crate) fn summarised(&self, layer: usize, summary: &CallSummary) {
        self.summaries.lock().unwrap().push(Summarised {
            layer,
            at: self.start.elapsed(),
            summary: summary.clone(),
        });
    }

    /// The summaries since the last time.
    pub(crate) fn take_summaries(&self) -> Vec<Summarised> {
        std::mem::take(&mut self.summaries.lock().unwrap())
    }

    /// All that was noted since the last time.
    pub(crate) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.lock().entries)
    }
}

/// A trace that is complete.
pub(crate) struct Story {
    pub(crate) entries: Vec<Entry>,
    /// All that each upstream call would give if nobody stopped it.
    pub(crate) given: Vec<String>,
    /// All that each upstream call gave.
    pub(crate) said: Vec<String>,
    /// How many repeats the budget has left in the end: for no model, and for
    /// each.
    pub(crate) left: Vec<(Option<String>, usize)>,
    /// Whether any node was seen: one that is over at once is not.
    pub(crate) known: bool,
    /// Whether observers saw the nodes from their beginning.
    pub(crate) observed: bool,
    /// What each layer that opens calls said of the end of the call.
    pub(crate) summaries: Vec<Summarised>,
    /// The requests of the same run that followed.
    pub(crate) turns: Vec<Turn>,
    /// What happened at the other replica.
    pub(crate) elsewhere: Vec<Entry>,
}

/// One more request of the run.
#[derive(Debug)]
pub(crate) struct Turn {
    /// What the run said before it, and after it.
    pub(crate) run: [Option<TerminalReason>; 2],
    /// How many upstream calls there were.
    pub(crate) calls: usize,
    /// How much was in flight after it, and how many tasks lived.
    pub(crate) left: (usize, usize),
}

impl Story {
    pub(crate) fn at(&self, wanted: impl Fn(&Event) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| wanted(&entry.event))
    }

    /// The events from the first at which the call was over.
    pub(crate) fn over_from(&self) -> Option<usize> {
        let over = |entry: &Entry| entry.reasons[1].is_some();
        self.entries.iter().position(over)
    }

    /// When a pump's task hears of an end at the latest that was stored at `over`: it is
    /// woken as the end spreads. What the reader polls looks for itself.
    pub(crate) fn heard(&self, plan: &Plan, over: Duration) -> Duration {
        match self.spreading().filter(|_| plan.is_pumped()) {
            Some((stored, spread)) if stored <= over => over.max(spread),
            _ => over,
        }
    }

    /// When an outsider stored an end, and when that had spread.
    pub(crate) fn spreading(&self) -> Option<(Duration, Duration)> {
        let at = |wanted| Some(self.entries[self.at(|event| *event == wanted)?].at);
        at(Event::Stored).zip(at(Event::Spread))
    }

    /// The upstream calls, in order: where each stands, and what it was asked.
    pub(crate) fn calls(&self) -> impl DoubleEndedIterator<Item = (usize, &Asked)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(index, entry)| match &entry.event {
            Event::Called(_, asked) => Some((index, asked)),
            _ => None,
        })
    }

    /// The status of the answer, and where it stands.
    pub(crate) fn head(&self) -> Option<(usize, u16)> {
        let mut entries = self.entries.iter().enumerate();
        entries.find_map(|(index, entry)| match entry.event {
            Event::Head(status, ..) => Some((index, status)),
            _ => None,
        })
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Got(text) => Some(&**text),
            _ => None,
        })
    }

    pub(crate) fn got(&self) -> String {
        self.texts().collect()
    }

    pub(crate) fn over(&self) -> Option<&Over> {
        self.entries.iter().find_map(|entry| match &entry.event {
            Event::Over(over) => Some(over),
            _ => None,
        })
    }

    /// A number of all that the story says, but for how often the upstream and the reader
    /// were polled. By FNV-1a, so that it is the same with each version of Rust.
    pub(crate) fn digest(&self) -> u32 {
        let mut digest = 0x811c_9dc5_u32;
        let mut add = |text: String| {
            for byte in text.bytes().chain([0]) {
                digest = (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193);
            }
        };
        for Entry { at, event, reasons } in self.entries.iter().chain(&self.elsewhere) {
            if !matches!(event, Event::Asked | Event::Pending(_) | Event::Busy) {
                add(format!("{at:?} {event:?} {reasons:?}"));
            }
        }
        add(format!("{:?} {:?} {:?}", self.left, self.known, self.turns));
        digest
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
        for turn in &self.turns {
            writeln!(f, "then {turn:?}")?;
        }
        for Entry { at, event, reasons } in &self.elsewhere {
            let at = at.as_secs_f64();
            writeln!(f, "elsewhere {at:6.2} {event:?} {reasons:?}")?;
        }
        Ok(())
    }
}
