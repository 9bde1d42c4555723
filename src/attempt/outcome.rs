//! The outcome of one attempt: a commit, or a failure with its class and its reason.

use http_body::Body;

use super::{peek::PeekedAnswer, policy::AttemptPolicy};
use crate::{
    error::{BoxError, chain},
    headers::{X_RUN_ID, X_TERMINAL_REASON},
    llm::{
        dialect::Truncated,
        failure::{Failure, FailureClass, IncompleteJson, Redirected, TransportError},
    },
    run::{NodeKind, ReasonClass, Run, TerminalReason, Terminated},
    supervise::SupervisedBody,
};

/// The outcome of an attempt, from the part of its answer that was read.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
#[derive(Debug)]
pub(super) enum AttemptOutcome<B: Body> {
    /// The attempt serves the call, with this answer.
    Served(PeekedAnswer<SupervisedBody<B>>),
    Failed(Failure, FailedAttempt<B>),
}

/// The result of a failed attempt: an answer that is classified as a failure, or an error.
#[derive(Debug)]
pub(super) enum FailedAttempt<B: Body> {
    Answer(Box<PeekedAnswer<SupervisedBody<B>>>),
    Error(BoxError),
}

impl<B: Body> AttemptOutcome<B> {
    /// The outcome of an attempt that failed with `error`; `is_stream` if its head announced
    /// events.
    pub(super) fn of_error(
        error: BoxError,
        is_stream: bool,
        own: &Run,
        policy: &impl AttemptPolicy,
    ) -> Self {
        let failure = classify_error(&error, own, is_stream || policy.streams());
        Self::Failed(failure, FailedAttempt::Error(error))
    }
}

/// Classifies the error of an attempt while `own`, the node above it, lives.
pub(super) fn classify_error(error: &BoxError, own: &Run, streams: bool) -> Failure {
    let Some(end) = Terminated::find(&**error) else {
        return Failure::of_error(&**error);
    };
    let mut failure = Failure::new(match &end.reason {
        // The end of a run in another tree is a failure of its server, unless the request
        // went over a limit there.
        reason if !end.is_kin_of(own) => match reason.class() {
            ReasonClass::Limit => FailureClass::Caller,
            _ => FailureClass::Server,
        },
        // A tool of the program ended, for example a compaction: no other model would help.
        _ if end.kind == NodeKind::Tool => FailureClass::Caller,
        TerminalReason::Failed(class) => *class,
        TerminalReason::StepTimeout => FailureClass::StepTimeout,
        _ => FailureClass::Deadline,
    });
    let is_stall = end.reason == TerminalReason::StepTimeout;
    failure.is_slow = is_stall && failure.class == FailureClass::StepTimeout && !streams;
    failure
}

impl<B: Body> FailedAttempt<B> {
    /// Returns the attempt's error. For a failed answer it drops the body, which ends the attempt,
    /// and returns `None`.
    pub(super) fn into_error(self) -> Option<BoxError> {
        match self {
            Self::Answer(_) => None,
            Self::Error(error) => Some(error),
        }
    }

    fn end(&self) -> Option<&Terminated> {
        match self {
            Self::Answer(_) => None,
            Self::Error(error) => Terminated::find(&**error),
        }
    }

    /// Whether the upstream, or the connection to it, caused the failure.
    ///
    /// The error of a layer of the program that refused the request says nothing about the
    /// upstream.
    pub(super) fn is_of_upstream(&self, own: &Run) -> bool {
        let Self::Error(error) = self else {
            return true;
        };
        self.end().is_some_and(|end| is_of_attempt(end, own))
            || TransportError::is_in(&**error)
            || chain(&**error).any(|error| {
                error.is::<Truncated>() || error.is::<IncompleteJson>() || error.is::<Redirected>()
            })
    }

    /// Whether a node in the tree of `own`, except a tool, ended as `StepTimeout`.
    pub(super) fn is_step_timeout(&self, own: &Run) -> bool {
        self.end()
            .is_some_and(|end| end.reason == TerminalReason::StepTimeout && is_of_attempt(end, own))
    }

    /// The reason for which the run with the id of `own` has ended in another tree, if the error or
    /// the answer's headers report it.
    ///
    /// The headers of an answer count only if its candidate is `trusted`.
    pub(super) fn reason_elsewhere(&self, own: &Run, trusted: bool) -> Option<TerminalReason> {
        let answer = match self {
            Self::Answer(answer) => answer,
            Self::Error(_) => {
                let elsewhere = |end: &&Terminated| !end.is_kin_of(own) && end.run == own.id();
                return self.end().filter(elsewhere).map(|end| end.reason.clone());
            }
        };
        let headers = &answer.parts.headers;
        let run = headers.get(X_RUN_ID).and_then(|id| id.to_str().ok())?;
        let reason = headers.get(X_TERMINAL_REASON)?.to_str();
        (trusted && run == own.id().to_string())
            .then(|| TerminalReason::named(reason.unwrap_or_default()))
    }
}

/// Whether the end is that of a node in the tree of `own`, except a tool.
fn is_of_attempt(end: &Terminated, own: &Run) -> bool {
    end.kind != NodeKind::Tool && end.is_kin_of(own)
}

/// The terminal reason of a node that ends with this error.
pub(super) fn reason_of(error: &BoxError, own: &Run) -> TerminalReason {
    match Terminated::find(&**error) {
        // The end of the last attempt is the end of the call.
        Some(end) if end.is_kin_of(own) => end.reason.clone(),
        _ => crate::supervise::reason_of(error),
    }
}
