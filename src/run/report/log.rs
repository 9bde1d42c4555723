//! One line in the log for each call that is over, and for each run that is more than
//! its call.
//!
//! Logging is the last thing that is done about an end: no lock is held, and the tasks
//! that wait for the end have been woken. Nothing is read or copied for a line that no
//! subscriber wants.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tracing::Level;

use crate::{
    llm::dialect::Usage,
    run::{
        id::RunId,
        kinds::NodeKind,
        reason::{ReasonClass, TerminalReason},
        state::NodeState,
        tree::{End, Node, PendingWakes},
    },
};

/// What is logged of an end.
struct LogLine {
    message: &'static str,
    level: Level,
    reason: TerminalReason,
    /// Which node was ended: a call inherits the end of its run.
    ended: NodeKind,
    run: RunId,
    session: Option<Arc<str>>,
    candidate: Option<Arc<str>>,
    attempts: Option<u32>,
    turns: Option<u32>,
    elapsed: Duration,
    usage: Option<Usage>,
}

impl Node<NodeState> {
    /// A node is over, nothing works at or below it any more, and those that waited were
    /// woken: logs it if nothing else did.
    pub(in crate::run) fn log_left(&self) {
        match self.kind() {
            NodeKind::Call => self.log_call(),
            NodeKind::Run if self.payload.is_single() => self.log_call(),
            NodeKind::Run => {
                // Its only call ended by itself, and has a line of its own.
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
            let is_ended_with = run.payload.is_one_call() && run.nearest_end().is_some_and(shares);
            if self.payload.is_sole() || is_ended_with {
                // One line says both.
                run.payload.begin_log();
            }
        }
        let level = level(&end.reason);
        guarded(|| {
            if is_wanted(level) {
                let line = LogLine {
                    candidate: self.payload.last_asked(),
                    attempts: Some(self.payload.tried()),
                    ..LogLine::of(self, end, level, "call ended")
                };
                line.log();
            }
        });
    }

    /// A run has ended: logs it once all that wait were woken. If its one call is yet to
    /// be logged, that line may say the same: see [`log_left`](Self::log_left).
    pub(in crate::run) fn log_run(&self, end: &End, later: &mut PendingWakes<NodeState>) {
        let has_one_call = self.payload.is_one_call() && !self.is_idle();
        if self.payload.is_single() || has_one_call {
            return;
        }
        if let Some(line) = self.line_of_run(end) {
            later.act(Box::new(move || guarded(|| line.log())));
        }
    }

    /// The line of this run, if nothing else has logged its end and a subscriber wants it.
    fn line_of_run(&self, end: &End) -> Option<LogLine> {
        if !self.payload.begin_log() {
            return None;
        }
        let level = level(&end.reason);
        let mut line = None;
        guarded(|| {
            line = is_wanted(level).then(|| LogLine {
                turns: Some(self.turns()),
                ..LogLine::of(self, end, level, "run ended")
            });
        });
        line
    }
}

impl LogLine {
    fn of(node: &Node<NodeState>, end: &End, level: Level, message: &'static str) -> Self {
        let identity = node.nearest_run().payload.identity();
        Self {
            message,
            level,
            reason: end.reason.clone(),
            ended: end.kind,
            run: node.run_id(),
            session: identity.and_then(|known| known.session.clone()),
            candidate: None,
            attempts: None,
            turns: None,
            elapsed: end.at.saturating_sub(node.opened()),
            usage: node.usage(),
        }
    }

    fn log(&self) {
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: "tower_agent",
                    reason = self.reason.as_str(),
                    ended = self.ended.as_str(),
                    run = %self.run,
                    session = self.session.as_deref(),
                    candidate = self.candidate.as_deref(),
                    attempts = self.attempts,
                    turns = self.turns,
                    elapsed = ?self.elapsed,
                    input_tokens = self.usage.map(|usage| usage.input_tokens),
                    output_tokens = self.usage.map(|usage| usage.output_tokens),
                    "{}",
                    self.message
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

/// An operator wants to see each cut. A limit was set for the run: either the run or the
/// limit is wrong.
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

/// Calls end where bodies are dropped: a subscriber that panics there would take down
/// what has nothing to do with it.
fn guarded(log: impl FnOnce()) {
    // The log is what is broken.
    let _panicked = catch_unwind(AssertUnwindSafe(log));
}
