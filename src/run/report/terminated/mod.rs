//! The error of a cut node, with a message for people and an exit status.

mod exit;
mod message;

use std::{error::Error, fmt, sync::Arc, time::Duration};

use self::message::Span;
use crate::{
    error::chain,
    run::{
        handle::Run,
        id::RunId,
        kinds::{NodeKind, Step},
        reason::TerminalReason,
        state::NodeState,
        tree::{LimitKind, Node},
    },
};

/// The error of all work that was cut because a node of a run ended.
///
/// Every layer returns the error unchanged, so the caller sees the first one. A layer of the
/// program may have wrapped the error: [`TerminalReason::find`] walks the chain.
#[non_exhaustive]
#[derive(Clone)]
pub struct Terminated {
    /// The reason of the node's end.
    pub reason: TerminalReason,
    /// The id of the run, also if an attempt or tool below the run was cut.
    pub run: RunId,
    /// The kind of the node that was ended: run, call, attempt or tool.
    pub kind: NodeKind,
    /// How long the node that was ended had lasted.
    pub elapsed: Duration,
    /// The length of the limit that ended the node; `None` if no time did.
    pub limit: Option<Duration>,
    /// The last step of the run; `None` if no step was reported.
    pub last_step: Option<Step>,
    /// The reasons that came after the end of that node, oldest first.
    pub also: Vec<TerminalReason>,
    pub(in crate::run) tree: u64,
    pub(in crate::run) origin: u64,
    pub(in crate::run) measure: LimitKind,
    /// The action for which the run was ended, in words that follow "it".
    pub(in crate::run) cause: Option<Arc<str>>,
    pub(in crate::run) source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Terminated {
    /// The message about this end, for people.
    ///
    /// The message names the limit, the time the node ran, its last step, and what to try next.
    ///
    /// ```
    /// use tower_agent::{Run, Step, StepKind, TerminalReason};
    ///
    /// let run = Run::open();
    /// run.step(Step::new(StepKind::ToolExecution).detail("search"));
    /// run.end(TerminalReason::TurnCap);
    ///
    /// let message = run.terminated().unwrap().message();
    /// assert!(message.contains("its limit of turns (turn_cap_reached)"));
    /// assert!(message.contains("Last step: tool_execution (search)"));
    /// ```
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = message::write(&mut text, self);
        text
    }

    /// The cap on turns that ended the run; `None` if another cause ended it.
    #[must_use]
    pub const fn at_turn(&self) -> Option<u32> {
        match self.measure {
            LimitKind::Turns(turns) => Some(turns),
            _ => None,
        }
    }

    /// The first [`Terminated`] in the chain of `error`, `error` itself included.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        // A boxed error is an error type of its own, and hides the type inside.
        chain(error).find_map(|error| {
            let boxed = || error.downcast_ref::<Box<Self>>().map(|boxed| &**boxed);
            let shared = || error.downcast_ref::<Arc<Self>>().map(|shared| &**shared);
            error.downcast_ref().or_else(boxed).or_else(shared)
        })
    }

    /// Stores, as the source of this error, the error that the layer received after the end.
    #[must_use]
    pub(crate) fn because(mut self, source: crate::error::BoxError) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl Terminated {
    pub(in crate::run) fn of(node: &Node<NodeState>) -> Self {
        let end = node.nearest_end();
        let origin = end.map_or_else(|| node.number(), |end| end.origin);
        let mut path = std::iter::once(node).chain(node.ancestors());
        let ended = path.find(|node| node.number() == origin);
        Self {
            reason: end.map_or_else(|| unended(node), |end| end.reason.clone()),
            run: node.run_id(),
            kind: end.map_or_else(|| node.kind(), |end| end.kind),
            elapsed: end.map_or(Duration::ZERO, |end| end.lasted),
            limit: end.and_then(|end| end.limit),
            last_step: node.run_state().step(),
            also: ended.unwrap_or(node).also(),
            tree: node.payload.tree,
            origin,
            measure: match end {
                Some(end) => end.measure,
                None => node
                    .closing_for()
                    .map_or(LimitKind::Set, |limit| limit.measure),
            },
            cause: end.and_then(|end| cause(node, &end.reason)),
            source: None,
        }
    }

    /// Whether this error is the end of `run`. False for the end of a node below `run`, and for one
    /// of another tree.
    pub(crate) fn is_end_of(&self, run: &Run) -> bool {
        let node = run.node();
        self.tree == node.payload.tree
            && node
                .nearest_end()
                .is_some_and(|end| end.origin == self.origin)
    }

    /// Whether this error comes from a node in the tree of `run`.
    pub(crate) fn is_kin_of(&self, run: &Run) -> bool {
        self.tree == run.node().payload.tree
    }
}

/// The description of the actions for which the run was ended; `None` if it ended otherwise.
fn cause(node: &Node<NodeState>, reason: &TerminalReason) -> Option<Arc<str>> {
    if *reason != TerminalReason::LoopDetected {
        return None;
    }
    node.run_state().features_if_any()?.actions.cause()
}

/// The reason for which a node that has not ended refuses work.
fn unended(node: &Node<NodeState>) -> TerminalReason {
    // A closing node refuses with the reason that it will end with.
    let closing = node.closing().cloned();
    closing.unwrap_or(TerminalReason::Aborted)
}

impl TerminalReason {
    /// The reason of the first [`Terminated`] in the chain of `error`.
    ///
    /// ```
    /// use tower_agent::{Run, TerminalReason};
    ///
    /// let run = Run::open();
    /// run.end(TerminalReason::Aborted);
    /// let wrapped = std::io::Error::other(run.terminated().unwrap());
    ///
    /// assert_eq!(TerminalReason::find(&wrapped), Some(&TerminalReason::Aborted));
    /// ```
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        Terminated::find(error).map(|terminated| &terminated.reason)
    }
}

impl fmt::Display for Terminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "run {} ended with {} after {}",
            self.run,
            self.reason,
            Span(self.elapsed)
        )?;
        match self.limit {
            Some(limit) => write!(f, ", its limit being {}", Span(limit)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Terminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminated")
            .field("reason", &self.reason)
            .field("run", &self.run)
            .field("kind", &self.kind)
            .field("elapsed", &self.elapsed)
            .field("limit", &self.limit)
            .field("last_step", &self.last_step)
            .field("also", &self.also)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Error for Terminated {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|error| error as _)
    }
}
