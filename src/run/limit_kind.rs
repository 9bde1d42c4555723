//! The limit that was exceeded: its source, its kind and its size.

use std::{fmt, time::Duration};

use super::reason::TerminalReason;

/// A limit that was exceeded: its kind, and its length if it is a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitHit {
    /// The length of the limit; `None` if the limit is not a time.
    pub(crate) limit: Option<Duration>,
    pub(crate) kind: LimitKind,
}

impl LimitHit {
    /// The time from the node's opening to its absolute deadline; `None` if the limit is no such
    /// deadline. For an end as `StepTimeout` the time is a window of silence instead.
    pub(crate) fn absolute(self) -> Option<Duration> {
        let is_absolute = matches!(self.kind, LimitKind::Set | LimitKind::Announced);
        self.limit.filter(|_| is_absolute)
    }

    /// The reason of an end by this cap of an owner.
    pub(crate) const fn owner_reason(self) -> TerminalReason {
        match self.kind {
            LimitKind::Tokens(_) => TerminalReason::TokenCap,
            _ => TerminalReason::TurnCap,
        }
    }
}

/// The source and the kind of a limit, for the message to people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// One that the program set, or an attempt's share of the remaining time. An end
    /// without a limit has this value too.
    #[default]
    Set,
    /// A time that the caller announced for its whole answer, or until the head.
    Announced,
    /// The silence after which the caller gives up.
    Unheard,
    /// The time without a byte or heartbeat. Only a stream with heartbeats has it.
    Lifeless,
    /// The time over which a stream was slower than this.
    Slow(TokenRate),
    /// This many turns of the run.
    Turns(u32),
    /// The silence during which the upstream failed its health probes.
    Unhealthy,
    /// This many open runs of the run's owner.
    OpenRuns(u32),
    /// This many turns of the run's owner in this window.
    OwnerTurns(u32, CapWindow),
    /// A cap on tokens or cost: the run's, or its owner's in a window.
    Tokens(TokenLimit),
}

/// A number of tokens a second, as the bits of an `f32`, which compare as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRate(u32);

impl TokenRate {
    pub(crate) const fn new(tokens_per_second: f64) -> Self {
        Self((tokens_per_second as f32).to_bits())
    }

    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn per_second(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// A window of time in which an owner's cap counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapWindow {
    Hour,
    Day,
    Week,
    Month,
}

impl CapWindow {
    /// The name of the cap on turns in this window.
    pub(crate) const fn turns(self) -> &'static str {
        match self {
            Self::Hour => "turns_per_hour",
            Self::Day => "turns_per_day",
            Self::Week => "turns_per_week",
            Self::Month => "turns_per_month",
        }
    }

    /// The window as a message names it after the number of turns: "within an hour".
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Hour => "within an hour",
            Self::Day => "this day",
            Self::Week => "this week",
            Self::Month => "this month",
        }
    }

    /// What a message advises once the window is used up.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Self::Hour => "Wait before the next",
            Self::Day => "Wait for the next day",
            Self::Week => "Wait for the next week",
            Self::Month => "Wait for the next month",
        }
    }
}

/// A cap on tokens or cost that was reached, or of which a notice says that it is near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenLimit {
    /// The number of tokens or the cost, as the bytes of an `f64`. Bytes need no alignment, which
    /// keeps each node smaller, as a node has room for a limit.
    cap: [u8; 8],
    pub(crate) of: TokenMeasure,
    /// Whether some of the tokens are an estimate.
    pub(crate) estimated: bool,
    /// The window, if the cap is that of the run's owner.
    pub(crate) owners: Option<CapWindow>,
}

/// What a cap on tokens counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMeasure {
    /// The tokens of answers.
    Output,
    /// The tokens of prompts and answers together.
    Total,
    /// The cost of prompts and answers.
    Cost,
}

impl TokenMeasure {
    /// All measures.
    pub const ALL: [Self; 3] = [Self::Output, Self::Total, Self::Cost];

    /// The name of the measure: `output`, `total` or `cost`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Total => "total",
            Self::Cost => "cost",
        }
    }
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
    pub(crate) const fn new(cap: f64, of: TokenMeasure, estimated: bool) -> Self {
        Self {
            cap: cap.to_le_bytes(),
            of,
            estimated,
            owners: None,
        }
    }

    pub(crate) const fn cap(self) -> f64 {
        f64::from_le_bytes(self.cap)
    }

    /// Marks the limit as a cap of the run's owner in this window.
    pub(crate) const fn of_owner(mut self, window: CapWindow) -> Self {
        self.owners = Some(window);
        self
    }

    /// The name of the owner's cap, and its number of tokens or its cost.
    pub(crate) fn named(self) -> (&'static str, f64) {
        use CapWindow::{Day, Hour, Month, Week};
        use TokenMeasure::{Cost, Output, Total};

        let name = match (self.of, self.owners.unwrap_or(Hour)) {
            (Output, Hour) => "output_tokens_per_hour",
            (Output, Day) => "output_tokens_per_day",
            (Output, Week) => "output_tokens_per_week",
            (Output, Month) => "output_tokens_per_month",
            (Total, Hour) => "total_tokens_per_hour",
            (Total, Day) => "total_tokens_per_day",
            (Total, Week) => "total_tokens_per_week",
            (Total, Month) => "total_tokens_per_month",
            (Cost, Hour) => "cost_per_hour",
            (Cost, Day) => "cost_per_day",
            (Cost, Week) => "cost_per_week",
            (Cost, Month) => "cost_per_month",
        };
        (name, self.cap())
    }
}
