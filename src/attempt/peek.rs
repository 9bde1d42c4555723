//! Reads the beginning of an answer: up to the commit, or as much of a failure as classifies it.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;

use super::{Committed, MAX_ERROR, body::AttemptSupervision, policy::AttemptPolicy};
use crate::{
    body::HeldPrefix,
    error::{BoxError, chain},
    llm::{
        dialect::{Truncated, Usage},
        failure::{
            Classifier, Failure, FailureClass, IncompleteJson, JsonOutline, Redirected,
            TransportError, is_broken_json, names_json,
        },
    },
    run::{NodeKind, ReasonClass, Run, TerminalReason, Terminated},
    supervise::{ResponseMarks, Stream, SupervisedBody, SupervisedFuture},
};

/// How many frames are taken in one poll.
const TURN: usize = 128;

pin_project! {
    /// One try, from its call to its commit, or to what tells why it failed.
    #[project = TrialProj]
    #[derive(Debug)]
    pub(super) enum Trial<F, B>
    where
        B: Body,
    {
        Calling {
            #[pin]
            call: SupervisedFuture<F, AttemptSupervision>,
        },
        // None once it is over.
        Reading { reading: Option<ErrorReading<B>> },
    }
}

/// An answer that is being held.
#[derive(Debug)]
pub(super) struct ErrorReading<B: Body> {
    parts: Parts,
    body: SupervisedBody<B, AttemptSupervision>,
    held: HeldPrefix,
    goal: CommitRule,
}

/// What a try came to.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
#[derive(Debug)]
pub(super) enum AttemptOutcome<B: Body> {
    /// It serves the call.
    Served(PeekedAnswer<B>),
    Failed(Failure, Spent<B>),
    /// It failed without an answer; `streams` if it was a stream by then.
    Broken {
        error: BoxError,
        streams: bool,
    },
}

/// What is left of a try that failed.
#[derive(Debug)]
pub(super) enum Spent<B: Body> {
    Answer(Box<PeekedAnswer<B>>),
    Error(BoxError),
}

impl<B: Body> Spent<B> {
    /// What it broke with; an answer is dropped, and with it its attempt is over.
    pub(super) fn into_error(self) -> Option<BoxError> {
        match self {
            Self::Answer(answer) => {
                drop(answer);
                None
            }
            Self::Error(error) => Some(error),
        }
    }
}

/// The head of an answer and what was read of it.
#[derive(Debug)]
pub(super) struct PeekedAnswer<B: Body> {
    pub(super) parts: Parts,
    pub(super) held: HeldPrefix,
    pub(super) body: SupervisedBody<B, AttemptSupervision>,
    /// The beginning of a JSON document that was not held to its end.
    pub(super) document: Option<JsonOutline>,
}

impl<F, B: Body> Trial<F, B> {
    #[inline]
    pub(super) const fn new(call: SupervisedFuture<F, AttemptSupervision>) -> Self {
        Self::Calling { call }
    }

    /// The answer that is being held, if its head has come.
    pub(super) const fn reading(&self) -> Option<&ErrorReading<B>> {
        match self {
            Self::Reading { reading } => reading.as_ref(),
            Self::Calling { .. } => None,
        }
    }
}

impl<B: Body> ErrorReading<B> {
    /// Whether it is the answer of a failure.
    pub(super) const fn fails(&self) -> bool {
        matches!(self.goal, CommitRule::Failure)
    }
}

impl<F, B, E> Trial<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        chain: &impl AttemptPolicy,
        cx: &mut Context<'_>,
    ) -> Poll<AttemptOutcome<B>> {
        if let TrialProj::Calling { call } = self.as_mut().project() {
            let reading = match ready!(call.poll(cx)) {
                Ok(answer) => {
                    let goal = CommitRule::of(&answer, chain.is_elsewhere());
                    let (parts, body) = answer.into_parts();
                    let held = HeldPrefix::default();
                    Some(ErrorReading {
                        parts,
                        body,
                        held,
                        goal,
                    })
                }
                Err(error) => {
                    self.set(Self::Reading { reading: None });
                    let streams = false;
                    return Poll::Ready(AttemptOutcome::Broken { error, streams });
                }
            };
            self.set(Self::Reading { reading });
        }
        let TrialProj::Reading { reading: slot } = self.project() else {
            return Poll::Pending;
        };
        let Some(reading) = slot else {
            panic!("a try was polled after it was over");
        };
        let progress = match ready!(reading.poll(cx)) {
            Ok(progress) => progress,
            Err(error) => {
                let streams = reading.goal.streams();
                *slot = None;
                return Poll::Ready(AttemptOutcome::Broken { error, streams });
            }
        };
        Poll::Ready(match slot.take() {
            Some(reading) => reading.conclude(progress, chain.judgement()),
            None => panic!("a try was polled after it was over"),
        })
    }

    /// Nothing more is waited for: what is held is what there is.
    pub(super) fn give_up(
        self: Pin<&mut Self>,
        judgement: &Classifier,
    ) -> Option<AttemptOutcome<B>> {
        let TrialProj::Reading { reading } = self.project() else {
            return None;
        };
        let reading = reading.take()?;
        let progress = match reading.goal {
            CommitRule::Failure => CommitProgress::Judge,
            _ => CommitProgress::Committed,
        };
        Some(reading.conclude(progress, judgement))
    }
}

impl<B> ErrorReading<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<CommitProgress, BoxError>> {
        // Frames of nothing, always ready, must leave others a turn.
        for _ in 0..TURN {
            let ended = self.body.is_end_stream();
            let progress = self.goal.progress(self.held.len(), ended);
            if progress != CommitProgress::Going {
                return Poll::Ready(Ok(progress));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => self.held.push(frame),
                // The body says that it has ended, now.
                None => {}
                Some(Err(error)) if matches!(self.goal, CommitRule::Failure) => {
                    // The status tells enough; how it broke is the caller's.
                    self.held.broke(error);
                    return Poll::Ready(Ok(CommitProgress::Judge));
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn conclude(mut self, progress: CommitProgress, judgement: &Classifier) -> AttemptOutcome<B> {
        let Parts {
            status, headers, ..
        } = &self.parts;
        // What no caller may take for an answer, were it the last one.
        let mut unusable: Option<BoxError> = None;
        let mut document = None;
        let failure = match progress {
            CommitProgress::Failed => {
                if let CommitRule::Elsewhere(redirected) = self.goal {
                    unusable = Some(redirected.into());
                }
                self.goal.failure(judgement)
            }
            CommitProgress::Judge => {
                let whole = self.held.whole();
                if status.is_success() && !is_encoded(headers) {
                    self.body.report(Usage::of_answer(&whole));
                    if is_broken_json(headers, &whole) {
                        unusable = Some(IncompleteJson::new(whole.len() as u64).into());
                    }
                }
                judgement.of_answer(*status, headers, &whole, wall_clock(headers))
            }
            CommitProgress::Committed
                if matches!(self.goal, CommitRule::End) && names_json(headers) =>
            {
                document = Some(self.held.outline());
                None
            }
            CommitProgress::Going | CommitProgress::Committed => None,
        };
        if let (Some(failure), Some(error)) = (&failure, unusable) {
            Pin::new(&mut self.body).fail(failure.class);
            return AttemptOutcome::Failed(failure.clone(), Spent::Error(error));
        }
        let answer = PeekedAnswer {
            parts: self.parts,
            held: mem::take(&mut self.held),
            body: self.body,
            document,
        };
        match failure {
            Some(failure) => AttemptOutcome::Failed(failure, Spent::Answer(Box::new(answer))),
            None => AttemptOutcome::Served(answer),
        }
    }
}

/// The time of day, for dates until which an upstream asks to wait.
#[allow(
    clippy::disallowed_methods,
    reason = "a date on the wire has no other clock"
)]
fn wall_clock(headers: &HeaderMap) -> SystemTime {
    if headers.contains_key(header::RETRY_AFTER) {
        SystemTime::now()
    } else {
        SystemTime::UNIX_EPOCH
    }
}

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
