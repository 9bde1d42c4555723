//! The text of answers that did not come to their end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    llm::stream::Partial,
    run::{handle::Run, state::Info, tree::Node},
};

/// What a run keeps of its answers.
#[derive(Debug, Default)]
pub(crate) struct Partials(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// How many bytes of each; nothing is kept without it.
    max: Option<usize>,
    /// Those under way, in the order in which they began.
    live: Vec<Partial>,
    /// Of the last one that was cut, until another begins.
    cut: Option<Arc<str>>,
}

impl Partials {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn latest(&self) -> Option<Arc<str>> {
        let mut live = self.live.iter().rev();
        live.find_map(Partial::read).or_else(|| self.cut.clone())
    }
}

impl Run {
    /// Keeps the beginning of each answer of the nearest run while it streams, at most
    /// `max_bytes` of its text: where the run or a call ends before its answer does,
    /// [`RunEvent::Ended`](crate::run::RunEvent::Ended) and
    /// [`CallSummary`](crate::run::CallSummary) have it. For answers that begin from now
    /// on; 0 keeps nothing. Read are the text deltas of OpenAI's and Anthropic's
    /// streams, of several choices the first.
    pub fn keep_partial(&self, max_bytes: usize) {
        let partials = &self.nearest().payload.harness().partials;
        partials.lock().max = Some(max_bytes).filter(|max| *max > 0);
    }

    /// An answer of this node begins: where its text goes, if it is kept.
    pub(crate) fn begin_partial(&self) -> Option<Partial> {
        let harness = self.nearest().payload.harness_if_any()?;
        let mut kept = harness.partials.lock();
        let partial = Partial::new(kept.max?);
        kept.live.push(partial.clone());
        kept.cut = None;
        drop(kept);
        self.call_info().tell_partial(None);
        Some(partial)
    }

    /// Nothing more comes of an answer that was begun.
    pub(crate) fn end_partial(&self, partial: &Partial) {
        let Some(harness) = self.nearest().payload.harness_if_any() else {
            return;
        };
        let text = partial.read();
        let mut kept = harness.partials.lock();
        kept.live.retain(|live| !live.is(partial));
        if text.is_some() {
            kept.cut.clone_from(&text);
        }
        drop(kept);
        self.call_info().tell_partial(text);
    }
}

impl Node<Info> {
    /// What the caller has of the run's last answer, if that is not whole.
    pub(in crate::run) fn partial(&self) -> Option<Arc<str>> {
        let harness = self.nearest_run().payload.harness_if_any()?;
        harness.partials.lock().latest()
    }
}
