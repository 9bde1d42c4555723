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

mod judge;
mod limits;
mod pattern;
mod pending_calls;
mod recent_calls;
mod state;
#[cfg(test)]
mod tests;
mod tools;
mod warnings;

pub use self::pattern::{LoopPattern, LoopVerdict};

pub(crate) use self::limits::LoopLimits;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use self::{
    recent_calls::Action,
    state::{Effect, State},
};
use crate::{
    llm::{Called, History, Place, digest},
    run::{handle::Run, reason::TerminalReason, report::Notice},
};

/// The actions of a run. Bounded, whatever requests say.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    memory: Mutex<Memory>,
    /// What the run ended for, in words.
    cause: OnceLock<Arc<str>>,
}

/// What is known of them: many ended runs are remembered, and need it no more.
#[derive(Debug, Default)]
enum Memory {
    #[default]
    Empty,
    Kept(Box<State>),
    Over,
}

impl Actions {
    /// Nothing if the run is over.
    fn with<R: Default>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut memory = self.lock();
        if let Memory::Empty = *memory {
            *memory = Memory::Kept(Box::default());
        }
        match &mut *memory {
            Memory::Kept(state) => f(state),
            Memory::Empty | Memory::Over => R::default(),
        }
    }

    /// The run is over: nothing is looked for in what it did any more.
    pub(in crate::run) fn forget(&self) {
        let forgotten = std::mem::replace(&mut *self.lock(), Memory::Over);
        drop(forgotten);
    }

    pub(in crate::run) fn cause(&self) -> Option<Arc<str>> {
        self.cause.get().cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Actions {
    /// How much is kept; none after the end.
    fn kept(&self) -> Option<usize> {
        match &*self.lock() {
            Memory::Empty => Some(0),
            Memory::Kept(state) => Some(state.sizes().iter().sum()),
            Memory::Over => None,
        }
    }
}

impl Run {
    /// Limits how far the nearest run may go in circles, or only tells when it would
    /// have ended. Limits that are there only tighten.
    pub(crate) fn limit_loops(&self, limits: LoopLimits, ends: bool) {
        let effects = self.actions().with(|state| state.limit(limits, ends));
        self.take(effects);
    }

    /// Ends the nearest run as [`LoopDetected`](TerminalReason::LoopDetected) once its
    /// tools go in circles, by the usual limits: those of
    /// [`LoopGuardLayer::new`](crate::LoopGuardLayer::new). For a run whose tools say
    /// their [arguments](crate::tool::Tool::arguments), and whose model calls pass no such
    /// layer; one of both is enough, and of two limits the smaller stays.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::{Run, TerminalReason};
    ///
    /// let run = Run::open();
    /// run.end_when_looping();
    /// for _ in 0..20 {
    ///     let tool = run.tool("job_status").arguments(&7);
    ///     tool.call(async { Err::<(), _>("no such job") }).await.ok();
    /// }
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
    /// # }
    /// ```
    pub fn end_when_looping(&self) {
        self.limit_loops(LoopLimits::DEFAULT, true);
    }

    /// Where the messages of the last request ended.
    pub(crate) fn places(&self) -> VecDeque<Place> {
        self.actions().with(|state| state.places().clone())
    }

    /// A request says this of what the run did.
    pub(crate) fn follow(&self, history: &History<'_>) {
        let effects = self.actions().with(|state| state.follow(history));
        self.take(effects);
    }

    /// An answer made these calls; a request that does not repeat them may bring
    /// their results.
    pub(crate) fn expect(&self, calls: Vec<Called>) {
        if !calls.is_empty() {
            self.actions().with(|state| state.expect(calls));
        }
    }

    /// A tool of the program's ran; `arguments` and `result` are digests.
    pub(crate) fn ran(&self, name: &str, arguments: u64, result: Option<u64>) {
        let action = Action {
            name: name.into(),
            call: digest((name.as_bytes(), arguments)),
            result,
            told: true,
        };
        let effects = self.actions().with(|state| state.ran(action));
        self.take(effects);
    }

    fn actions(&self) -> &Actions {
        &self.nearest().payload.harness().actions
    }

    /// Outside of the lock: an end goes far.
    fn take(&self, effects: Vec<Effect>) {
        let acted = effects.iter().filter_map(|effect| match effect {
            Effect::Acted(action) => Some(Some(*action)),
            Effect::Turned => Some(None),
            Effect::Found(_) => None,
        });
        self.acted(acted);
        for effect in effects {
            match effect {
                Effect::Acted(_) | Effect::Turned => {}
                Effect::Found(found) => {
                    let ends = found.verdict == LoopVerdict::Stopped;
                    if ends {
                        let _ = self.actions().cause.set(found.to_string().into());
                    }
                    self.notify(&Notice::from(found));
                    if ends {
                        self.run().end(TerminalReason::LoopDetected);
                    }
                }
            }
        }
    }
}
