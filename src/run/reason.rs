use std::{fmt, sync::Arc};

use http::StatusCode;

use crate::llm::failure::FailureClass;

/// Why a node of a run ended: written once, read by every layer.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalReason {
    /// The last body ended, or its dialect's terminator was handed on.
    Completed,
    /// The upstream failed, and nothing else was tried.
    Failed(FailureClass),
    /// Nothing was progress for a whole step window.
    StepTimeout,
    /// The absolute limit passed.
    HardCeiling,
    /// The total that the program or the caller allowed passed.
    CallerDeadline,
    /// The caller went away before the answer was delivered.
    ClientDisconnect,
    /// Somebody ended it, or its opener dropped it.
    Aborted,
    /// A newer run took its place.
    Superseded,
    /// The server is going down; worth a try elsewhere.
    Shutdown,
    /// The run used up its turns.
    TurnCap,
    /// One error came back more often than its budget allows.
    RetryBudget,
    /// The run made more errors than it may.
    RunErrors,
    /// Too many errors in a row.
    ConsecutiveErrors,
    /// The same call came back again and again.
    LoopDetected,
    /// Alive, but without progress.
    Stuck,
    /// Too many silent attempts in a row.
    IdleCircuitOpen,
    /// A reason of the program's own.
    Custom(Arc<CustomReason>),
}

/// A [`TerminalReason`] of the program's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomReason {
    /// The wire name, in `snake_case`.
    pub name: String,
    /// What kind of end it is.
    pub class: ReasonClass,
    /// The status of an answer of which nothing was sent yet.
    pub status: StatusCode,
}

/// What kind of end a [`TerminalReason`] is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasonClass {
    /// It finished.
    Success,
    /// The upstream failed.
    Failure,
    /// A clock passed.
    Timeout,
    /// Somebody did not want it any more; neither success nor failure.
    Cancelled,
    /// A cap was reached.
    Limit,
}

impl TerminalReason {
    /// The name on the wire and in logs; `completed` never goes over the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Failed(_) => "upstream_failed",
            Self::StepTimeout => "step_timeout",
            Self::HardCeiling => "max_turn_time",
            Self::CallerDeadline => "timeout",
            Self::ClientDisconnect => "client_disconnect",
            Self::Aborted => "aborted",
            Self::Superseded => "superseded",
            Self::Shutdown => "shutdown",
            Self::TurnCap => "turn_cap_reached",
            Self::RetryBudget => "retry_budget_exceeded",
            Self::RunErrors => "per_dispatch_errors_exceeded",
            Self::ConsecutiveErrors => "consecutive_errors",
            Self::LoopDetected => "loop_detected",
            Self::Stuck => "stuck",
            Self::IdleCircuitOpen => "idle_circuit_open",
            Self::Custom(custom) => &custom.name,
        }
    }

    /// The reason of a wire name; one that is not ours is a limit of the
    /// program's own.
    pub(crate) fn named(name: &str) -> Self {
        let known = [
            Self::StepTimeout,
            Self::HardCeiling,
            Self::CallerDeadline,
            Self::ClientDisconnect,
            Self::Aborted,
            Self::Superseded,
            Self::Shutdown,
            Self::TurnCap,
            Self::RetryBudget,
            Self::RunErrors,
            Self::ConsecutiveErrors,
            Self::LoopDetected,
            Self::Stuck,
            Self::IdleCircuitOpen,
        ];
        let found = known.into_iter().find(|reason| reason.as_str() == name);
        found.unwrap_or_else(|| {
            Self::Custom(Arc::new(CustomReason {
                name: name.to_owned(),
                class: ReasonClass::Limit,
                status: StatusCode::UNPROCESSABLE_ENTITY,
            }))
        })
    }

    /// What kind of end it is.
    #[must_use]
    pub fn class(&self) -> ReasonClass {
        match self {
            Self::Completed => ReasonClass::Success,
            Self::Failed(_) => ReasonClass::Failure,
            Self::StepTimeout | Self::HardCeiling | Self::CallerDeadline => ReasonClass::Timeout,
            Self::ClientDisconnect | Self::Aborted | Self::Superseded | Self::Shutdown => {
                ReasonClass::Cancelled
            }
            Self::TurnCap
            | Self::RetryBudget
            | Self::RunErrors
            | Self::ConsecutiveErrors
            | Self::LoopDetected
            | Self::Stuck
            | Self::IdleCircuitOpen => ReasonClass::Limit,
            Self::Custom(custom) => custom.class,
        }
    }

    /// The status of an answer of which nothing was sent yet.
    ///
    /// Limits answer 422, because neither clients nor proxies retry it, even
    /// where a proxy strips the headers that forbid it.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Failed(_) => StatusCode::BAD_GATEWAY,
            Self::StepTimeout | Self::HardCeiling | Self::CallerDeadline => {
                StatusCode::GATEWAY_TIMEOUT
            }
            // 499 has no name of its own in the registry; proxies log it.
            // A call that was cut because its run had completed did not.
            Self::Completed | Self::ClientDisconnect | Self::Aborted => {
                StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
            }
            Self::Shutdown => StatusCode::SERVICE_UNAVAILABLE,
            Self::Custom(custom) => custom.status,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }

    /// Whether a client may try the same elsewhere: only after a shutdown.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Shutdown)
    }
}

impl fmt::Display for TerminalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for TerminalReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
