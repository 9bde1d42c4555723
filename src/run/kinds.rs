//! Kinds of nodes, scopes, limits of a request, and the step that a run is at.

use std::{borrow::Cow, fmt, time::Duration};

/// What a node of the run tree stands for.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// An agent's run, or a sub-agent's.
    Run,
    /// One model call as its caller sees it, with all its attempts.
    Call,
    /// One try of a call.
    Attempt,
    /// One tool execution.
    Tool,
}

impl NodeKind {
    /// The name in logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Call => "call",
            Self::Attempt => "attempt",
            Self::Tool => "tool",
        }
    }
}

/// Which node a layer acts on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The node that the layer finds in the request.
    #[default]
    Found,
    /// The nearest node of kind [`NodeKind::Run`] at or above it.
    Run,
}

/// What resets a step window. Each also counts as those after it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResetOn {
    /// A call answered, a tool finished, a state changed.
    Step,
    /// A semantic delta of a stream; every byte of an answer that is not an
    /// event stream.
    #[default]
    Content,
    /// Any byte, pings and comments included.
    AnyByte,
}

/// The program's own limits for one request, as a request extension: each
/// that is set replaces what the layers were built with.
///
/// A zero counts as not set. Values that come over the wire never end up here.
///
/// ```
/// use std::time::Duration;
/// use tower_agent::Limits;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Limits {
///     ceiling: Some(Duration::from_secs(3600)),
///     ..Limits::default()
/// });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The window of a [`StepTimeoutLayer`](crate::StepTimeoutLayer).
    pub step: Option<Duration>,
    /// Its window until the first content.
    pub first: Option<Duration>,
    /// The limit of a [`HardCeilingLayer`](crate::HardCeilingLayer).
    pub ceiling: Option<Duration>,
    /// Its total, [`HardCeilingLayer::timeout`](crate::HardCeilingLayer::timeout).
    pub timeout: Option<Duration>,
}

impl Limits {
    /// With `other` where these say nothing.
    pub(crate) fn or(self, other: Self) -> Self {
        let set = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
        Self {
            step: set(self.step).or(other.step),
            // A window of the request's own is its first one too.
            first: set(self.first).or(set(self.step).or(other.first)),
            ceiling: set(self.ceiling).or(other.ceiling),
            timeout: set(self.timeout).or(other.timeout),
        }
    }
}

/// What a run did last, or is doing: a kind, and a word about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    kind: StepKind,
    detail: Option<Cow<'static, str>>,
}

/// The kind of a [`Step`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// A model call is under way.
    LlmCall,
    /// A model answered.
    LlmResponse,
    /// A tool is running.
    ToolExecution,
    /// A tool finished.
    ToolComplete,
    /// The program said that something changed.
    StateChange,
    /// A model's answer goes on: of [`RunProgress::last_change`](crate::run::RunProgress) alone.
    ContentDelta,
}

impl Step {
    /// A step of this kind with nothing more to say.
    #[must_use]
    pub const fn new(kind: StepKind) -> Self {
        Self { kind, detail: None }
    }

    /// Adds a word: the stop reason, the model or the tool's name.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub(in crate::run) const fn has_detail(&self) -> bool {
        self.detail.is_some()
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> StepKind {
        self.kind
    }
}

impl StepKind {
    /// The name in messages and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LlmCall => "llm_call",
            Self::LlmResponse => "llm_response",
            Self::ToolExecution => "tool_execution",
            Self::ToolComplete => "tool_complete",
            Self::StateChange => "state_change",
            Self::ContentDelta => "content_delta",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.as_str())?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl serde::Serialize for Step {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
