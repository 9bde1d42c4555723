//! The steps of a run, and the signs of progress that reset a step window.

use std::{fmt, sync::Arc};

/// A step that a run has done or is doing: a kind and a description.
///
/// As JSON, a step is an object with `kind` and `description`.
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
    /// Work is not completed if an attempt or a call failed or was cut, or a tool was stopped.
    StateChange,
    /// An answer brought more content. The crate uses this kind only in
    /// [`RunProgress::last_change`](crate::run::RunProgress).
    ContentDelta,
}

/// The events that reset a step window. Each variant includes the ones above it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResetOn {
    /// The window resets when a call, attempt or tool below the node completes or fails.
    ///
    /// The window also resets when the program records a step or a state change.
    Step,
    /// The window also resets at a semantic delta of a stream.
    ///
    /// A semantic delta carries part of the model's output. In an answer that is not an event
    /// stream, every byte resets the window.
    #[default]
    Content,
    /// The window also resets at any byte, and at a heartbeat of the program.
    ///
    /// The bytes of pings and comments count.
    AnyByte,
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
