//! Every terminal reason there is. `tests/sdk/cases_reasons.py` compares the list with the variants in
//! the source of the crate, since nothing outside of it can match on them all.

use http::StatusCode;
use serde_json::{Value, json};
use tower_agent::{FailureClass, ReasonClass, TerminalReason};

fn all() -> [TerminalReason; 20] {
    [
        TerminalReason::Completed,
        TerminalReason::Failed(FailureClass::Server),
        TerminalReason::StepTimeout,
        TerminalReason::Slow,
        TerminalReason::HardCeiling,
        TerminalReason::CallerDeadline,
        TerminalReason::ClientDisconnect,
        TerminalReason::Aborted,
        TerminalReason::Superseded,
        TerminalReason::Shutdown,
        TerminalReason::TurnCap,
        TerminalReason::TokenCap,
        TerminalReason::RetryBudget,
        TerminalReason::RunErrors,
        TerminalReason::ConsecutiveErrors,
        TerminalReason::LoopDetected,
        TerminalReason::Stuck,
        TerminalReason::IdleCircuitOpen,
        TerminalReason::custom(
            "budget_of_the_day",
            ReasonClass::Limit,
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        // A status that SDKs would try again if nothing forbade it.
        TerminalReason::custom(
            "maintenance",
            ReasonClass::Cancelled,
            StatusCode::SERVICE_UNAVAILABLE,
        ),
    ]
}

pub(crate) fn named(name: &str) -> Option<TerminalReason> {
    all().into_iter().find(|reason| reason.as_str() == name)
}

/// Each as its variant's name and its wire name.
pub(crate) fn listed() -> Vec<Value> {
    let entry = |reason: TerminalReason| {
        let debug = format!("{reason:?}");
        let variant = debug.split('(').next();
        json!({"variant": variant, "name": reason.as_str()})
    };
    all().into_iter().map(entry).collect()
}
