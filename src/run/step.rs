use std::{borrow::Cow, fmt};

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
