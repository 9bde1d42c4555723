//! The beginnings of a run's answers, as texts.

use std::sync::Arc;

use crate::{
    llm::Partial,
    run::{state::NodeState, tree::Node},
};

impl Node<NodeState> {
    /// Begins to record the text of an answer, if the nearest run keeps texts.
    pub(crate) fn begin_partial(&self) -> Option<Partial> {
        let rare = self.run_state().rare_if_any()?;
        let mut texts = rare.partials.lock();
        let partial = Partial::new(texts.max?);
        texts.live.push(partial.clone());
        texts.cut = None;
        drop(texts);
        self.call_node().payload.set_partial(None);
        Some(partial)
    }

    /// Stores the recorded text of an answer that brings no more text.
    pub(crate) fn end_partial(&self, partial: &Partial) {
        let Some(rare) = self.run_state().rare_if_any() else {
            return;
        };
        let text = partial.read();
        let mut texts = rare.partials.lock();
        texts.live.retain(|live| !live.is(partial));
        texts.last = partial.text().or(texts.last.take());
        if text.is_some() {
            texts.cut.clone_from(&text);
        }
        drop(texts);
        self.call_node().payload.set_partial(text);
    }

    /// The text of the run's newest answer in progress that has text. Without such an answer, the
    /// text of the last one that was cut, unless another answer has begun since.
    pub(in crate::run) fn partial(&self) -> Option<Arc<str>> {
        let rare = self.run_state().rare_if_any()?;
        rare.partials.lock().latest()
    }

    /// The text of the run's newest answer in progress that has text. Without such an answer, the
    /// text of the last one that had text and has ended.
    pub(in crate::run) fn last_text(&self) -> Option<Arc<str>> {
        let rare = self.run_state().rare_if_any()?;
        rare.partials.lock().last_text()
    }
}
