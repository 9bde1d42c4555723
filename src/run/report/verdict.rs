//! The verdict of a checker, and the answer of a person, on a run that looks stuck.

/// The verdict of a [`Watchdog`](crate::Watchdog)'s checker on a run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    /// The state of the run, in the checker's judgment.
    pub status: Status,
    /// The reason of the judgment, in words for people.
    #[serde(default)]
    pub reason: String,
}

/// The state of a run's work according to a checker: at work, stuck, looping or unknown.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The run is slow, and works.
    Working,
    /// The run waits for an event that does not come.
    Stuck,
    /// The run repeats itself.
    Looping,
    /// The state of the run is unknown, for example because the checker failed or took too long.
    Unknown,
}

/// The answer of a person to the question whether a run shall go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The run shall go on.
    Continue,
    /// The run shall stop.
    Stop,
}

impl Verdict {
    /// Makes a verdict of this status, with a reason for people.
    #[must_use]
    pub fn new(status: Status, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
        }
    }

    /// Whether the verdict confirms that the run makes no progress.
    pub(crate) const fn confirms(&self) -> bool {
        matches!(self.status, Status::Stuck | Status::Looping)
    }
}

impl Status {
    /// The name of the status in messages about the run.
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
