//! The tool calls of a run that wait for their results.

use std::{collections::VecDeque, sync::Arc};

use super::recent_calls::push_bounded;
use crate::llm::{Called, ConversationEvent, ToolCall, digest};

/// The maximum of calls that are stored in each list while they wait for their results.
const OPEN: usize = 128;

/// The maximum of call ids that a run remembers.
const IDS: usize = 256;

/// The maximum length of a stored tool name, in characters.
const NAME: usize = 64;

/// Matches the tool calls of a run with their results.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    /// The calls in the history that have no result yet.
    open: VecDeque<PendingCall>,
    /// The calls in an answer that no history has repeated yet.
    expected: VecDeque<PendingCall>,
    ids: VecDeque<u64>,
}

/// A tool call without a result.
#[derive(Debug)]
pub(super) struct PendingCall {
    id: Option<u64>,
    pub(super) name: Arc<str>,
    /// The digest of the call, equal for the same tool with the same arguments.
    pub(super) call: u64,
    pub(super) excerpt: Option<Arc<str>>,
}

impl PendingCalls {
    /// Stores the calls with an id that an answer made, because a later history may bring their
    /// results alone.
    pub(super) fn expect(&mut self, calls: Vec<Called>) {
        for call in calls.into_iter().filter(|call| call.id.is_some()) {
            self.expected.retain(|known| known.id != call.id);
            push_bounded(&mut self.expected, OPEN, PendingCall::new(&call));
        }
    }

    /// Stores a call that is new in the history, until its result comes.
    pub(super) fn show(&mut self, waiting: PendingCall) {
        if let Some(id) = waiting.id {
            self.expected.retain(|known| known.id != Some(id));
            self.know(id);
        }
        push_bounded(&mut self.open, OPEN, waiting);
    }

    /// Removes and returns the call that a result with this id belongs to.
    pub(super) fn answer(&mut self, id: Option<u64>) -> Option<PendingCall> {
        let of = |calls: &mut VecDeque<PendingCall>| {
            let place = calls.iter().position(|call| call.id == id)?;
            calls.remove(place)
        };
        // A call with an id may stand in an answer alone, because the request brings its result
        // without the call.
        let found = of(&mut self.open).or_else(|| of(&mut self.expected));
        if let (Some(_), Some(id)) = (&found, id) {
            self.know(id);
        }
        found
    }

    /// Whether the event is a call with an id that was seen before.
    pub(super) fn knows(&self, event: &ConversationEvent<'_>) -> bool {
        match event {
            ConversationEvent::Call(call) => call.id.is_some_and(|id| self.ids.contains(&id)),
            _ => false,
        }
    }

    /// Whether no stored call of the run waits for a result.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.expected.is_empty()
    }

    fn know(&mut self, id: u64) {
        if !self.ids.contains(&id) {
            push_bounded(&mut self.ids, IDS, id);
        }
    }
}

#[cfg(test)]
impl PendingCalls {
    /// The numbers of stored items: one number for each kind.
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.open.len(), self.expected.len(), self.ids.len()]
    }
}

impl PendingCall {
    pub(super) fn new(call: &ToolCall<'_>) -> Self {
        let name = String::from_utf8_lossy(&call.name);
        let readable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let name: String = name.chars().take(NAME).map(readable).collect();
        Self {
            id: call.id,
            name: name.into(),
            call: digest((&*call.name, call.arguments)),
            excerpt: None,
        }
    }
}
