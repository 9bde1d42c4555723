//! Tower layers.

#[cfg(any(feature = "axum", feature = "reqwest"))]
pub mod adapter;
pub mod body;
pub mod client_disconnect;
pub mod hard_ceiling;
pub mod pump;
pub mod run;
pub mod run_layer;
pub mod sse;
pub mod step_timeout;
pub mod terminal_response;
pub mod upstream;

#[doc(no_inline)]
pub use self::{
    client_disconnect::ClientDisconnectLayer,
    hard_ceiling::HardCeilingLayer,
    pump::PumpLayer,
    run::{
        InvalidRunId, Limits, NodeKind, Owner, ResetOn, Run, RunEvent, RunId, RunRegistry,
        RunSnapshot, Scope, Step, StepKind, TerminalReason, Terminated, ToolError,
    },
    run_layer::RunLayer,
    step_timeout::StepTimeoutLayer,
    terminal_response::TerminalResponseLayer,
};

mod error;

pub use self::error::BoxError;
