//! Logs one line for each call that ended and each run that ended. A run and its only call share
//! one line if they end together.
//!
//! The line is logged without a lock, after the tasks that wait for the end were woken. While the
//! line of a call is logged, the call still counts as work in flight. If no subscriber wants the
//! line, nothing is read or copied for it.
//!
//! One more line warns of a step window that was too short for a retry.

use std::time::Duration;

use tracing::Level;

use super::summary::CallSummary;
use crate::{
    guarded::guarded,
    lock::Lock,
    run::{
        reason::{ReasonClass, TerminalReason},
        state::{NodeState, Settlement},
        step::Step,
        tree::{End, Node, NodeKind, PendingWakes},
    },
};

/// The content of the log's line for the end of a call or run.
struct LogLine {
    level: Level,
    /// The kind of the node that was ended: a call may inherit the end of its run.
    ended: NodeKind,
    /// The last step of the run; `None` for a completed node, or if no step was reported.
    last_step: Option<Step>,
    /// Why no attempt followed the last failed one; `None` for a completed node, or if nothing
    /// denied one.
    denied: Option<String>,
    /// The number of the run's turns; `None` in the line of a call.
    turns: Option<u32>,
    summary: CallSummary,
}

/// The maximum number of window lengths for which a process logs `warn_of_short_window`.
const MAX_WARNED: usize = 16;

impl Node<NodeState> {
    /// Warns of a step window that ended this node, and is no longer than an attempt's below it.
    ///
    /// If a step window outside of the attempts is no longer than theirs, no attempt can follow a
    /// silent one. The warning is logged at most once per length.
    #[cold]
    pub(in crate::run) fn warn_of_short_window(&self, end: &End) {
        static WARNED: Lock<Vec<Duration>> = Lock::new(Vec::new());
        let Some(limit) = end.limit().filter(|limit| self.has_attempt_window(*limit)) else {
            return;
        };
        {
            let mut warned = WARNED.lock();
            if warned.len() >= MAX_WARNED || warned.contains(&limit) {
                return;
            }
            warned.push(limit);
        }
        tracing::warn!(
            target: "tower_agent",
            run = %self.run_id(),
            ended = end.kind.as_str(),
            ?limit,
            "outer step timeout leaves no time for a retry"
        );
    }

    /// Logs the end of this call or run once it has no work, unless its end was logged before.
    pub(in crate::run) fn log_settled(&self) {
        match self.kind() {
            NodeKind::Call => self.log_call(),
            NodeKind::Run if self.payload.settlement.ends_with_call() => self.log_call(),
            NodeKind::Run => {
                // The run has no line yet if its only call ended by itself before: that call has a
                // line of its own.
                if let Some(line) = self.nearest_end().and_then(|end| self.line_of_run(end)) {
                    guarded(|| line.log());
                }
            }
            NodeKind::Attempt | NodeKind::Tool => {}
        }
    }

    fn log_call(&self) {
        let Some(end) = self.nearest_end().filter(|_| self.payload.begin_log()) else {
            return;
        };
        if let Some(run) = self.parent() {
            let shares = |of_run: &End| of_run.origin == end.origin;
            let is_ended_with =
                run.run_state().is_one_call() && run.nearest_end().is_some_and(shares);
            if self.payload.settlement.is(Settlement::OnlyCall) || is_ended_with {
                // One line of the log stands for the call and its run.
                run.payload.begin_log();
            }
        }
        #[cfg(feature = "metrics")]
        self.record_call(end);
        let level = level(&end.reason);
        guarded(|| {
            if is_wanted(level) {
                LogLine::of(self, end, level, None).log();
            }
        });
    }

    /// Logs the end of this run, once its waiters have been woken. If the run's one call has yet to
    /// be logged, that line may stand for both: see [`log_settled`](Self::log_settled).
    pub(in crate::run) fn log_run(&self, end: &End, later: &mut PendingWakes<NodeState>) {
        let has_one_call = self.run_state().is_one_call() && !self.is_idle();
        if self.payload.settlement.ends_with_call() || has_one_call {
            return;
        }
        if let Some(line) = self.line_of_run(end) {
            later.defer(Box::new(move || {
                guarded(|| line.log());
            }));
        }
    }

    /// The log's line for this run; `None` if one exists, or if no subscriber wants it.
    fn line_of_run(&self, end: &End) -> Option<LogLine> {
        if !self.payload.begin_log() {
            return None;
        }
        let level = level(&end.reason);
        let mut line = None;
        guarded(|| {
            line = is_wanted(level).then(|| LogLine::of(self, end, level, Some(self.turns())));
        });
        line
    }
}

impl LogLine {
    fn of(node: &Node<NodeState>, end: &End, level: Level, turns: Option<u32>) -> Self {
        Self {
            level,
            ended: end.kind,
            last_step: match end.reason {
                TerminalReason::Completed => None,
                _ => node.run_state().step(),
            },
            denied: node
                .payload
                .call()
                .filter(|_| end.reason != TerminalReason::Completed)
                .and_then(|call| call.failed_attempts()?.denied_words()),
            turns,
            summary: CallSummary::of(node, end),
        }
    }

    fn log(&self) {
        let Self { summary, turns, .. } = self;
        let usage = summary.usage;
        let step = self.last_step.as_ref();
        let (message, call) = match turns {
            Some(_) => ("run ended", None),
            None => ("call ended", Some(summary)),
        };
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: "tower_agent",
                    reason = summary.reason.as_str(),
                    class = class_of(&summary.reason),
                    ended = self.ended.as_str(),
                    run = %summary.run,
                    session = summary.session.as_deref(),
                    candidate = call.and_then(|call| call.candidate.as_deref()),
                    attempts = call.map(|call| call.attempts),
                    denied = self.denied.as_deref(),
                    turns,
                    step = step.map(|step| step.kind().as_str()),
                    description = step.and_then(Step::description),
                    elapsed = ?summary.elapsed,
                    input_tokens = usage.map(|usage| usage.input_tokens),
                    output_tokens = usage.map(|usage| usage.output_tokens),
                    "{message}"
                )
            };
        }
        match self.level {
            Level::WARN => log!(warn),
            Level::INFO => log!(info),
            _ => log!(debug),
        }
    }
}

/// The class of the upstream's failure; `None` for any other end.
fn class_of(reason: &TerminalReason) -> Option<&'static str> {
    match reason {
        TerminalReason::Failed(class) => Some(class.as_str()),
        _ => None,
    }
}

/// The level of the log's line for an end with this reason.
///
/// Only an end by a limit other than time is a warning: either the run or its limit is wrong.
fn level(reason: &TerminalReason) -> Level {
    match reason.class() {
        ReasonClass::Success => Level::DEBUG,
        ReasonClass::Limit => Level::WARN,
        ReasonClass::Failure | ReasonClass::Timeout | ReasonClass::Cancelled => Level::INFO,
    }
}

fn is_wanted(level: Level) -> bool {
    match level {
        Level::WARN => tracing::enabled!(target: "tower_agent", Level::WARN),
        Level::INFO => tracing::enabled!(target: "tower_agent", Level::INFO),
        _ => tracing::enabled!(target: "tower_agent", Level::DEBUG),
    }
}
