use http::HeaderMap;
use http_body::Body;

use super::peek::Spent;
use crate::{
    error::{BoxError, chain},
    llm::{
        dialect::Truncated,
        failure::{Failure, FailureClass, IncompleteJson, Redirected, TransportError},
    },
    run::{NodeKind, ReasonClass, Run, TerminalReason, Terminated},
};

/// Whether the error is the end of that very node, or of one above it.
pub(super) fn is_end_of(error: &BoxError, own: &Run) -> bool {
    Terminated::find(&**error).is_some_and(|ended| ended.is_end_of(own))
}

/// What a try failed with that came to no answer, while `own` lives.
pub(super) fn broken(error: &BoxError, own: &Run, streams: bool) -> Failure {
    let Some(ended) = Terminated::find(&**error) else {
        return Failure::of_error(&**error);
    };
    Failure::new(match &ended.reason {
        // A tool of the program's: no other model would do better.
        _ if is_of_tool(ended, own) => FailureClass::Caller,
        // A node below ours ended: the tree tells, not the text.
        TerminalReason::Failed(class) if ended.is_kin_of(own) => *class,
        TerminalReason::StepTimeout if ended.is_kin_of(own) && streams => FailureClass::Silence,
        _ if ended.is_kin_of(own) => FailureClass::Deadline,
        // The end of a run that we do not know is a fault of its server, unless
        // it says that the request was too much.
        reason if reason.class() == ReasonClass::Limit => FailureClass::Caller,
        _ => FailureClass::Server,
    })
}

/// Whether a try that broke tells something of the upstream: a layer on this side
/// of it may have refused the request, for the program's own reasons.
pub(super) fn is_upstreams(error: &BoxError, own: &Run) -> bool {
    let ended = Terminated::find(&**error);
    let is_ours = |ended: &Terminated| ended.is_kin_of(own) && !is_of_tool(ended, own);
    ended.is_some_and(is_ours)
        || TransportError::is_in(&**error)
        || chain(&**error).any(|error| {
            error.is::<Truncated>() || error.is::<IncompleteJson>() || error.is::<Redirected>()
        })
}

/// Whether an attempt below `own` ended because nothing came of it for a window.
pub(super) fn is_silence(error: &BoxError, own: &Run) -> bool {
    Terminated::find(&**error).is_some_and(|ended| {
        let silent = ended.reason == TerminalReason::StepTimeout && ended.is_kin_of(own);
        silent && !is_of_tool(ended, own)
    })
}

/// Whether it is the end of a tool of our run, its compaction for one.
fn is_of_tool(ended: &Terminated, own: &Run) -> bool {
    ended.kind == NodeKind::Tool && ended.is_kin_of(own)
}

/// Whether the error says that our run is over in another tree.
pub(super) fn is_over_elsewhere(error: &BoxError, own: &Run) -> bool {
    Terminated::find(&**error).is_some_and(|ended| !ended.is_kin_of(own) && ended.run == own.id())
}

/// Whether an answer of an upstream that is believed says that this run is over.
pub(super) fn is_terminal(headers: &HeaderMap, own: &Run) -> bool {
    let run = headers.get("x-run-id").and_then(|id| id.to_str().ok());
    headers.contains_key("x-terminal-reason") && run.is_some_and(|run| run == own.id().to_string())
}

/// Why the run is over elsewhere.
pub(super) fn reason_elsewhere<B: Body>(spent: &Spent<B>) -> TerminalReason {
    match spent {
        Spent::Answer(answer) => {
            let name = answer.parts.headers.get("x-terminal-reason");
            let name = name.and_then(|name| name.to_str().ok()).unwrap_or_default();
            TerminalReason::named(name)
        }
        Spent::Error(error) => {
            Terminated::find(&**error).map_or(TerminalReason::Aborted, |ended| ended.reason.clone())
        }
    }
}

/// What a node comes to that ends with this error.
pub(super) fn reason_of(error: &BoxError, own: &Run) -> TerminalReason {
    match Terminated::find(&**error) {
        // The last attempt's own end is the call's.
        Some(ended) if ended.is_kin_of(own) => ended.reason.clone(),
        _ => crate::supervise::reason_of(error),
    }
}
