use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::snapshot::millis;
use crate::{
    llm::dialect::Usage,
    run::{
        handle::Run,
        id::RunId,
        reason::TerminalReason,
        state::{Identity, NodeState},
        tree::Node,
    },
};

/// What a call came to, once nothing of it is left: what
/// [`RunLayer::on_end`](crate::RunLayer::on_end) is told. Serialises to JSON as
/// it stands.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct CallSummary {
    /// The run that the call belongs to.
    pub run: RunId,
    /// Its session.
    pub session: Option<Arc<str>>,
    /// Why the call ended.
    pub reason: TerminalReason,
    /// From the call's opening to its end.
    #[serde(rename = "elapsed_ms", serialize_with = "millis")]
    pub elapsed: Duration,
    /// How many tries were started by the layers that may repeat a call or
    /// move it; 0 if there is no such layer.
    pub attempts: u32,
    /// The candidate that served the call, or that was asked last; `None` if
    /// no layer chose one.
    pub candidate: Option<Arc<str>>,
    /// The tokens of all its attempts, as far as the upstream said; of a stream
    /// that was cut, those it had reported by then. Of an answer that is no stream
    /// they are read where a layer that may try again holds it whole, up to
    /// 256 KiB; of a compressed one never. An answer that no attempt made may be
    /// [not counted](crate::run::NotCounted).
    pub usage: Option<Usage>,
    /// Why the model stopped, as the upstream put it.
    pub stop_reason: Option<Arc<str>>,
    /// The text that was streamed of an answer which did not come to its end, if
    /// it is [kept](crate::RunLayer::keep_partial).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<Arc<str>>,
}

type SummaryHook = dyn Fn(&CallSummary) + Send + Sync;

/// What the program wants to be told when a call is over.
#[derive(Clone)]
pub(crate) struct OnEnd(Arc<SummaryHook>);

/// Who is told of one call.
#[derive(Debug, Default)]
pub(crate) struct Hooks(Mutex<SummaryHooks>);

#[derive(Debug)]
enum SummaryHooks {
    NotYet(Vec<OnEnd>),
    Done,
}

impl Default for SummaryHooks {
    fn default() -> Self {
        Self::NotYet(Vec::new())
    }
}

impl OnEnd {
    pub(crate) fn new(hook: impl Fn(&CallSummary) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }
}

impl Hooks {
    fn add(&self, hook: &OnEnd) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let SummaryHooks::NotYet(hooks) = &mut *told {
            // A layer below one that tries again sees the call more than once.
            if !hooks.iter().any(|known| Arc::ptr_eq(&known.0, &hook.0)) {
                hooks.push(hook.clone());
            }
        }
    }

    fn take(&self) -> Vec<OnEnd> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *told, SummaryHooks::Done) {
            SummaryHooks::NotYet(hooks) => hooks,
            SummaryHooks::Done => Vec::new(),
        }
    }
}

impl Run {
    /// Has `hook` told when the call that this node belongs to is over; not
    /// again if it was told already.
    pub(crate) fn on_end(&self, hook: &OnEnd) {
        self.call_info().hooks().add(hook);
    }
}

impl CallSummary {
    fn of(node: &Node<NodeState>) -> Option<Self> {
        let end = node.nearest_end()?;
        let identity = node.nearest_run().payload.identity();
        let told = node.payload.told();
        Some(Self {
            run: node.run_id(),
            session: identity.and_then(|known: &Identity| known.session.clone()),
            reason: end.reason.clone(),
            elapsed: end.at.saturating_sub(node.opened()),
            attempts: node.payload.tried(),
            candidate: node.payload.last_asked(),
            usage: told.usage,
            stop_reason: told.stop_reason,
            partial: told.partial,
        })
    }

    /// Tells everybody who wants to know, each once.
    pub(in crate::run) fn report(node: &Node<NodeState>, hooks: &Hooks) {
        let hooks = hooks.take();
        if hooks.is_empty() {
            return;
        }
        let Some(summary) = Self::of(node) else {
            return;
        };
        for hook in hooks {
            // It runs where bodies are dropped: a panic there would take down
            // what has nothing to do with it.
            if catch_unwind(AssertUnwindSafe(|| (hook.0)(&summary))).is_err() {
                tracing::error!(target: "tower_agent", run = %summary.run, "on_end panicked");
            }
        }
    }
}

impl fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnEnd(..)")
    }
}
