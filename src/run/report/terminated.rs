//! The error of a run that is over, its message to people, and the exit code of a program that
//! ends with it.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
    process::{ExitCode, Termination},
    sync::Arc,
    time::Duration,
};

use crate::{
    error::chain,
    run::{
        id::RunId,
        limit_kind::{CapWindow, LimitKind, TokenLimit},
        reason::{ReasonClass, TerminalReason},
        state::{CallState, FailedAttemptList, NodeState},
        step::Step,
        tree::{Node, NodeKind},
    },
};

/// The error of work that was cut or refused because a node of a run ended, or is closing.
///
/// A layer that gets the error of its own node's end returns it unchanged, so the caller sees the
/// first one. Other layers may have wrapped the error: [`TerminalReason::find`] walks the chain.
#[non_exhaustive]
#[derive(Clone)]
pub struct Terminated {
    /// The reason of the node's end; of a node that is closing, the reason of its closing.
    pub reason: TerminalReason,
    /// The id of the run, also if an attempt or tool below the run was cut.
    pub run: RunId,
    /// The kind of the node that was ended: run, call, attempt or tool.
    pub kind: NodeKind,
    /// How long the node that was ended had lasted; zero if the node is closing and has no end.
    pub elapsed: Duration,
    /// The length of the time limit, or of the silence, that ended the node. `None` if neither did.
    pub limit: Option<Duration>,
    /// The last step of the run; `None` if no step was reported.
    ///
    /// A step without a description replaces a described one only if it completes that step.
    pub last_step: Option<Step>,
    /// The first eight reasons that came for the ended node after its end, each once.
    ///
    /// The oldest stands first. The ended node is the node with the end that cut this work, and may
    /// stand above the node that did the work. If it is in another tree, the reasons are those of the
    /// node that did the work. The settlement of a node after its end adds no reason.
    pub also: Vec<TerminalReason>,
    pub(in crate::run) tree: u64,
    pub(in crate::run) origin: u64,
    pub(in crate::run) limit_kind: LimitKind,
    /// The loop that ended the run, as a clause that completes "it .."; `None` if none did.
    pub(in crate::run) cause: Option<Arc<str>>,
    pub(in crate::run) source: Option<Arc<dyn Error + Send + Sync>>,
    /// The list of the failed attempts of the node's call; `None` for an attempt, or if none
    /// failed.
    pub(crate) failed_attempts: Option<Arc<dyn FailedAttemptList>>,
}

impl Terminated {
    /// The message about this end, for people.
    ///
    /// The message names the cause, the time the node ran, the last step of its run, and the next
    /// thing to try. If attempts of the call failed, it says why no other followed. If a cap of an owner on open runs or on turns refused the request, the message
    /// names only the cap and the next thing to try.
    ///
    /// ```
    /// use tower_agent::{Run, Step, StepKind, TerminalReason};
    ///
    /// let run = Run::open();
    /// run.step(Step::new(StepKind::ToolExecution).detail("search"));
    /// run.end(TerminalReason::TurnCap);
    ///
    /// let message = run.terminated().unwrap().message();
    /// assert!(message.contains("its limit of turns (turn_cap_reached)"));
    /// assert!(message.contains("Last step: tool_execution (search)"));
    /// ```
    #[must_use]
    pub fn message(&self) -> String {
        // Most messages fit into this capacity, so that the text grows without another allocation.
        let mut text = String::with_capacity(192);
        // Writing to a string does not fail.
        let _ = write_message(&mut text, self);
        text
    }

    /// The cap on turns that ended the run; `None` if another cause ended it.
    #[must_use]
    pub const fn at_turn(&self) -> Option<u32> {
        match self.limit_kind {
            LimitKind::Turns(turns) => Some(turns),
            _ => None,
        }
    }

    /// Whether a cap on tokens or cost ended the node by an estimate: an upstream had not stated
    /// all the tokens by then.
    #[must_use]
    pub const fn is_estimated(&self) -> bool {
        match self.limit_kind {
            LimitKind::Tokens(limit) => limit.estimated,
            _ => false,
        }
    }

    /// The first [`Terminated`] in the chain of `error`, `error` itself included.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        // A boxed error is an error type of its own, and hides the type inside.
        chain(error).find_map(|error| {
            let boxed = || error.downcast_ref::<Box<Self>>().map(|boxed| &**boxed);
            let shared = || error.downcast_ref::<Arc<Self>>().map(|shared| &**shared);
            error.downcast_ref().or_else(boxed).or_else(shared)
        })
    }

    /// Stores, as the source of this error, the error that the layer received after the end.
    #[must_use]
    pub(crate) fn because(mut self, source: crate::error::BoxError) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl Terminated {
    pub(in crate::run) fn of(node: &Node<NodeState>) -> Self {
        let end = node.nearest_end();
        let origin = end.map_or_else(|| node.number(), |end| end.origin);
        let ended = node.path().find(|node| node.number() == origin);
        Self {
            reason: end
                .map(|end| &end.reason)
                // A closing node refuses work with the reason that it will end with.
                .or_else(|| node.refusal())
                .cloned()
                .unwrap_or(TerminalReason::Aborted),
            run: node.run_id(),
            kind: end.map_or_else(|| node.kind(), |end| end.kind),
            elapsed: end.map_or(Duration::ZERO, |end| end.lasted()),
            limit: end.and_then(|end| end.limit()),
            last_step: node.run_state().step(),
            also: ended.unwrap_or(node).also(),
            tree: node.payload.tree,
            origin,
            limit_kind: end
                .map(|end| end.limit_kind)
                .or_else(|| Some(node.refusal_limit()?.kind))
                .unwrap_or_default(),
            cause: end.and_then(|end| cause(node, &end.reason)),
            source: None,
            failed_attempts: node.payload.call().and_then(CallState::failed_attempts),
        }
    }

    /// The error of a request for a run that has ended at another replica.
    pub(crate) fn elsewhere(
        run: RunId,
        reason: TerminalReason,
        elapsed: Duration,
        limit: Option<Duration>,
        limit_kind: LimitKind,
    ) -> Self {
        Self {
            reason,
            run,
            kind: NodeKind::Run,
            elapsed,
            limit,
            last_step: None,
            also: Vec::new(),
            tree: 0,
            origin: 0,
            limit_kind,
            cause: None,
            source: None,
            failed_attempts: None,
        }
    }

    /// Whether this error reports the end that ended `node`: its own, or that of a node above it.
    /// False for the end of a node below `node`, and for an end in another tree.
    pub(crate) fn is_end_of(&self, node: &Node<NodeState>) -> bool {
        self.tree == node.payload.tree
            && node
                .nearest_end()
                .is_some_and(|end| end.origin == self.origin)
    }

    /// Whether this error comes from a node in the tree of `node`.
    pub(crate) fn is_kin_of(&self, node: &Node<NodeState>) -> bool {
        self.tree == node.payload.tree
    }
}

/// The loop that ended the nearest run, in words; `None` if another reason or run ended it.
fn cause(node: &Node<NodeState>, reason: &TerminalReason) -> Option<Arc<str>> {
    if *reason != TerminalReason::LoopDetected {
        return None;
    }
    let rare = node.run_state().rare_if_any()?;
    rare.actions.cause.get().cloned()
}

impl TerminalReason {
    /// The reason of the first [`Terminated`] in the chain of `error`.
    ///
    /// ```
    /// use tower_agent::{Run, TerminalReason};
    ///
    /// let run = Run::open();
    /// run.end(TerminalReason::Aborted);
    /// let wrapped = std::io::Error::other(run.terminated().unwrap());
    ///
    /// assert_eq!(TerminalReason::find(&wrapped), Some(&TerminalReason::Aborted));
    /// ```
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        Terminated::find(error).map(|terminated| &terminated.reason)
    }

    /// The outcome of an attempt that failed with `error`, as the label of a metric: the reason in
    /// the error, or `error` if it has none.
    #[cfg(feature = "metrics")]
    pub(crate) fn outcome_of(error: &crate::error::BoxError) -> &'static str {
        Self::find(&**error).map_or("error", Self::label)
    }
}

impl fmt::Display for Terminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "run {} ended with {} after {}",
            self.run,
            self.reason,
            HumanDuration(self.elapsed)
        )?;
        if let Some(limit) = self.limit {
            write!(f, ", its limit being {}", HumanDuration(limit))?;
        }
        match &self.last_step {
            Some(step) => write!(f, ", last step {step}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Terminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminated")
            .field("reason", &self.reason)
            .field("run", &self.run)
            .field("kind", &self.kind)
            .field("elapsed", &self.elapsed)
            .field("limit", &self.limit)
            .field("last_step", &self.last_step)
            .field("also", &self.also)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Error for Terminated {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|error| error as _)
    }
}

impl Terminated {
    /// The exit status for a process that ends because of this error.
    ///
    /// 0 if the run completed, 1 if the upstream failed, 122 at a limit, 124 at a clock (as
    /// `timeout(1)` does), 130 if the work was cancelled (as after Ctrl-C). A reason of the
    /// program goes by its class, and is never 0.
    ///
    /// The error is a [`Termination`]: its `report` prints a line on stderr that says why, and
    /// returns this status. A `main` that returns a `Result` with the error exits with 1 instead.
    ///
    /// ```no_run
    /// use std::process::{ExitCode, Termination};
    /// use tower_agent::Terminated;
    /// # async fn agent() -> Result<(), Terminated> { Ok(()) }
    ///
    /// #[tokio::main]
    /// async fn main() -> ExitCode {
    ///     match agent().await {
    ///         Ok(()) => ExitCode::SUCCESS,
    ///         Err(end) => end.report(),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.reason.class() {
            ReasonClass::Success if self.reason == TerminalReason::Completed => 0,
            ReasonClass::Success | ReasonClass::Failure => 1,
            ReasonClass::Limit => 122,
            ReasonClass::Timeout => 124,
            ReasonClass::Cancelled => 130,
        }
    }
}

/// Writes the reason and the message to stderr, and returns
/// [`exit_code`](Terminated::exit_code).
impl Termination for Terminated {
    fn report(self) -> ExitCode {
        // A failed write changes nothing: stderr may be closed.
        let _ = writeln!(io::stderr(), "{}", ExitLine(&self));
        ExitCode::from(self.exit_code())
    }
}

/// The line that a program prints at its exit: the reason and the message, with a space for each
/// control character, as a tool's name may have some.
struct ExitLine<'a>(&'a Terminated);

impl fmt::Display for ExitLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}: {}", self.0.reason, self.0.message());
        f.write_str(&text.replace(char::is_control, " "))
    }
}

/// Writes the message that a person reads about a cut node, or about a request that was refused.
///
/// After a refusal by an owner's cap on open runs or on turns, the message names only the cap and
/// the next thing to try: such a call has not run.
fn write_message(f: &mut impl fmt::Write, end: &Terminated) -> fmt::Result {
    let (subject, name) = (end.kind.as_str(), end.reason.as_str());
    match end.limit_kind {
        LimitKind::OpenRuns(runs) => {
            return write!(
                f,
                "The {subject} was refused: its caller has {runs} open runs, as many as it may \
                 ({name}). End one of them, or wait until one has ended."
            );
        }
        LimitKind::OwnerTurns(turns, window) => {
            return write!(
                f,
                "The {subject} was refused: its caller has had {turns} turns {}, as many as it may \
                 ({name}). {}.",
                window.text(),
                window.advice()
            );
        }
        LimitKind::Turns(turns) if end.kind != NodeKind::Run => {
            // The run is closing: its cap stops nothing that has begun.
            let s = if turns == 1 { "" } else { "s" };
            return write!(
                f,
                "The {subject} was refused: its run reached its limit of {turns} turn{s} ({name}). \
                 {}.",
                cause_and_advice(&end.reason).1
            );
        }
        _ => {}
    }
    let elapsed = HumanDuration(end.elapsed);
    let (cause, advice) = cause_and_advice(&end.reason);
    if end.reason == TerminalReason::Completed {
        write!(f, "The {subject} {cause} after {elapsed}")?;
    } else if end.reason == TerminalReason::Shutdown && end.elapsed.is_zero() {
        // The run drains: nothing was stopped.
        let what = match end.failed_attempts {
            Some(_) => "got no other attempt",
            None => "was refused",
        };
        write!(f, "The {subject} {what}: ")?;
        write_cause(f, end, cause)?;
        write!(f, " ({name})")?;
    } else {
        write!(f, "The {subject} was stopped after {elapsed}: ")?;
        write_cause(f, end, cause)?;
        write!(f, " ({name})")?;
    }
    f.write_str(". Last step: ")?;
    match &end.last_step {
        Some(step) => write!(f, "{step}")?,
        None => f.write_str("unknown")?,
    }
    let failed = end.failed_attempts.as_ref();
    if let Some(why) = failed.and_then(|failed| failed.why_none_followed()) {
        write!(f, ". No other attempt followed: {why}")?;
    }
    let advice = match end.limit_kind {
        LimitKind::Tokens(TokenLimit {
            owners: Some(window),
            ..
        }) => match window {
            CapWindow::Hour => "Wait before the next request",
            window => window.advice(),
        },
        LimitKind::Unhealthy => "Restart the upstream, then retry",
        LimitKind::Announced | LimitKind::Unheard => {
            "Retry with a longer timeout of the client, or simplify the request"
        }
        _ => advice,
    };
    write!(f, ". {advice}.")
}

/// Writes the cause of an end: a limit, else a loop, else the text `cause`.
///
/// A limit is written if it is one on time, turns, tokens or cost, and its size is known. The loop
/// is the one for which the run was ended. `cause` is the general text for the reason.
fn write_cause(f: &mut impl fmt::Write, end: &Terminated, cause: &str) -> fmt::Result {
    use LimitKind::{Announced, Lifeless, Tokens, Turns, Unhealthy, Unheard};
    use TerminalReason::{CallerDeadline, HardCeiling, Slow, StepTimeout, TokenCap, TurnCap};

    match (&end.reason, end.limit_kind, end.limit.map(HumanDuration)) {
        (StepTimeout, Lifeless, Some(limit)) => {
            write!(f, "its heartbeats stopped, for {limit} nothing came")
        }
        (StepTimeout, Unhealthy, Some(silent)) => {
            write!(
                f,
                "nothing came for {silent}, and the upstream failed its health probes"
            )
        }
        (StepTimeout, _, Some(limit)) => write!(f, "nothing happened for {limit}"),
        (Slow, LimitKind::Slow(floor), Some(limit)) => {
            let floor = floor.per_second();
            write!(f, "for {limit} it sent less than {floor} tokens a second")
        }
        (HardCeiling, _, Some(limit)) => write!(f, "it reached its time limit of {limit}"),
        (CallerDeadline, Announced, Some(limit)) => {
            write!(f, "its caller's own deadline of {limit} passed")
        }
        (CallerDeadline, Unheard, Some(limit)) => {
            write!(f, "nothing came for {limit}, the longest its caller waits")
        }
        (CallerDeadline, _, Some(limit)) => write!(f, "it used up the {limit} it was given"),
        (TurnCap, Turns(turns), _) => {
            let s = if turns == 1 { "" } else { "s" };
            write!(f, "it reached its limit of {turns} turn{s}")
        }
        (TokenCap, Tokens(limit), _) => match limit.owners {
            Some(window) => write!(f, "its caller used up, {}, its {limit}", window.text()),
            None => write!(f, "it used up its {limit}"),
        },
        _ => match &end.cause {
            Some(cause) => write!(f, "it {cause}"),
            None => f.write_str(cause),
        },
    }
}

/// The cause that each reason stands for, and advice on the next thing to try.
const fn cause_and_advice(reason: &TerminalReason) -> (&'static str, &'static str) {
    const ANEW: &str = "Start a new run to go on";
    const AGAIN: &str = "Retry, or simplify the request";
    const IF_WANTED: &str = "Send the request again if it is still wanted";
    const LOOK: &str = "Look at what failed, then start a new run";
    const CHANGE: &str = "Change the request, then start a new run";
    const STUCK: &str = "It may be stuck: retry, or simplify the request";
    const LARGER: &str = "Try a simpler request, or a larger limit";
    match reason {
        TerminalReason::Completed => ("completed", ANEW),
        TerminalReason::Failed(_) => ("the upstream failed", AGAIN),
        TerminalReason::StepTimeout => ("nothing happened for too long", STUCK),
        TerminalReason::Slow => ("it was too slow", "Retry, or choose another model"),
        TerminalReason::HardCeiling => ("it reached its time limit", LARGER),
        TerminalReason::CallerDeadline => ("it used up its time", AGAIN),
        TerminalReason::ClientDisconnect => ("the caller went away", IF_WANTED),
        TerminalReason::Aborted => ("it was aborted", ANEW),
        TerminalReason::Superseded => ("a newer run took its place", ANEW),
        TerminalReason::Shutdown => (
            "the server is shutting down",
            "Retry: another server may take it",
        ),
        TerminalReason::TurnCap => ("it reached its limit of turns", LOOK),
        TerminalReason::TokenCap => ("it used up its tokens", LOOK),
        TerminalReason::RetryBudget => ("one error came back too often", LOOK),
        TerminalReason::RunErrors => ("it made too many errors", LOOK),
        TerminalReason::ConsecutiveErrors => ("it made too many errors in a row", LOOK),
        TerminalReason::LoopDetected => ("it repeated the same call", CHANGE),
        TerminalReason::Stuck => ("it made no progress", CHANGE),
        TerminalReason::IdleCircuitOpen => (
            "the models stayed silent",
            "Retry later, or choose another model",
        ),
        TerminalReason::Custom(_) => ("the program ended it", ANEW),
    }
}

/// A duration, printed in minutes and seconds. Below one second it is in milliseconds; from one to
/// ten seconds it has tenths, unless they are zero.
struct HumanDuration(Duration);

impl fmt::Display for HumanDuration {
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
    fn a_duration_reads_in_minutes_and_seconds() {
        let cases = [
            (50, "50ms"),
            (1500, "1.5s"),
            (28_900, "28s"),
            (190_000, "3m 10s"),
        ];
        for (millis, text) in cases {
            assert_eq!(
                HumanDuration(Duration::from_millis(millis)).to_string(),
                text
            );
        }
    }
}
