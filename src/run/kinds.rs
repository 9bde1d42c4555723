//! Kinds of nodes, scopes, limits and their sources, and the steps of a run.

use std::{fmt, sync::Arc, time::Duration};

use http::Extensions;

use super::reason::TerminalReason;

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

/// The node that a layer acts on: the node in the request, or its run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The layer acts on the node that it finds in the request.
    #[default]
    Found,
    /// The layer acts on the nearest node of kind [`NodeKind::Run`], at or above the found one.
    Run,
}

/// The events that reset a step window. Each variant includes the ones above it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResetOn {
    /// The window resets when a call, attempt or tool below the node ends.
    ///
    /// The window also resets when the program records a step or a state change.
    Step,
    /// The window also resets at a semantic delta of a stream.
    ///
    /// Such a delta carries part of the model's output. In an answer that is no event stream, every
    /// byte resets the window.
    #[default]
    Content,
    /// The window also resets at any byte, and at a heartbeat of the program.
    ///
    /// The bytes of pings and comments count.
    AnyByte,
}

/// The program's own limits for one request, as a request extension.
///
/// Each limit that is set here replaces the layers' own; zero switches the limit off for this
/// request. A layer without any limit ignores the extension. Values from the wire never become such
/// limits.
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
    /// The window of silence, in place of that of a [`StepTimeoutLayer`](crate::StepTimeoutLayer).
    /// Unless `first` is set too, this window holds before the first content as well.
    pub step: Option<Duration>,
    /// The window of silence until the first content, in place of that of a
    /// [`StepTimeoutLayer`](crate::StepTimeoutLayer). Without `step`, this limit changes nothing in
    /// a layer for [local](crate::StepTimeoutLayer::local) models.
    pub first: Option<Duration>,
    /// The window of a tool at or below the request's node, in place of that of
    /// [`Run::tool_window`](crate::Run::tool_window). A
    /// [`StepTimeoutLayer`](crate::StepTimeoutLayer) applies this limit.
    pub tool: Option<Duration>,
    /// The absolute limit, in place of that of a [`HardCeilingLayer`](crate::HardCeilingLayer).
    pub ceiling: Option<Duration>,
    /// The limit on the total time, in place of that of
    /// [`HardCeilingLayer::timeout`](crate::HardCeilingLayer::timeout).
    pub timeout: Option<Duration>,
}

impl Limits {
    /// The limits in the extensions of a request that carries a run.
    ///
    /// A single extension is that run, so then the map is not searched.
    #[inline]
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        (extensions.len() > 1).then(|| extensions.get()).flatten()
    }

    /// Takes the limits that are not set here from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            step: self.step.or(other.step),
            // A `step` that is set here holds before the first content too, in place of the `first`
            // of `other`.
            first: self.first.or(self.step).or(other.first),
            tool: self.tool.or(other.tool),
            ceiling: self.ceiling.or(other.ceiling),
            timeout: self.timeout.or(other.timeout),
        }
    }
}

/// A step that a run has done or is doing: a kind and a description.
///
/// As JSON, a step is an object with both.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Step {
    kind: StepKind,
    #[serde(rename = "description")]
    detail: Option<Arc<str>>,
}

/// The kind of a [`Step`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A model call is in progress.
    LlmCall,
    /// A model call was answered.
    LlmResponse,
    /// A tool is running.
    ToolExecution,
    /// A tool finished.
    ToolComplete,
    /// The program recorded a change of state, or work was not completed.
    ///
    /// Such work is an attempt or a call that failed or was cut, or a tool that was stopped.
    StateChange,
    /// An answer brought more content. This kind occurs only in
    /// [`RunProgress::last_change`](crate::run::RunProgress).
    ContentDelta,
}

impl Step {
    /// Makes a step of this kind without detail.
    #[must_use]
    pub const fn new(kind: StepKind) -> Self {
        Self { kind, detail: None }
    }

    /// Sets the [description](Self::description) of the step.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Arc<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Moves the detail of `last` to this step, if this step completes `last` without a detail.
    pub(in crate::run) fn complete(&mut self, last: &mut Self) {
        if self.detail.is_none() && self.kind.completes(last.kind) {
            self.detail = last.detail.take();
        }
    }

    /// The kind of the step.
    #[must_use]
    pub const fn kind(&self) -> StepKind {
        self.kind
    }

    /// The description of the step; `None` if it has none.
    ///
    /// The description is the name of a tool or of a call's candidate, the stop reason of an
    /// answer, the words of the program, or the crate's words for a child that did not complete.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.detail.as_deref()
    }
}

impl StepKind {
    /// The name of this kind of step in messages and logs.
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

impl StepKind {
    /// Whether a step of this kind ends the work that a step of kind `before` began.
    const fn completes(self, before: Self) -> bool {
        matches!(
            (before, self),
            (Self::LlmCall, Self::LlmResponse) | (Self::ToolExecution, Self::ToolComplete)
        )
    }
}

/// A limit that has passed: its kind, and its length if it is a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitHit {
    /// The length of the limit; `None` if the limit is not a time.
    pub(crate) limit: Option<Duration>,
    pub(crate) measure: LimitKind,
}

impl LimitHit {
    /// The reason of an end by this cap of an owner.
    pub(crate) const fn owner_reason(self) -> TerminalReason {
        match self.measure {
            LimitKind::Tokens(_) => TerminalReason::TokenCap,
            _ => TerminalReason::TurnCap,
        }
    }
}

/// The source and the kind of a limit, for the message to people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// The limit is one that the program set, or an attempt's share of the remaining time. An end
    /// without a limit has this value too.
    #[default]
    Set,
    /// The limit is a time that the caller announced for its whole answer, or until the head.
    Announced,
    /// The limit is the silence after which the caller gives up.
    Unheard,
    /// The limit is the time without a byte or heartbeat, on a stream with heartbeats.
    Lifeless,
    /// The limit is this many turns of the run.
    Turns(u32),
    /// The limit is the silence during which the upstream failed its health probes.
    Unhealthy,
    /// The limit is this many open runs of the run's owner.
    OpenRuns(u32),
    /// The limit is this many turns of the run's owner in an hour.
    TurnsPerHour(u32),
    /// The limit is a cap on tokens or cost: the run's, or its owner's in an hour.
    Tokens(TokenLimit),
}

/// A cap on tokens or cost that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenLimit {
    /// The number of tokens or the cost, as the bytes of an `f64`. Bytes need no alignment, which
    /// keeps each node smaller, as a node has room for a limit.
    cap: [u8; 8],
    of: TokenMeasure,
    /// Whether some of the tokens are an estimate.
    pub(crate) estimated: bool,
    /// Whether the cap is that of the run's owner in an hour.
    pub(crate) of_owner: bool,
}

/// The unit of a cap on tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum TokenMeasure {
    Output,
    Total,
    Cost,
}

/// Writes the cap as a message names it after the word "its": "500 output tokens".
impl fmt::Display for TokenLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            TokenMeasure::Output => write!(f, "{} output tokens", self.cap()),
            TokenMeasure::Total => write!(f, "{} tokens", self.cap()),
            TokenMeasure::Cost => write!(f, "cost of {}", self.cap()),
        }?;
        f.write_str(if self.estimated { ", estimated" } else { "" })
    }
}

impl TokenLimit {
    /// Makes the limit on a run; `estimated` if some of the tokens are an estimate.
    pub(in crate::run) const fn new(cap: f64, of: TokenMeasure, estimated: bool) -> Self {
        Self {
            cap: cap.to_le_bytes(),
            of,
            estimated,
            of_owner: false,
        }
    }

    const fn cap(self) -> f64 {
        f64::from_le_bytes(self.cap)
    }

    /// Marks the limit as an hourly cap of the run's owner.
    pub(crate) const fn per_hour(mut self) -> Self {
        self.of_owner = true;
        self
    }

    /// The name of the owner's cap, and its number of tokens or its cost.
    pub(crate) fn named(self) -> (&'static str, f64) {
        let name = match self.of {
            TokenMeasure::Output => "output_tokens_per_hour",
            TokenMeasure::Total => "total_tokens_per_hour",
            TokenMeasure::Cost => "cost_per_hour",
        };
        (name, self.cap())
    }
}
