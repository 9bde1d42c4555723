//! Who is told what a call came to.

use std::sync::{Arc, Mutex};

use tower_agent::{CallSummary, RunLayer, RunRegistry};

/// What was told, in order; all clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<CallSummary>>>);

impl Told {
    /// What is to be given to `on_end`.
    pub(crate) fn hook(&self) -> impl Fn(&CallSummary) + Send + Sync + 'static {
        let told = Arc::clone(&self.0);
        move |summary: &CallSummary| told.lock().unwrap().push(summary.clone())
    }

    /// A layer that tells here.
    pub(crate) fn layer(&self) -> RunLayer {
        RunLayer::new(RunRegistry::new()).on_end(self.hook())
    }

    pub(crate) fn all(&self) -> Vec<CallSummary> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }

    /// The one call there was.
    pub(crate) fn one(&self) -> CallSummary {
        let all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    /// The tokens in and out of the one call.
    pub(crate) fn tokens(&self) -> Option<(u64, u64)> {
        let usage = self.one().usage?;
        Some((usage.input_tokens, usage.output_tokens))
    }
}
