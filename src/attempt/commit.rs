use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body;

use super::{Committed, MAX_ERROR};
use crate::{
    llm::failure::{Classifier, Failure, Redirected},
    supervise::{ResponseMarks, Stream},
};

/// How many events are held before an attempt counts as committed.
const MAX_EVENTS: u64 = 256;

/// How many bytes are held before an attempt counts as committed.
const MAX_HELD: usize = 256 * 1024;

/// What an answer is read for before it is handed on, or another is tried.
#[derive(Debug)]
pub(super) enum CommitRule {
    /// Nothing: it is served.
    Nothing,
    /// Nothing: its upstream is no place to get an answer from.
    Elsewhere(Redirected),
    /// A layer further in has read and judged it.
    Judged(Box<Failure>),
    /// The first content of a stream of events.
    Content(ResponseMarks),
    /// Its first byte.
    Byte,
    /// Its end.
    End,
    /// As much of a failure as tells which one it is.
    Failure,
}

/// How far an answer has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommitProgress {
    /// Not far enough.
    Going,
    Committed,
    /// The stream says that it failed.
    Failed,
    /// There is enough of it to judge it as a whole.
    Judge,
}

impl CommitRule {
    /// `elsewhere` if the answer comes from a candidate's own upstream.
    pub(super) fn of<B: Body>(answer: &Response<B>, elsewhere: bool) -> Self {
        let extensions = answer.extensions();
        let status = answer.status();
        // Before what a layer further in made of it: it may know of no candidate.
        if elsewhere && (status.is_informational() || status.is_redirection()) {
            return Self::Elsewhere(Redirected::new(status));
        }
        if let Some(failure) = extensions.get::<Failure>() {
            return Self::Judged(Box::new(failure.clone()));
        }
        if extensions.get::<Committed>().is_some() {
            return Self::Nothing;
        }
        if status.is_client_error() || status.is_server_error() {
            return Self::Failure;
        }
        if !status.is_success() || status == StatusCode::NO_CONTENT {
            return Self::Nothing;
        }
        if is_encoded(answer.headers()) {
            return Self::Byte;
        }
        match extensions.get::<ResponseMarks>() {
            // A layer in between may have made something else of it.
            Some(judged) if Stream::is_events(status, answer.headers()) => {
                Self::Content(judged.clone())
            }
            _ => Self::End,
        }
    }

    /// What `bytes` of the answer amount to; `ended` if nothing follows.
    pub(super) fn progress(&self, bytes: usize, ended: bool) -> CommitProgress {
        let reached = |mark: Option<u64>| mark.is_some_and(|at| bytes as u64 >= at);
        match self {
            Self::Nothing => CommitProgress::Committed,
            Self::Judged(_) | Self::Elsewhere(_) => CommitProgress::Failed,
            Self::Content(judged) if reached(judged.commit()) => CommitProgress::Committed,
            Self::Content(judged) if reached(judged.error()) => CommitProgress::Failed,
            Self::Content(judged) => {
                let over = ended || reached(judged.terminator());
                if over && stopped(judged).is_some() {
                    return CommitProgress::Failed;
                }
                let full = judged.events() >= MAX_EVENTS || bytes > MAX_HELD;
                if over || full {
                    CommitProgress::Committed
                } else {
                    CommitProgress::Going
                }
            }
            Self::Byte if ended || bytes > 0 => CommitProgress::Committed,
            Self::End if ended => CommitProgress::Judge,
            Self::End if bytes > MAX_HELD => CommitProgress::Committed,
            Self::Failure if ended || bytes >= MAX_ERROR => CommitProgress::Judge,
            Self::Byte | Self::End | Self::Failure => CommitProgress::Going,
        }
    }

    /// What a stream that says so failed with.
    pub(super) fn failure(&self, judgement: &Classifier) -> Option<Failure> {
        match self {
            Self::Judged(failure) => Some(Failure::clone(failure)),
            Self::Elsewhere(redirected) => Some(Failure::of_error(redirected)),
            Self::Content(judged) => {
                let told = judged.failure().map(|told| judgement.of_stream(told));
                told.or_else(|| stopped(judged))
            }
            _ => None,
        }
    }

    /// Whether the answer is a stream of events.
    pub(super) const fn streams(&self) -> bool {
        matches!(self, Self::Content(_))
    }
}

/// What a model failed with that stopped before it said anything: it refused,
/// or the request was too long for it.
fn stopped(judged: &ResponseMarks) -> Option<Failure> {
    Failure::of_stop(&judged.stop_reason()?)
}

pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    let encoding = headers.get(header::CONTENT_ENCODING);
    encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}
