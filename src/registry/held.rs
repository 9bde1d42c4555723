//! Requests beyond a cap of their owner, one of which may be a word to stop.

use super::{RunRegistry, owner::Owner};
use crate::run::{LimitHit, Run, TerminalReason};

/// How many requests of one owner are read at a time, so that an owner over its cap cannot
/// fill the memory.
const MOST: u32 = 4;

/// A call that is refused unless it is a word to stop; a place among those of its owner
/// until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    registry: RunRegistry,
    owner: Owner,
    cap: LimitHit,
    /// Its run would be a new one, and ends with it.
    is_new: bool,
}

impl RunRegistry {
    /// None if there are too many.
    pub(crate) fn hold(&self, owner: Owner, cap: LimitHit, is_new: bool) -> Option<Held> {
        let place = self.count_owners().take_place(owner, MOST);
        place.then(|| Held {
            registry: self.clone(),
            owner,
            cap,
            is_new,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.registry.count_owners().leave_place(self.owner);
    }
}

impl Run {
    /// It is for a layer further in to say whether this call is refused.
    pub(crate) fn hold(&self, held: Held) {
        // Set once, by the one who opens the call.
        let _set_before = self.call_node().payload.held().set(Box::new(held));
    }

    /// This call is no word to stop: it is refused if that was left open.
    pub(crate) fn refuse_held(&self) {
        let call = self.call_node();
        let Some(held) = call.payload.held().get() else {
            return;
        };
        let refused = if held.is_new { self.nearest() } else { call };
        drop(refused.end(TerminalReason::TurnCap, Some(held.cap), self.now()));
        let known = (!held.is_new).then_some(self);
        held.registry.tell_refused(held.owner, held.cap, known);
    }
}
