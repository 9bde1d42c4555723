use std::{collections::VecDeque, sync::Arc};

use crate::llm::{Called, ConversationEvent, ToolCall, digest};

/// How many calls may wait for their results.
const OPEN: usize = 128;

/// How many calls are known by their ids.
const IDS: usize = 256;

/// How much of a tool's name is kept, in characters.
const NAME: usize = 64;

/// Calls and their results, brought together.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Calls of the history without a result.
    open: VecDeque<PendingCall>,
    /// Calls that an answer made, and no history has repeated.
    expected: VecDeque<PendingCall>,
    ids: VecDeque<u64>,
}

/// A call whose result is not there yet.
#[derive(Debug)]
pub(super) struct PendingCall {
    id: Option<u64>,
    pub(super) name: Arc<str>,
    /// Equal for the same tool with the same arguments.
    pub(super) call: u64,
}

impl Calls {
    /// An answer made these calls.
    pub(super) fn expect(&mut self, calls: Vec<Called>) {
        for call in calls.into_iter().filter(|call| call.id.is_some()) {
            self.expected.retain(|known| known.id != call.id);
            bounded(&mut self.expected, OPEN, PendingCall::new(&call));
        }
    }

    /// The history shows this call, which is new.
    pub(super) fn show(&mut self, waiting: PendingCall) {
        if let Some(id) = waiting.id {
            self.expected.retain(|known| known.id != Some(id));
            self.know(id);
        }
        bounded(&mut self.open, OPEN, waiting);
    }

    /// The call that a result with this id is of, if one waits for it.
    pub(super) fn answer(&mut self, id: Option<u64>) -> Option<PendingCall> {
        let of = |calls: &mut VecDeque<PendingCall>| {
            let place = calls.iter().position(|call| call.id == id)?;
            calls.remove(place)
        };
        let found = of(&mut self.open);
        let found = match id {
            // Its call is in no history.
            Some(_) => found.or_else(|| of(&mut self.expected)),
            None => found,
        };
        if let (Some(_), Some(id)) = (&found, id) {
            self.know(id);
        }
        found
    }

    /// Whether the event is a call that was seen before.
    pub(super) fn knows(&self, event: &ConversationEvent<'_>) -> bool {
        match event {
            ConversationEvent::Call(call) => call.id.is_some_and(|id| self.ids.contains(&id)),
            _ => false,
        }
    }

    /// Nothing is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.expected.is_empty()
    }

    fn know(&mut self, id: u64) {
        if !self.ids.contains(&id) {
            bounded(&mut self.ids, IDS, id);
        }
    }
}

#[cfg(test)]
impl Calls {
    /// How much is kept of each kind.
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
        }
    }
}

fn bounded<T>(queue: &mut VecDeque<T>, most: usize, item: T) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}
