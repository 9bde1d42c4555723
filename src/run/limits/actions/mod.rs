//! What a run does, and whether it goes in circles.
//!
//! Two sources tell of actions: the history that each request carries, see
//! [`conversation`](crate::llm::conversation), and the tools of the program that say
//! their arguments, [`Tool::arguments`](crate::tool::Tool::arguments). An action is
//! counted when its result is there, so what was refused is none, and ends no row.
//!
//! # Nothing counts twice
//!
//! A request repeats what the last one said, so it is read from where that ended.
//! If it was changed since, all of it is read again, and the calls up to the last
//! one that is known by its id are old. Where none is known, as in the first
//! request of a run, what came before the user's last message is another run's. An
//! action of a tool of the program's is taken for the one that the history then
//! shows with the same name and arguments.
//!
//! # What ends
//!
//! Nothing, unless somebody set limits: else the usual ones are observed. With the run
//! all that is remembered of its actions is freed, but for what it was ended for.

mod detector;
mod pattern;
mod pending_calls;
mod recent_calls;
mod state;
#[cfg(test)]
mod tests;
mod tools;

pub use self::pattern::{LoopPattern, LoopVerdict};

pub(crate) use self::{pattern::LoopLimits, recent_calls::Action, state::Effect};

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use self::state::LoopState;

/// The actions of a run. Bounded, whatever requests say.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    pub(in crate::run) memory: Mutex<LoopMemory>,
    /// What the run ended for, in words.
    pub(in crate::run) cause: OnceLock<Arc<str>>,
}

/// What is known of them: many ended runs are remembered, and need it no more.
#[derive(Debug, Default)]
pub(in crate::run) enum LoopMemory {
    #[default]
    Empty,
    Kept(Box<LoopState>),
    Over,
}

impl Actions {
    /// Nothing if the run is over.
    pub(in crate::run) fn with<R: Default>(&self, f: impl FnOnce(&mut LoopState) -> R) -> R {
        let mut memory = self.lock();
        if let LoopMemory::Empty = *memory {
            *memory = LoopMemory::Kept(Box::default());
        }
        match &mut *memory {
            LoopMemory::Kept(state) => f(state),
            LoopMemory::Empty | LoopMemory::Over => R::default(),
        }
    }

    /// The run is over: nothing is looked for in what it did any more.
    pub(in crate::run) fn forget(&self) {
        let forgotten = std::mem::replace(&mut *self.lock(), LoopMemory::Over);
        drop(forgotten);
    }

    pub(in crate::run) fn cause(&self) -> Option<Arc<str>> {
        self.cause.get().cloned()
    }

    pub(in crate::run) fn lock(&self) -> MutexGuard<'_, LoopMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Actions {
    /// How much is kept; none after the end.
    pub(in crate::run) fn kept(&self) -> Option<usize> {
        match &*self.lock() {
            LoopMemory::Empty => Some(0),
            LoopMemory::Kept(state) => Some(state.sizes().iter().sum()),
            LoopMemory::Over => None,
        }
    }
}
