use std::{error::Error, fmt, str::FromStr, sync::Arc};

use http::StatusCode;

use crate::llm::failure::FailureClass;

/// The reason why a node of a run ended: stored once, read by every layer.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalReason {
    /// The work of the node finished: the answer was delivered whole, or the tool returned.
    ///
    /// A registry also completes a run that was idle for long enough, or that was never used
    /// because its requests were refused before an upstream was asked.
    Completed,
    /// The upstream failed, or the tool returned an error.
    ///
    /// The layers make no other try after a call with this end; after an attempt another may
    /// follow.
    Failed(FailureClass),
    /// A whole step window passed without an event that resets it.
    ///
    /// A node also ends with this reason if its upstream was silent and failed the health probes.
    StepTimeout,
    /// A stream with content was slower than its floor: see
    /// [`StepTimeoutLayer::min_tokens_per_second`](crate::StepTimeoutLayer::min_tokens_per_second).
    Slow,
    /// The absolute limit of the node passed, or an attempt's share of the remaining time.
    HardCeiling,
    /// The program's timeout passed, or a time limit that the caller announced.
    ///
    /// The caller may limit the whole answer, the time until its head, and the silence between two
    /// bytes.
    CallerDeadline,
    /// The caller went away before the answer was delivered.
    ClientDisconnect,
    /// The program aborted the node or its session, or the node's work was dropped unfinished, also by
    /// a panic of the program's own service or hook.
    Aborted,
    /// A newer run took the place of this run.
    Superseded,
    /// The server shuts down; the client may retry elsewhere.
    Shutdown,
    /// The run used up its turns, or a cap of its owner refused the request.
    ///
    /// The owner's caps with this reason limit its open runs, and its turns in an hour.
    TurnCap,
    /// The run reached its cap on tokens or their cost, or its owner's hourly one.
    TokenCap,
    /// One kind of error occurred more often than its budget allows.
    RetryBudget,
    /// The run made more errors than its limit allows.
    RunErrors,
    /// The run's errors in a row reached their limit.
    ConsecutiveErrors,
    /// The run's tool calls formed a loop, or called unknown tools too often: see
    /// [`LoopPattern`](crate::run::LoopPattern).
    LoopDetected,
    /// The run gave signs of life, but made no progress.
    Stuck,
    /// The run's silent attempts in a row reached their limit.
    IdleCircuitOpen,
    /// A reason that the program defines; see [`custom`](Self::custom).
    Custom(Arc<CustomReason>),
}

/// A [`TerminalReason`] that the program defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomReason {
    /// The name of the reason on the wire, in `snake_case`.
    pub name: String,
    /// The class of the custom reason.
    pub class: ReasonClass,
    /// The HTTP status with which a layer answers, if nothing of the answer was sent yet.
    pub status: StatusCode,
}

/// The class of a [`TerminalReason`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasonClass {
    /// The work of the node finished.
    Success,
    /// The upstream failed, or a tool returned an error.
    Failure,
    /// A limit on time passed.
    Timeout,
    /// The work was not wanted any more, which is neither success nor failure.
    Cancelled,
    /// A cap was reached, such as one on turns or errors.
    Limit,
}

impl ReasonClass {
    /// All classes, in the order of their declaration.
    pub const ALL: [Self; 5] = [
        Self::Success,
        Self::Failure,
        Self::Timeout,
        Self::Cancelled,
        Self::Limit,
    ];

    /// The name of the class in `snake_case`, for what a store or a record keeps of a
    /// [custom](TerminalReason::custom) reason.
    ///
    /// ```
    /// use tower_agent::ReasonClass;
    ///
    /// let parsed = ReasonClass::ALL.into_iter().find(|class| class.as_str() == "limit");
    /// assert_eq!(parsed, Some(ReasonClass::Limit));
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Limit => "limit",
        }
    }
}

/// The name of [`TerminalReason::run_paused`].
const RUN_PAUSED: &str = "run_paused";

impl TerminalReason {
    /// Makes a reason that the program defines, with its name on the wire, in `snake_case`.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_agent::{ReasonClass, Run, TerminalReason};
    ///
    /// let spent = TerminalReason::custom(
    ///     "out_of_money",
    ///     ReasonClass::Limit,
    ///     StatusCode::PAYMENT_REQUIRED,
    /// );
    /// let run = Run::open();
    /// run.end(spent.clone());
    /// assert_eq!(run.terminal_reason(), Some(spent));
    /// ```
    pub fn custom(name: impl Into<String>, class: ReasonClass, status: StatusCode) -> Self {
        let name = name.into();
        Self::Custom(Arc::new(CustomReason {
            name,
            class,
            status,
        }))
    }

    /// The name of the reason on the wire and in logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Custom(custom) => &custom.name,
            known => known.traits().0,
        }
    }

    /// The reason as the label of a metric: its wire name, or `other` for a custom reason.
    ///
    /// A trusted upstream may send custom reasons, and the values of a label must be a fixed set.
    #[cfg(feature = "metrics")]
    pub(crate) fn label(&self) -> &'static str {
        self.traits().0
    }

    /// The name, the class and the HTTP status of each reason. All custom reasons share one name.
    fn traits(&self) -> (&'static str, ReasonClass, StatusCode) {
        use ReasonClass::{Cancelled, Failure, Limit, Success, Timeout};

        // The registry of HTTP statuses has no 499, but proxies log it for a closed connection.
        let closed = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
        let (late, limit) = (
            StatusCode::GATEWAY_TIMEOUT,
            StatusCode::UNPROCESSABLE_ENTITY,
        );
        match self {
            // A call that outlives its run inherits `Completed` from it. The end of the run has cut
            // that call, so the status is that of a closed connection.
            Self::Completed => ("completed", Success, closed),
            Self::Failed(_) => ("upstream_failed", Failure, StatusCode::BAD_GATEWAY),
            Self::StepTimeout => ("step_timeout", Timeout, late),
            Self::Slow => ("slow", Timeout, late),
            Self::HardCeiling => ("max_turn_time", Timeout, late),
            Self::CallerDeadline => ("timeout", Timeout, late),
            Self::ClientDisconnect => ("client_disconnect", Cancelled, closed),
            Self::Aborted => ("aborted", Cancelled, closed),
            Self::Superseded => ("superseded", Cancelled, limit),
            Self::Shutdown => ("shutdown", Cancelled, StatusCode::SERVICE_UNAVAILABLE),
            Self::TurnCap => ("turn_cap_reached", Limit, limit),
            Self::TokenCap => ("token_cap_reached", Limit, limit),
            Self::RetryBudget => ("retry_budget_exceeded", Limit, limit),
            Self::RunErrors => ("per_dispatch_errors_exceeded", Limit, limit),
            Self::ConsecutiveErrors => ("consecutive_errors", Limit, limit),
            Self::LoopDetected => ("loop_detected", Limit, limit),
            Self::Stuck => ("stuck", Limit, limit),
            Self::IdleCircuitOpen => ("idle_circuit_open", Limit, limit),
            Self::Custom(custom) => ("other", custom.class, custom.status),
        }
    }

    /// The reason with this wire name. Any other name gives a custom reason of class `Limit`; so do
    /// `completed` and `upstream_failed`.
    pub(crate) fn named(name: &str) -> Self {
        let unknown = |_| Self::custom(name, ReasonClass::Limit, StatusCode::UNPROCESSABLE_ENTITY);
        name.parse().unwrap_or_else(unknown)
    }

    /// The reason of a call that a pause of its run has refused.
    pub(crate) fn run_paused() -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::custom(RUN_PAUSED, ReasonClass::Limit, status)
    }

    /// Whether a pause of its run has refused the call of this reason.
    pub(crate) fn is_run_paused(&self) -> bool {
        matches!(self, Self::Custom(custom) if custom.name == RUN_PAUSED)
    }

    /// The class of the reason.
    #[must_use]
    pub fn class(&self) -> ReasonClass {
        self.traits().1
    }

    /// Whether the reason is a cut: it ended the work before its outcome.
    pub(crate) fn is_cut(&self) -> bool {
        !matches!(self.class(), ReasonClass::Success | ReasonClass::Failure)
    }

    /// The HTTP status with which a layer answers, if nothing of the answer was sent yet.
    ///
    /// The crate's reasons of class [`Limit`](ReasonClass::Limit), and `Superseded`, answer 422,
    /// because clients and proxies do not retry a 422, even where a proxy strips the headers that
    /// forbid a retry.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.traits().2
    }

    /// Whether a client may retry the request elsewhere: true only for a shutdown.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Shutdown)
    }
}

/// Parses the wire name of a cut: a reason that ends work before its outcome.
///
/// A client library may give such a name as the code of its error.
///
/// ```
/// use tower_agent::TerminalReason;
///
/// assert_eq!("step_timeout".parse(), Ok(TerminalReason::StepTimeout));
/// ```
///
/// # Errors
///
/// The parse fails if the text is not the name of a cut. `completed` and `upstream_failed` are
/// outcomes and no cuts (the latter also lacks its failure class). The names of custom reasons are
/// not known here.
impl FromStr for TerminalReason {
    type Err = UnknownReason;

    fn from_str(name: &str) -> Result<Self, UnknownReason> {
        let known = [
            Self::StepTimeout,
            Self::Slow,
            Self::HardCeiling,
            Self::CallerDeadline,
            Self::ClientDisconnect,
            Self::Aborted,
            Self::Superseded,
            Self::Shutdown,
            Self::TurnCap,
            Self::TokenCap,
            Self::RetryBudget,
            Self::RunErrors,
            Self::ConsecutiveErrors,
            Self::LoopDetected,
            Self::Stuck,
            Self::IdleCircuitOpen,
        ];
        let found = known.into_iter().find(|reason| reason.as_str() == name);
        found.ok_or_else(|| UnknownReason {
            name: name.chars().take(40).collect(),
        })
    }
}

/// The error for a text that is the wire name of no cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownReason {
    /// The first 40 characters of the text that is the wire name of no cut.
    name: String,
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is the name of no cut", self.name)
    }
}

impl Error for UnknownReason {}

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
