//! The summary of a call, and the usage and stop reason that answers report about themselves.

use std::{fmt, sync::Arc, time::Duration};

use super::snapshot::millis;
use crate::{
    guarded::guarded,
    llm::dialect::Usage,
    lock::Lock,
    registry::Owner,
    run::{
        id::RunId,
        reason::TerminalReason,
        state::NodeState,
        tree::{End, Node, NodeKind},
    },
};

/// The summary of a call that has ended and has no work in flight. Serializes to JSON as it stands.
///
/// The layers pass the summary to [`RunLayer::on_end`](crate::RunLayer::on_end).
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct CallSummary {
    /// The id of the run that the call belongs to.
    pub run: RunId,
    /// The session of the run; `None` if the run has none.
    pub session: Option<Arc<str>>,
    /// The owner of the run; `None` if the run was never given to a registry.
    pub owner: Option<Owner>,
    /// The reason for which the call ended.
    pub reason: TerminalReason,
    /// The time from the call's opening to its end.
    #[serde(rename = "elapsed_ms", serialize_with = "millis")]
    pub elapsed: Duration,
    /// The number of the call's attempts by layers that retry or fall back, and by
    /// [`Run::attempt`](crate::Run::attempt); 0 without either. The number begins anew when a layer
    /// around them, such as a health gate, sends the request once more.
    pub attempts: u32,
    /// The name of the candidate that served the call, or of the last one that was tried. `None` if
    /// no layer chose one.
    pub candidate: Option<Arc<str>>,
    /// The tokens of all the call's attempts, as far as the upstream reported them.
    ///
    /// For a stream that was cut, the tokens are those that it had reported by then. An answer that
    /// is not a stream is read by a layer that may retry, which holds it whole, up to 256 KiB, and
    /// by the layers that count tokens against a cap; a compressed answer is never read. An answer
    /// with the mark [`NotCounted`](crate::run::NotCounted) is left out.
    pub usage: Option<Usage>,
    /// The reason for which the model stopped, in the upstream's own words.
    ///
    /// An answer that is not a stream is read for it only by a layer that may retry, as for its
    /// usage. `None` if no answer that was read states a reason.
    pub stop_reason: Option<Arc<str>>,
    /// The streamed text of the call's answer, if the answer was cut and the text is
    /// [kept](crate::RunLayer::keep_partial).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<Arc<str>>,
}

/// A hook of the program that receives the summary of a call once the call has ended and has no
/// work in flight.
#[derive(Clone)]
pub(crate) struct OnEnd(Arc<dyn Fn(&CallSummary) + Send + Sync>);

/// The hooks that are registered for the end of one call; `None` once a thread calls them.
#[derive(Debug)]
pub(crate) struct Hooks(Lock<Option<Vec<OnEnd>>>);

impl Default for Hooks {
    fn default() -> Self {
        Self(Lock::new(Some(Vec::new())))
    }
}

impl OnEnd {
    pub(crate) fn new(hook: impl Fn(&CallSummary) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }
}

impl Hooks {
    fn add(&self, hook: &OnEnd) {
        if let Some(hooks) = &mut *self.0.lock() {
            // A layer inside of one that retries sees the call more than once, and would register
            // again.
            if !hooks.iter().any(|known| Arc::ptr_eq(&known.0, &hook.0)) {
                hooks.push(hook.clone());
            }
        }
    }

    fn take(&self) -> Vec<OnEnd> {
        self.0.lock().take().unwrap_or_default()
    }
}

impl Node<NodeState> {
    /// Registers `hook` for the end of this node's call. The hook runs once per call.
    pub(crate) fn on_end(&self, hook: &OnEnd) {
        if let Some(call) = self.call_node().payload.call() {
            call.rare().hooks.add(hook);
        }
    }

    /// Records the usage of an ended answer on this node and its ancestors. The stop reason is
    /// recorded on the nodes up to the call.
    pub(crate) fn report(&self, usage: Option<Usage>, stop_reason: Option<&Arc<str>>) {
        if usage.is_none() && stop_reason.is_none() {
            return;
        }
        let mut stop_reason = stop_reason;
        for node in self.path() {
            node.payload.report(usage, stop_reason);
            if node.kind() != NodeKind::Attempt {
                // Above its call the answer is one of many, so its stop reason is not recorded
                // there.
                stop_reason = None;
            }
        }
    }

    /// The tokens that upstreams reported at or below this node so far.
    pub(in crate::run) fn usage(&self) -> Option<Usage> {
        self.payload.with_reported(|reported| reported.usage)
    }
}

impl CallSummary {
    /// Makes the summary of a call or run.
    pub(super) fn of(node: &Node<NodeState>, end: &End) -> Self {
        let reported = node.payload.reported();
        Self {
            run: node.run_id(),
            session: node.session(),
            owner: node.owner(),
            reason: end.reason.clone(),
            elapsed: end.at().saturating_sub(node.opened()),
            attempts: node.payload.attempt_count(),
            candidate: node.payload.last_target(),
            usage: reported.usage,
            stop_reason: reported.stop_reason,
            partial: reported.partial,
        }
    }

    /// Calls each of the hooks once with the summary of the node.
    pub(in crate::run) fn report(node: &Node<NodeState>, hooks: &Hooks) {
        let hooks = hooks.take();
        if hooks.is_empty() {
            return;
        }
        let Some(end) = node.nearest_end() else {
            return;
        };
        let summary = Self::of(node, end);
        for hook in hooks {
            if guarded(|| (hook.0)(&summary)).is_none() {
                guarded(|| {
                    tracing::error!(target: "tower_agent", run = %summary.run, "on_end panicked");
                });
            }
        }
    }
}

impl fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnEnd(..)")
    }
}

/// The values that a node's answers have reported so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedUsage {
    /// The sum of the tokens of all answers at or below the node; `None` if none were reported.
    pub(in crate::run) usage: Option<Usage>,
    /// The last stop reason that an answer reported, in the upstream's words.
    pub(in crate::run) stop_reason: Option<Arc<str>>,
    /// The text of the node's last answer, if it was cut and the run keeps texts.
    pub(in crate::run) partial: Option<Arc<str>>,
}

/// A mark in an answer's extensions: the usage of the answer is not counted.
///
/// The mark is for an answer that a layer of the program makes, for example from a cache: the
/// tokens of that answer were paid for before. Neither [`Run::usage`](crate::Run::usage) nor
/// [`CallSummary::usage`](crate::run::CallSummary::usage) then includes these tokens, wherever the
/// layer stands.
///
/// Without this mark, the usage of an answer that a layer of the program makes is counted: the
/// outer layers cannot tell such an answer from one of the inner service.
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
    fn report(&self, usage: Option<Usage>, stop_reason: Option<&Arc<str>>) {
        self.with_reported(|reported| {
            if let Some(more) = usage {
                reported.usage.get_or_insert_default().add(more);
            }
            if let Some(reason) = stop_reason {
                reported.stop_reason = Some(Arc::clone(reason));
            }
        });
    }

    pub(in crate::run) fn set_partial(&self, partial: Option<Arc<str>>) {
        self.with_reported(|reported| reported.partial = partial);
    }

    pub(in crate::run) fn reported(&self) -> ReportedUsage {
        self.with_reported(|reported| reported.clone())
    }
}
