//! The kinds of nodes of a run's tree.

/// The kind of a node of the run tree.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// An agent's run, or a sub-agent's.
    Run,
    /// One model call as its caller sees it, with all its attempts.
    Call,
    /// One try of a model call.
    Attempt,
    /// One tool execution.
    Tool,
}

impl NodeKind {
    /// The name of this kind of node in logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Call => "call",
            Self::Attempt => "attempt",
            Self::Tool => "tool",
        }
    }
}
