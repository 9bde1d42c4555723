//! The call summaries that a layer hands out.

use std::sync::{Arc, Mutex};

use tower_agent::{CallSummary, RunLayer, RunRegistry};

/// Collects call summaries, in order; all clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summaries(Arc<Mutex<Vec<CallSummary>>>);

impl Summaries {
    /// A hook for `on_end`.
    pub(crate) fn hook(&self) -> impl Fn(&CallSummary) + Send + Sync + 'static {
        let summaries = Arc::clone(&self.0);
        move |summary: &CallSummary| summaries.lock().unwrap().push(summary.clone())
    }

    /// A run layer that reports here.
    pub(crate) fn layer(&self) -> RunLayer {
        RunLayer::new(RunRegistry::new()).on_end(self.hook())
    }

    /// All summaries.
    pub(crate) fn all(&self) -> Vec<CallSummary> {
        self.0.lock().unwrap().clone()
    }

    /// Whether no call has ended yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }

    /// The only summary.
    ///
    /// # Panics
    ///
    /// If there is none, or more than one.
    pub(crate) fn one(&self) -> CallSummary {
        let all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    /// The input and output tokens of the only summary.
    pub(crate) fn tokens(&self) -> Option<(u64, u64)> {
        let usage = self.one().usage?;
        Some((usage.input_tokens, usage.output_tokens))
    }
}
