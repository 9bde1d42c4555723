use super::class::FailureClass;

/// Whether the same candidate is worth another try.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetrySame {
    /// It would fail the same way again.
    No,
    /// One more, whatever the budget would allow.
    Once,
    /// Yes, after the delay that it asked for.
    Yes,
    /// Yes, but after a longer wait, and of one that is overloaded only where
    /// there is no other candidate.
    Slowly,
}

/// Which other candidate is worth a try.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TryOther {
    /// None.
    No,
    /// Any.
    Yes,
    /// One that is reached with another credential.
    Credential,
    /// One of another provider.
    Provider,
    /// One with a larger context window.
    LargerWindow,
    /// Any, if the program allows it for requests that are themselves at fault.
    IfAllowed,
}

/// How long a candidate is left alone after the failure.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cooldown {
    /// Not at all: the failure says nothing about the next request.
    No,
    /// For seconds to minutes.
    Short,
    /// For ten minutes at first, up to a day: a person has to mend it.
    Long,
    /// For hours, up to a day: until the quota is filled up.
    Quota,
}

impl FailureClass {
    /// Whether the same candidate is worth another try.
    ///
    /// An upstream's `x-should-retry` may forbid it:
    /// [`Failure::is_worth_repeating`](crate::llm::failure::Failure::is_worth_repeating).
    #[must_use]
    pub const fn same(self) -> RetrySame {
        match self {
            Self::Silence => RetrySame::Once,
            Self::Overloaded | Self::NotReady => RetrySame::Slowly,
            Self::Transport
            | Self::RequestTimeout
            | Self::Conflict
            | Self::RateLimit
            | Self::Server
            | Self::ModelFault => RetrySame::Yes,
            Self::Deadline
            | Self::Certificate
            | Self::Redirect
            | Self::RequestLimit
            | Self::Quota
            | Self::Auth
            | Self::ModelGone
            | Self::Region
            | Self::ContextOverflow
            | Self::TooLarge
            | Self::ContentFilter
            | Self::Caller => RetrySame::No,
        }
    }

    /// Which other candidate is worth a try, as long as nothing was committed.
    #[must_use]
    pub const fn other(self) -> TryOther {
        match self {
            Self::Conflict => TryOther::No,
            Self::Silence
            | Self::Deadline
            | Self::Transport
            | Self::Certificate
            | Self::Redirect
            | Self::RequestTimeout
            | Self::RateLimit
            | Self::RequestLimit
            | Self::Overloaded
            | Self::NotReady
            | Self::Server
            | Self::ModelFault
            | Self::ModelGone => TryOther::Yes,
            Self::Quota | Self::Auth => TryOther::Credential,
            Self::Region => TryOther::Provider,
            Self::ContextOverflow => TryOther::LargerWindow,
            Self::TooLarge | Self::ContentFilter | Self::Caller => TryOther::IfAllowed,
        }
    }

    /// How long the candidate is left alone.
    #[must_use]
    pub const fn cool(self) -> Cooldown {
        match self {
            Self::Silence
            | Self::Transport
            | Self::RateLimit
            | Self::Overloaded
            | Self::NotReady
            | Self::Server => Cooldown::Short,
            Self::Certificate | Self::Redirect | Self::Auth | Self::ModelGone | Self::Region => {
                Cooldown::Long
            }
            Self::Quota => Cooldown::Quota,
            Self::Deadline
            | Self::RequestTimeout
            | Self::Conflict
            | Self::RequestLimit
            | Self::ModelFault
            | Self::ContextOverflow
            | Self::TooLarge
            | Self::ContentFilter
            | Self::Caller => Cooldown::No,
        }
    }
}
