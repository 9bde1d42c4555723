//! The beginnings of a run's answers, as texts.

use std::sync::Arc;

use super::Run;
use crate::{
    llm::Partial,
    run::{state::NodeState, tree::Node},
};

impl Run {
    /// Keeps the beginning of the text of each streamed answer, at most `max_bytes`.
    ///
    /// If the nearest run or a call ends before its answer does,
    /// [`RunEvent::Ended`](crate::run::RunEvent::Ended) and
    /// [`CallSummary`](crate::run::CallSummary) carry the text. After the end of a node, its
    /// snapshots carry the text of the run's last answer, whole or not. The setting holds for
    /// answers that begin from now on; 0 keeps nothing. The text is that of the text deltas of
    /// OpenAI's and Anthropic's streams; of several choices, the first.
    pub fn keep_partial(&self, max_bytes: usize) {
        let partials = &self.run_state().rare().partials;
        partials.lock().max = Some(max_bytes).filter(|max| *max > 0);
    }

    /// Begins to record the text of an answer, if the nearest run keeps texts.
    pub(crate) fn begin_partial(&self) -> Option<Partial> {
        let rare = self.run_state().rare_if_any()?;
        let mut texts = rare.partials.lock();
        let partial = Partial::new(texts.max?);
        texts.live.push(partial.clone());
        texts.cut = None;
        drop(texts);
        self.node().call_node().payload.set_partial(None);
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
        self.node().call_node().payload.set_partial(text);
    }
}

impl Node<NodeState> {
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
