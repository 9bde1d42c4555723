//! Every terminal reason there is. `tests/sdk/cases_reasons.py` compares the list with the variants in
//! the source of the crate, since nothing outside of it can match on them all.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tower_agent::{
    TerminalReason,
    llm::failure::FailureClass,
    run::{CustomReason, ReasonClass},
};

fn all() -> [TerminalReason; 18] {
    [
        TerminalReason::Completed,
        TerminalReason::Failed(FailureClass::Server),
        TerminalReason::StepTimeout,
        TerminalReason::HardCeiling,
        TerminalReason::CallerDeadline,
        TerminalReason::ClientDisconnect,
        TerminalReason::Aborted,
        TerminalReason::Superseded,
        TerminalReason::Shutdown,
        TerminalReason::TurnCap,
        TerminalReason::RetryBudget,
        TerminalReason::RunErrors,
        TerminalReason::ConsecutiveErrors,
        TerminalReason::LoopDetected,
        TerminalReason::Stuck,
        TerminalReason::IdleCircuitOpen,
        custom(
            "budget_of_the_day",
            ReasonClass::Limit,
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        // A status that SDKs would try again if nothing forbade it.
        custom(
            "maintenance",
            ReasonClass::Cancelled,
            StatusCode::SERVICE_UNAVAILABLE,
        ),
    ]
}

fn custom(name: &str, class: ReasonClass, status: StatusCode) -> TerminalReason {
    TerminalReason::Custom(Arc::new(CustomReason {
        name: name.to_owned(),
        class,
        status,
    }))
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
