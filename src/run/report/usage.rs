//! What answers said of themselves: the tokens they took, why they stopped.

use std::sync::Arc;

use crate::{llm::dialect::Usage, run::state::NodeState};

/// What is known of a node's answers so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedUsage {
    /// Of all answers at or below the node.
    pub(in crate::run) usage: Option<Usage>,
    /// Why the last one stopped, in the upstream's words.
    pub(in crate::run) stop_reason: Option<Arc<str>>,
    /// The text of the last one, if it was cut and is kept.
    pub(in crate::run) partial: Option<Arc<str>>,
}

/// A mark on an answer, in its extensions: what it says of its usage is not counted.
///
/// For an answer that a layer of the program's own makes, such as a cache: what it
/// repeats was paid for before. Neither [`Run::usage`](crate::Run::usage) nor
/// [`CallSummary::usage`](crate::run::CallSummary::usage) has it then, wherever the layer
/// stands.
///
/// An answer that no attempt made cannot be told from that of a service that is asked
/// without a [`ModelFallbackLayer`](crate::ModelFallbackLayer) or a
/// [`RetryBudgetLayer`](crate::RetryBudgetLayer): it counts unless it is marked.
///
/// ```
/// use tower_agent::NotCounted;
///
/// fn from_the_cache<B>(mut answer: http::Response<B>) -> http::Response<B> {
///     answer.extensions_mut().insert(NotCounted);
///     answer
/// }
/// # from_the_cache(http::Response::new(()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotCounted;

impl NodeState {
    pub(in crate::run) fn report(&self, usage: Option<Usage>, stop_reason: Option<&Arc<str>>) {
        let mut told = self.lock_told();
        if let Some(more) = usage {
            let sum = told.usage.get_or_insert_default();
            sum.input_tokens = sum.input_tokens.saturating_add(more.input_tokens);
            sum.output_tokens = sum.output_tokens.saturating_add(more.output_tokens);
        }
        if let Some(reason) = stop_reason {
            told.stop_reason = Some(Arc::clone(reason));
        }
    }

    pub(in crate::run) fn tell_partial(&self, partial: Option<Arc<str>>) {
        self.lock_told().partial = partial;
    }

    pub(in crate::run) fn told(&self) -> ReportedUsage {
        self.lock_told().clone()
    }
}
