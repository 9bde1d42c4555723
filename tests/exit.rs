//! The end of a run as the end of a process: this program runs itself again, as an
//! agent that ends for one reason.
//!
//! covers: D5

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    env,
    process::{Command, ExitCode, Termination},
};

use http::StatusCode;
use tower_agent::{FailureClass, ReasonClass, Run, Step, StepKind, TerminalReason};

const REASON: &str = "EXIT_TEST_REASON";

fn custom(class: ReasonClass) -> TerminalReason {
    TerminalReason::custom("out_of_money", class, StatusCode::PAYMENT_REQUIRED)
}

fn reasons() -> Vec<(TerminalReason, i32)> {
    vec![
        (TerminalReason::Completed, 0),
        (TerminalReason::Failed(FailureClass::Server), 1),
        (TerminalReason::StepTimeout, 124),
        (TerminalReason::Slow, 124),
        (TerminalReason::HardCeiling, 124),
        (TerminalReason::CallerDeadline, 124),
        (TerminalReason::ClientDisconnect, 130),
        (TerminalReason::Aborted, 130),
        (TerminalReason::Superseded, 130),
        (TerminalReason::Shutdown, 130),
        (TerminalReason::TurnCap, 122),
        (TerminalReason::RetryBudget, 122),
        (TerminalReason::RunErrors, 122),
        (TerminalReason::ConsecutiveErrors, 122),
        (TerminalReason::LoopDetected, 122),
        (TerminalReason::Stuck, 122),
        (TerminalReason::IdleCircuitOpen, 122),
        (custom(ReasonClass::Limit), 122),
        (custom(ReasonClass::Success), 1),
    ]
}

/// The agent: it ends for the reason of that number.
fn agent(reason: usize) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let _entered = runtime.enter();
    let run = Run::open();
    run.step(Step::new(StepKind::ToolExecution).detail("two\nlines\r\x1b[0m"));
    run.end(reasons()[reason].0.clone());
    run.terminated().unwrap().report()
}

fn main() -> ExitCode {
    if let Ok(reason) = env::var(REASON) {
        return agent(reason.parse().unwrap());
    }
    // What `cargo test -- --list` and the like want to know.
    if env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    for (number, (reason, code)) in reasons().into_iter().enumerate() {
        let agent = Command::new(env::current_exe().unwrap())
            .env(REASON, number.to_string())
            .output()
            .unwrap();
        assert_eq!(agent.status.code(), Some(code), "{reason}");
        assert_eq!(agent.stdout, b"");
        let said = String::from_utf8(agent.stderr).unwrap();
        let line = said.strip_suffix('\n').unwrap();
        assert!(!line.contains(char::is_control), "{said:?}");
        let what = match reason {
            TerminalReason::Completed => "completed",
            _ => "was stopped",
        };
        assert!(
            line.starts_with(&format!("{reason}: The run {what} after")),
            "{said:?}"
        );
        assert!(
            line.contains("Last step: tool_execution (two lines"),
            "{said:?}"
        );
    }
    println!(
        "exit: the codes and lines of {} reasons ... ok",
        reasons().len()
    );
    ExitCode::SUCCESS
}
