//! The texts of a run's answers that were cut.

use std::sync::Arc;

use crate::llm::stream::Partial;

/// The texts of a run's answers, as far as they came.
#[derive(Debug, Default)]
pub(crate) struct PartialTexts {
    /// The maximum of bytes that are stored per answer; `None` stores no text.
    pub(in crate::run) max: Option<usize>,
    /// The texts of the answers that still come, in the order of their beginning.
    pub(in crate::run) live: Vec<Partial>,
    /// The text of the last answer that was cut; `None` once another answer begins.
    pub(in crate::run) cut: Option<Arc<str>>,
}

impl PartialTexts {
    pub(in crate::run) fn latest(&self) -> Option<Arc<str>> {
        let mut live = self.live.iter().rev();
        live.find_map(Partial::read).or_else(|| self.cut.clone())
    }
}
