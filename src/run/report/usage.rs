//! The values that answers report about themselves: their tokens, and why they stopped.

use std::sync::Arc;

use crate::{llm::dialect::Usage, run::state::NodeState};

/// The values that a node's answers have reported so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedUsage {
    /// The sum of the tokens of all answers at or below the node; `None` if none were reported.
    pub(in crate::run) usage: Option<Usage>,
    /// The reason for which the last answer stopped, in the upstream's words.
    pub(in crate::run) stop_reason: Option<Arc<str>>,
    /// The text of the node's last answer, if it was cut and the run keeps texts.
    pub(in crate::run) partial: Option<Arc<str>>,
}

/// A mark in an answer's extensions: the usage of the answer is not counted.
///
/// The mark is for an answer that a layer of the program makes, such as a cache: its tokens were
/// paid for before. Neither [`Run::usage`](crate::Run::usage) nor
/// [`CallSummary::usage`](crate::run::CallSummary::usage) then includes these tokens, wherever the
/// layer stands.
///
/// Without a [`ModelFallbackLayer`](crate::ModelFallbackLayer) or a
/// [`RetryBudgetLayer`](crate::RetryBudgetLayer) there are no attempts, so such an answer looks
/// like that of the inner service: it counts unless it is marked.
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
        let mut reported = self.usage.lock();
        if let Some(more) = usage {
            let sum = reported.usage.get_or_insert_default();
            sum.input_tokens = sum.input_tokens.saturating_add(more.input_tokens);
            sum.output_tokens = sum.output_tokens.saturating_add(more.output_tokens);
        }
        if let Some(reason) = stop_reason {
            reported.stop_reason = Some(Arc::clone(reason));
        }
    }

    pub(in crate::run) fn set_partial(&self, partial: Option<Arc<str>>) {
        self.usage.lock().partial = partial;
    }

    pub(in crate::run) fn reported(&self) -> ReportedUsage {
        self.usage.lock().clone()
    }
}
