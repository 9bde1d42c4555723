use super::class::FailureClass;

/// The failure class of a terminal reason, given by name, of another process's run.
///
/// The reason is not trusted as one of this process. A deadline or a disconnect over
/// there ended only its own run, but a limit would stop the same work again.
pub(super) fn class_of(name: &str) -> Option<FailureClass> {
    match name {
        "step_timeout" | "max_turn_time" | "timeout" | "client_disconnect" | "aborted"
        | "shutdown" | "upstream_failed" => Some(FailureClass::Server),
        "superseded"
        | "turn_cap_reached"
        | "retry_budget_exceeded"
        | "per_dispatch_errors_exceeded"
        | "consecutive_errors"
        | "loop_detected"
        | "stuck"
        | "idle_circuit_open" => Some(FailureClass::Caller),
        _ => None,
    }
}
