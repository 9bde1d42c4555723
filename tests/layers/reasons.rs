//! Reasons, their names, statuses and messages.

use std::{error::Error, io};

use http::StatusCode;
use tokio::time::advance;
use tower_agent::{
    BoxError, FailureClass, HardCeilingLayer, ReasonClass, Run, Step, StepKind, TerminalReason,
    Terminated,
};

use crate::support::{
    DONE, FINISH, Place, Script, Stack, Upstream, prompt, reason_of, request, secs,
};

pub(crate) fn all() -> Vec<(TerminalReason, &'static str, u16, ReasonClass)> {
    use ReasonClass::{Cancelled, Failure, Limit, Success, Timeout};
    let custom = TerminalReason::custom("too_dear", Limit, StatusCode::PAYMENT_REQUIRED);
    vec![
        (TerminalReason::Completed, "completed", 499, Success),
        (
            TerminalReason::Failed(FailureClass::Server),
            "upstream_failed",
            502,
            Failure,
        ),
        (TerminalReason::StepTimeout, "step_timeout", 504, Timeout),
        (TerminalReason::Slow, "slow", 504, Timeout),
        (TerminalReason::HardCeiling, "max_turn_time", 504, Timeout),
        (TerminalReason::CallerDeadline, "timeout", 504, Timeout),
        (
            TerminalReason::ClientDisconnect,
            "client_disconnect",
            499,
            Cancelled,
        ),
        (TerminalReason::Aborted, "aborted", 499, Cancelled),
        (TerminalReason::Superseded, "superseded", 422, Cancelled),
        (TerminalReason::Shutdown, "shutdown", 503, Cancelled),
        (TerminalReason::TurnCap, "turn_cap_reached", 422, Limit),
        (TerminalReason::TokenCap, "token_cap_reached", 422, Limit),
        (
            TerminalReason::RetryBudget,
            "retry_budget_exceeded",
            422,
            Limit,
        ),
        (
            TerminalReason::RunErrors,
            "per_dispatch_errors_exceeded",
            422,
            Limit,
        ),
        (
            TerminalReason::ConsecutiveErrors,
            "consecutive_errors",
            422,
            Limit,
        ),
        (TerminalReason::LoopDetected, "loop_detected", 422, Limit),
        (TerminalReason::Stuck, "stuck", 422, Limit),
        (
            TerminalReason::IdleCircuitOpen,
            "idle_circuit_open",
            422,
            Limit,
        ),
        (custom, "too_dear", 402, Limit),
    ]
}

#[test]
fn names_statuses_and_classes_are_those_of_the_table() {
    for (reason, name, status, class) in all() {
        assert_eq!(reason.as_str(), name);
        assert_eq!(reason.to_string(), name);
        assert_eq!(reason.status().as_u16(), status, "{name}");
        assert_eq!(reason.class(), class, "{name}");
        assert_eq!(reason.is_retryable(), name == "shutdown");
    }
}

#[test]
fn a_cut_is_read_back_from_its_wire_name() {
    let nameless = ["completed", "upstream_failed", "too_dear"];
    for (reason, name, ..) in all() {
        let read = name.parse::<TerminalReason>();
        match nameless.contains(&name) {
            false => assert_eq!(read, Ok(reason)),
            true => assert_eq!(
                read.unwrap_err().to_string(),
                format!("{name:?} is the name of no cut")
            ),
        }
    }
    let long = "Stuck\n".repeat(100).parse::<TerminalReason>();
    assert!(long.unwrap_err().to_string().len() < 100);
}

#[derive(Debug)]
struct Wrapped(BoxError);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("wrapped")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

fn end() -> Terminated {
    let run = Run::open();
    run.end(TerminalReason::TurnCap);
    run.terminated().unwrap()
}

/// covers: T80
#[test]
fn a_reason_is_found_through_wrapping_errors() {
    let cases: Vec<(&str, BoxError)> = vec![
        ("itself", end().into()),
        ("an error with a source", Wrapped(end().into()).into()),
        ("two of them", Wrapped(Wrapped(end().into()).into()).into()),
        ("io", io::Error::other(end()).into()),
        (
            "io in a source",
            Wrapped(io::Error::other(end()).into()).into(),
        ),
        (
            "io in io",
            io::Error::other(io::Error::other(Wrapped(end().into()))).into(),
        ),
        ("a box", Box::new(Box::new(end()))),
        ("a box in io", io::Error::other(Box::new(end())).into()),
        (
            "a box in an error",
            Wrapped(Box::new(Box::new(end()))).into(),
        ),
    ];
    for (case, error) in cases {
        assert_eq!(reason_of(&error), Some(TerminalReason::TurnCap), "{case}");
    }
    let other: BoxError = Wrapped("other".into()).into();
    assert_eq!(reason_of(&other), None);
}

/// covers: B1
#[tokio::test(start_paused = true)]
async fn the_message_of_each_clock_says_limit_duration_last_step_and_what_to_try() {
    let silent = Upstream::script(Script::before_head().never());
    let ended_by = async |stack: Stack| {
        let outcome = stack.build(&silent).ask(request()).await;
        outcome.terminated().message()
    };
    let timeout = HardCeilingLayer::optional(None).timeout(Some(secs(45)));

    let step = ended_by(Stack::default().step(90)).await;
    let ceiling = ended_by(Stack::default().ceiling(190)).await;
    let timeout = ended_by(Stack::default().layer(Place::Ceiling, timeout)).await;

    assert_eq!(
        step,
        "The run was stopped after 1m 30s: nothing happened for 1m 30s (step_timeout). \
         Last step: llm_call. It may be stuck: retry, or simplify the request."
    );
    assert_eq!(
        ceiling,
        "The run was stopped after 3m 10s: it reached its time limit of 3m 10s (max_turn_time). \
         Last step: llm_call. Try a simpler request, or a larger limit."
    );
    assert_eq!(
        timeout,
        "The run was stopped after 45s: it used up the 45s it was given (timeout). \
         Last step: llm_call. Retry, or simplify the request."
    );
}

/// What each reason that the program or a cap stores says, and advises.
const SAID: [(&str, &str, &str); 17] = [
    ("completed", "", "Start a new run to go on"),
    (
        "upstream_failed",
        "the upstream failed",
        "Retry, or simplify the request",
    ),
    (
        "step_timeout",
        "nothing happened for too long",
        "It may be stuck: retry, or simplify the request",
    ),
    ("slow", "it was too slow", "Retry, or choose another model"),
    (
        "max_turn_time",
        "it reached its time limit",
        "Try a simpler request, or a larger limit",
    ),
    (
        "timeout",
        "it used up its time",
        "Retry, or simplify the request",
    ),
    (
        "client_disconnect",
        "the caller went away",
        "Send the request again if it is still wanted",
    ),
    ("aborted", "it was aborted", "Start a new run to go on"),
    (
        "superseded",
        "a newer run took its place",
        "Start a new run to go on",
    ),
    (
        "shutdown",
        "the server is shutting down",
        "Retry: another server may take it",
    ),
    (
        "turn_cap_reached",
        "it reached its limit of turns",
        "Look at what failed, then start a new run",
    ),
    (
        "token_cap_reached",
        "it used up its tokens",
        "Look at what failed, then start a new run",
    ),
    (
        "retry_budget_exceeded",
        "one error came back too often",
        "Look at what failed, then start a new run",
    ),
    (
        "per_dispatch_errors_exceeded",
        "it made too many errors",
        "Look at what failed, then start a new run",
    ),
    (
        "consecutive_errors",
        "it made too many errors in a row",
        "Look at what failed, then start a new run",
    ),
    (
        "loop_detected",
        "it repeated the same call",
        "Change the request, then start a new run",
    ),
    (
        "stuck",
        "it made no progress",
        "Change the request, then start a new run",
    ),
];

/// covers: B1
#[tokio::test(start_paused = true)]
async fn the_message_of_every_reason_says_what_how_long_the_last_step_and_what_to_try() {
    let rest = [
        (
            "idle_circuit_open",
            "the models stayed silent",
            "Retry later, or choose another model",
        ),
        (
            "too_dear",
            "the program ended it",
            "Start a new run to go on",
        ),
    ];
    let said: Vec<_> = SAID.into_iter().chain(rest).collect();
    assert_eq!(said.len(), all().len());
    for ((reason, name, ..), (of, cause, advice)) in all().into_iter().zip(said) {
        assert_eq!(name, of);
        for (step, last) in [
            (None, "unknown"),
            (Some("search"), "tool_complete (search)"),
        ] {
            let run = Run::open();
            if let Some(tool) = step {
                run.step(Step::new(StepKind::ToolComplete).detail(tool));
            }
            advance(secs(125)).await;
            run.end(reason.clone());

            let what = match reason {
                TerminalReason::Completed => "completed after 2m 5s".to_owned(),
                _ => format!("was stopped after 2m 5s: {cause} ({name})"),
            };
            assert_eq!(
                run.terminated().unwrap().message(),
                format!("The run {what}. Last step: {last}. {advice}.")
            );
        }
    }
}

/// covers: B3
#[tokio::test(start_paused = true)]
async fn the_last_step_is_known_without_a_step_window() {
    let run = Run::open();
    let finish = FINISH;
    let script = Script::sse().data(finish).data(DONE);
    let stack = Stack::default().ceiling(100);
    let served = stack.build(&Upstream::script(script));
    served.ask(run.attach(request())).await.whole();
    advance(secs(5)).await;
    run.end(TerminalReason::TurnCap);

    let step = run.terminated().unwrap().last_step.unwrap();
    assert_eq!(step.to_string(), "llm_response (stop)");

    let run = Run::open();
    let hangs = Upstream::script(Script::before_head().never());
    let outcome = stack.build(&hangs).ask(run.attach(request())).await;
    let step = outcome.terminated().last_step.clone();
    assert_eq!(step.unwrap().to_string(), "llm_call");
}

/// covers: B1
#[tokio::test(start_paused = true)]
async fn a_last_step_that_nobody_told_reads_unknown() {
    let run = Run::open();
    run.end(TerminalReason::Stuck);
    assert!(
        run.terminated()
            .unwrap()
            .message()
            .contains("Last step: unknown.")
    );
}

/// covers: B1, B3
#[tokio::test(start_paused = true)]
async fn the_step_of_a_call_names_its_candidate() {
    let stack = Stack::default().candidates(["large"]).ceiling(30);
    let silent = stack.build(&Upstream::script(Script::before_head().never()));
    let run = Run::open();

    let outcome = silent.ask(run.attach(prompt("any"))).await;

    let end = outcome.terminated();
    let step = end.last_step.clone().unwrap();
    assert_eq!(step.kind(), StepKind::LlmCall);
    assert_eq!(step.description(), Some("large"));
    assert!(end.message().contains("Last step: llm_call (large). "));
    assert!(
        end.to_string().ends_with(
            "ended with max_turn_time after 30s, its limit being 30s, last step llm_call (large)"
        ),
        "{end}"
    );
    let json = serde_json::to_value(run.snapshot()).unwrap();
    let expected = serde_json::json!({"kind": "llm_call", "description": "large"});
    assert_eq!(json["last_step"], expected);
    assert_eq!(json["progress"]["last_change"]["kind"], "state_change");
}

/// covers: B3
#[tokio::test(start_paused = true)]
async fn a_step_that_completes_another_keeps_its_description() {
    for (begun, done) in [
        (StepKind::LlmCall, StepKind::LlmResponse),
        (StepKind::ToolExecution, StepKind::ToolComplete),
    ] {
        let run = Run::open();
        run.step(Step::new(begun).detail("x"));
        run.step(Step::new(done));
        let step = run.snapshot().last_step.unwrap();
        assert_eq!((step.kind(), step.description()), (done, Some("x")));
    }
}

/// covers: B3
#[tokio::test(start_paused = true)]
async fn a_step_without_a_description_keeps_the_one_before() {
    let run = Run::open();
    run.step(Step::new(StepKind::ToolComplete).detail("search"));
    run.step(Step::new(StepKind::LlmCall));
    run.end(TerminalReason::Aborted);

    let message = run.terminated().unwrap().message();
    assert!(
        message.contains("Last step: tool_complete (search)"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn losers_are_kept_in_also_and_the_first_reason_stays() {
    let run = Run::open();
    assert!(run.end(TerminalReason::Aborted));
    for late in [
        TerminalReason::Shutdown,
        TerminalReason::Stuck,
        TerminalReason::Shutdown,
    ] {
        assert!(!run.end(late));
    }

    let end = run.terminated().unwrap();
    assert_eq!(end.reason, TerminalReason::Aborted);
    assert_eq!(end.also, [TerminalReason::Shutdown, TerminalReason::Stuck]);
}

#[tokio::test(start_paused = true)]
async fn the_error_says_which_run_and_how_long() {
    let run = Run::open();
    advance(secs(61)).await;
    run.end(TerminalReason::Aborted);

    let end = run.terminated().unwrap();
    assert_eq!(
        end.to_string(),
        format!("run {} ended with aborted after 1m 1s", run.id())
    );
    assert_eq!(end.elapsed, secs(61));
}
