use std::{fmt, time::Duration};

use super::Terminated;
use crate::run::{reason::TerminalReason, tree::LimitKind};

/// Writes the message that a person reads about a cut node.
///
/// The message names the limit, the time the node ran, its last step, and what to try next.
pub(in crate::run) fn write(f: &mut impl fmt::Write, end: &Terminated) -> fmt::Result {
    let subject = end.kind.as_str();
    let lasted = Span(end.elapsed);
    let name = end.reason.as_str();
    match end.measure {
        LimitKind::OpenRuns(runs) => {
            return write!(
                f,
                "The {subject} was refused: its caller has {runs} open runs, as many as it may \
                 ({name}). End one of them, or wait until one has ended."
            );
        }
        LimitKind::TurnsPerHour(turns) => {
            return write!(
                f,
                "The {subject} was refused: its caller has had {turns} turns within an hour, as \
                 many as it may ({name}). Wait before the next."
            );
        }
        _ => {}
    }
    write!(f, "The {subject} was stopped after {lasted}: ")?;
    match (&end.reason, end.limit.map(Span)) {
        (TerminalReason::StepTimeout, Some(limit)) if end.measure == LimitKind::Lifeless => {
            write!(
                f,
                "its heartbeats stopped, for {limit} nothing came ({name})"
            )?;
        }
        (TerminalReason::StepTimeout, Some(silent)) if end.measure == LimitKind::Unhealthy => {
            write!(
                f,
                "nothing came for {silent}, and the upstream failed its health probes ({name})"
            )?
        }
        (TerminalReason::StepTimeout, Some(limit)) => {
            write!(f, "nothing happened for {limit} ({name})")?;
        }
        (TerminalReason::HardCeiling, Some(limit)) => {
            write!(f, "it reached its time limit of {limit} ({name})")?;
        }
        (TerminalReason::CallerDeadline, Some(limit)) => match end.measure {
            LimitKind::Announced => {
                write!(f, "its caller's own deadline of {limit} passed ({name})")?
            }
            LimitKind::Unheard => write!(
                f,
                "nothing came for {limit}, the longest its caller waits ({name})"
            )?,
            _ => write!(f, "it used up the {limit} it was given ({name})")?,
        },
        (TerminalReason::TurnCap, _) if end.at_turn().is_some() => {
            let turns = end.at_turn().unwrap_or_default();
            let s = if turns == 1 { "" } else { "s" };
            write!(f, "it reached its limit of {turns} turn{s} ({name})")?;
        }
        (reason, _) => match &end.cause {
            Some(cause) => write!(f, "it {cause} ({name})")?,
            None => write!(f, "{} ({name})", cause(reason))?,
        },
    }
    match &end.last_step {
        Some(step) => write!(f, ". Last step: {step}")?,
        None => f.write_str(". Last step: unknown")?,
    }
    let advice = match end.measure {
        LimitKind::Unhealthy => "Restart the upstream, then retry",
        LimitKind::Announced | LimitKind::Unheard => {
            "Retry with a longer timeout of the client, or simplify the request"
        }
        _ => advice(&end.reason),
    };
    write!(f, ". {advice}.")
}

const fn cause(reason: &TerminalReason) -> &'static str {
    match reason {
        TerminalReason::Completed => "it had finished",
        TerminalReason::Failed(_) => "the upstream failed",
        TerminalReason::StepTimeout => "nothing happened for too long",
        TerminalReason::HardCeiling => "it reached its time limit",
        TerminalReason::CallerDeadline => "it used up its time",
        TerminalReason::ClientDisconnect => "the caller went away",
        TerminalReason::Aborted => "it was aborted",
        TerminalReason::Superseded => "a newer run took its place",
        TerminalReason::Shutdown => "the server is shutting down",
        TerminalReason::TurnCap => "it reached its limit of turns",
        TerminalReason::RetryBudget => "one error came back too often",
        TerminalReason::RunErrors => "it made too many errors",
        TerminalReason::ConsecutiveErrors => "it made too many errors in a row",
        TerminalReason::LoopDetected => "it repeated the same call",
        TerminalReason::Stuck => "it made no progress",
        TerminalReason::IdleCircuitOpen => "the models stayed silent",
        TerminalReason::Custom(_) => "the program ended it",
    }
}

const fn advice(reason: &TerminalReason) -> &'static str {
    match reason {
        TerminalReason::StepTimeout => "It may be stuck: retry, or simplify the request",
        TerminalReason::HardCeiling => "Try a simpler request, or a larger limit",
        TerminalReason::CallerDeadline | TerminalReason::Failed(_) => {
            "Retry, or simplify the request"
        }
        TerminalReason::ClientDisconnect | TerminalReason::Aborted => {
            "Send the request again if it is still wanted"
        }
        TerminalReason::Completed | TerminalReason::Superseded => "Start a new run to go on",
        TerminalReason::Shutdown => "Retry: another server may take it",
        TerminalReason::TurnCap
        | TerminalReason::RetryBudget
        | TerminalReason::RunErrors
        | TerminalReason::ConsecutiveErrors => "Look at what failed, then start a new run",
        TerminalReason::LoopDetected | TerminalReason::Stuck => {
            "Change the request, then start a new run"
        }
        TerminalReason::IdleCircuitOpen => "Retry later, or choose another model",
        TerminalReason::Custom(_) => "Start a new run to go on",
    }
}

/// A duration, printed in minutes and seconds; below ten seconds also with the fraction.
pub(in crate::run) struct Span(pub(in crate::run) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.0.as_secs();
        match (secs / 60, secs % 60) {
            (0, 0) => write!(f, "{}ms", self.0.as_millis()),
            (0, 1..=9) if self.0.subsec_millis() >= 100 => {
                write!(f, "{secs}.{}s", self.0.subsec_millis() / 100)
            }
            (0, s) => write!(f, "{s}s"),
            (m, s) => write!(f, "{m}m {s}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    //! covers: B1

    use super::*;

    #[test]
    fn a_span_reads_in_minutes_and_seconds() {
        let cases = [
            (50, "50ms"),
            (1500, "1.5s"),
            (28_900, "28s"),
            (190_000, "3m 10s"),
        ];
        for (millis, text) in cases {
            assert_eq!(Span(Duration::from_millis(millis)).to_string(), text);
        }
    }
}
