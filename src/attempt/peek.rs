use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use bytes::Bytes;
use http::{HeaderMap, Response, header, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;

use super::{
    commit::{CommitProgress, CommitRule, is_encoded},
    policy::AttemptPolicy,
    supervision::AttemptSupervision,
};
use crate::{
    body::HeldPrefix,
    error::BoxError,
    llm::{
        dialect::Usage,
        failure::{Classifier, Failure, IncompleteJson, JsonOutline, is_broken_json, names_json},
    },
    supervise::{SupervisedBody, SupervisedFuture},
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
