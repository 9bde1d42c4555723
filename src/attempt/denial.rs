//! The reasons why no further attempt of a call follows a failed one.

/// The reason why no further attempt of a call follows a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The failure allows no further attempt by this layer, for example by its class.
    Class,
    /// The attempt was silent, and its answer would not have been a stream: the upstream may be at
    /// work, so the same candidate is not asked again.
    UnarySilence,
    /// The candidate was silent again after its one repeat.
    RepeatedSilence,
    /// The failure came after the commit: a part of the answer was delivered.
    Committed,
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
    /// The attempts that the budget allows at the candidate are used up.
    Spent,
    /// No suitable candidate is left.
    NoCandidate,
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
    /// The denial as one word, for events, logs and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Class => "class",
            Self::UnarySilence => "unary_silence",
            Self::RepeatedSilence => "repeated_silence",
            Self::Committed => "committed",
            Self::SideEffects => "side_effects",
            Self::Idle => "idle",
            Self::RetryAfter => "retry_after",
            Self::TimeLeft => "time_left",
            Self::Spent => "spent",
            Self::NoCandidate => "no_candidate",
            Self::Cooldown => "cooldown",
            Self::Hook => "hook",
            Self::Bucket => "bucket",
            Self::Key => "per_error_key",
            Self::Run => "per_run",
        }
    }

    /// The denial as a clause of a message for people.
    ///
    /// Callers read it, so it names neither candidates nor settings.
    pub(super) const fn clause(self) -> &'static str {
        match self {
            Self::Class => "its failure allows none",
            Self::UnarySilence => "a silent answer that does not stream is not asked for again",
            Self::RepeatedSilence => "a silent model is asked again once only",
            Self::Committed => "a part of the answer was delivered",
            Self::SideEffects => "the request has effects that must not happen twice",
            Self::Idle => "too many attempts in a row were silent",
            Self::RetryAfter => "the upstream asked for too long a wait",
            Self::TimeLeft => "too little time was left",
            Self::Spent => "its attempts were used up",
            Self::NoCandidate => "no other model was left",
            Self::Cooldown => "every other model rests after failures",
            Self::Hook => "the program refused one",
            Self::Bucket => "the shared budget of repeats was used up",
            Self::Key => "the error came too often in the run",
            Self::Run => "the run made too many errors",
        }
    }

    /// The budget that refused another attempt; `None` if no budget did.
    #[cfg(feature = "metrics")]
    pub(crate) const fn budget(self) -> Option<&'static str> {
        match self {
            Self::Spent | Self::Bucket | Self::Key | Self::Run => Some(self.as_str()),
            _ => None,
        }
    }
}
