//! The actions of a run, and the detection of loops among these actions.
//!
//! Two sources report actions: the histories in the requests that a loop guard reads, see
//! [`conversation`](crate::llm::conversation), and the program's [tools](crate::Run::tool) that
//! report their arguments. A call in a history counts once its result is there, and a tool once it
//! has run, so a refused tool does not count, and breaks no series. Only a call of an unknown tool
//! counts at once.
//!
//! # Nothing counts twice
//!
//! A request repeats the history of the last request, so the run reads the history from where that
//! one ended. If the history was changed since, the run reads all of it again, and calls count as
//! old up to the last one with a known id. If no id is known, as in the first request of a run, a
//! whole history counts only behind the user's last message. If a tool of the program reported an
//! action, a call in the history with the same name and arguments is that action.
//!
//! # The end of a run
//!
//! A loop ends the run only at a limit that was set to end it. If no limit is set, the default ones
//! are only observed. The end of the run frees all actions, but keeps the loop that caused the end.

mod action_log;
mod loop_detector;
mod loop_pattern;
mod pending_calls;
mod recent_calls;
#[cfg(test)]
mod tests;

pub use self::loop_pattern::{LoopPattern, LoopVerdict};

pub(crate) use self::{
    action_log::Effect,
    loop_pattern::LoopLimits,
    recent_calls::{Action, ToolArguments},
};

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use self::action_log::ActionLog;
use crate::lock::Lock;

/// The most bytes of an excerpt, and of the other texts that a run keeps for a checker.
pub(crate) const EXCERPT: usize = 1024;

/// The remembered actions of a run. Their number is bounded, whatever requests contain.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    memory: Lock<ActionMemory>,
    /// The most bytes of the arguments that an action keeps; 0 keeps none.
    excerpt: AtomicUsize,
    /// The first loop that reached a limit that ends the run, as a clause that completes "it ..".
    pub(in crate::run) cause: OnceLock<Arc<str>>,
}

/// The stored actions of a run. A registry remembers many ended runs, so a run that is over stores
/// none.
#[derive(Debug, Default)]
enum ActionMemory {
    #[default]
    Empty,
    Active(Box<ActionLog>),
    Over,
}

impl Actions {
    /// Sets the most bytes of its arguments that each action from now on keeps, up to `EXCERPT`.
    pub(in crate::run) fn keep_excerpts(&self, bytes: usize) {
        self.excerpt.store(bytes.min(EXCERPT), Ordering::Release);
    }

    pub(in crate::run) fn excerpt(&self) -> usize {
        self.excerpt.load(Ordering::Acquire)
    }

    /// Calls `f` with the run's stored actions; returns the default if the run is over.
    pub(in crate::run) fn with<R: Default>(&self, f: impl FnOnce(&mut ActionLog) -> R) -> R {
        let mut memory = self.memory.lock();
        if let ActionMemory::Empty = *memory {
            *memory = ActionMemory::Active(Box::default());
        }
        match &mut *memory {
            ActionMemory::Active(state) => f(state),
            ActionMemory::Empty | ActionMemory::Over => R::default(),
        }
    }

    /// Frees the run's stored actions, because the run is over.
    pub(in crate::run) fn forget(&self) {
        let forgotten = std::mem::replace(&mut *self.memory.lock(), ActionMemory::Over);
        drop(forgotten);
    }
}

#[cfg(test)]
impl Actions {
    /// The number of stored items; `None` after the end of the run.
    pub(in crate::run) fn kept(&self) -> Option<usize> {
        match &*self.memory.lock() {
            ActionMemory::Empty => Some(0),
            ActionMemory::Active(state) => Some(state.sizes().iter().sum()),
            ActionMemory::Over => None,
        }
    }
}
