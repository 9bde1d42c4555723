//! The reasons why no further attempt of a call follows a failed one.

/// The reason why no further attempt of a call follows a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The failure allows no further attempt by this layer, for example by its class.
    Class,
    /// The call is marked as one with effects that must not happen twice: see
    /// [`SideEffects`](super::SideEffects).
    SideEffects,
    /// Too many attempts of the run in a row were silent.
    Idle,
    /// The upstream asked for too long a wait. The wait exceeds the budget's longest; or, while
    /// another candidate can serve, the base of the waits.
    RetryAfter,
    /// Too little time is left for the wait and an attempt.
    TimeLeft,
    /// No attempt, or no suitable candidate, is left.
    Spent,
    /// All suitable candidates are in a cooldown.
    Cooldown,
    /// The program's hook refused.
    Hook,
    /// The shared budget of the candidate is used up.
    Bucket,
    /// The same error occurred too often in the run.
    Key,
    /// The run made too many errors.
    Run,
}

impl Denial {
    /// The denial as one word, for logs and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Class => "class",
            Self::SideEffects => "side_effects",
            Self::Idle => "idle",
            Self::RetryAfter => "retry_after",
            Self::TimeLeft => "time_left",
            Self::Spent => "spent",
            Self::Cooldown => "cooldown",
            Self::Hook => "hook",
            Self::Bucket => "bucket",
            Self::Key => "per_error_key",
            Self::Run => "per_run",
        }
    }

    /// The budget that refused another attempt; `None` if no budget did. For a layer that `moves`
    /// to other candidates, [`Spent`](Self::Spent) is no budget: no suitable candidate is left.
    #[cfg(feature = "metrics")]
    pub(crate) const fn budget(self, moves: bool) -> Option<&'static str> {
        match self {
            Self::Spent if moves => None,
            Self::Spent | Self::Bucket | Self::Key | Self::Run => Some(self.as_str()),
            _ => None,
        }
    }
}
