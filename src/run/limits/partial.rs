//! The text of answers that did not come to their end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::llm::stream::Partial;

/// What a run keeps of its answers.
#[derive(Debug, Default)]
pub(crate) struct Partials(Mutex<PartialTexts>);

#[derive(Debug, Default)]
pub(in crate::run) struct PartialTexts {
    /// How many bytes of each; nothing is kept without it.
    pub(in crate::run) max: Option<usize>,
    /// Those under way, in the order in which they began.
    pub(in crate::run) live: Vec<Partial>,
    /// Of the last one that was cut, until another begins.
    pub(in crate::run) cut: Option<Arc<str>>,
}

impl Partials {
    pub(in crate::run) fn lock(&self) -> MutexGuard<'_, PartialTexts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialTexts {
    pub(in crate::run) fn latest(&self) -> Option<Arc<str>> {
        let mut live = self.live.iter().rev();
        live.find_map(Partial::read).or_else(|| self.cut.clone())
    }
}
