//! What others make of a run that looks stuck.

/// What a checker says about a run: see the [`watchdog`](crate::watchdog).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    /// How it is with the run.
    pub status: Status,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

/// How it is with a run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is slow, and works.
    Working,
    /// It waits for what does not come.
    Stuck,
    /// It goes round in circles.
    Looping,
    /// Nobody knows: the checker failed, or took too long.
    Unknown,
}

/// What a person says when asked whether a run shall go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It shall.
    Continue,
    /// It shall not.
    Stop,
}

impl Verdict {
    /// Of this status, for this reason.
    #[must_use]
    pub fn new(status: Status, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
        }
    }

    /// Whether it confirms that the run gets nowhere.
    pub(crate) const fn confirms(&self) -> bool {
        matches!(self.status, Status::Stuck | Status::Looping)
    }
}

impl Status {
    /// The name in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Stuck => "stuck",
            Self::Looping => "looping",
            Self::Unknown => "unknown",
        }
    }
}
