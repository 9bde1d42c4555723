//! Reads the beginning of an answer up to the outcome of its attempt. The outcome is a commit or a
//! classified failure.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::{Body, Frame};
use pin_project_lite::pin_project;

use super::{Committed, MAX_ERROR, candidate::Candidate, policy::AttemptPolicy};
use crate::{
    body::HeldPrefix,
    error::{BoxError, chain},
    headers::{X_RUN_ID, X_TERMINAL_REASON},
    llm::{
        JsonOutline, WholeAnswer,
        dialect::{Dialect, StreamFailure, Truncated},
        failure::{Classifier, Failure, FailureClass, IncompleteJson, Redirected, TransportError},
        is_broken_json, is_empty, is_plain, is_suspect, names_json, unframed,
    },
    run::{NodeKind, ReasonClass, Run, RunPaused, TerminalReason, Terminated},
    supervise::{
        BodyForm, MarkingReader, PossibleStream, ResponseMarks, SupervisedBody, SupervisedFuture,
        name_stream,
    },
    wall_clock::wall_clock,
};

/// An extension of a failed answer that was read to its end: its body, also for outer layers.
#[derive(Clone, Debug)]
pub(super) struct WholeBody(pub(super) Bytes);

/// The most frames that one poll reads.
const MAX_FRAMES: usize = 128;

pin_project! {
    /// The future of one attempt, up to its commit or the classification of its failure.
    #[project = PeekProj]
    #[derive(Debug)]
    pub(super) enum Peek<F, B>
    where
        B: Body,
    {
        Calling {
            #[pin]
            call: SupervisedFuture<F>,
        },
        // The answer that is being read; `None` once the outcome was returned.
        Reading { answer: Option<PeekedAnswer<SupervisedBody<B>>> },
    }
}

/// The head of an answer, and its body, which is being read.
#[derive(Debug)]
pub(crate) struct PeekedAnswer<B> {
    pub(crate) parts: Parts,
    // The content is boxed once per attempt, because the attempt's layer and each layer further
    // out move the answer.
    pub(crate) content: Box<HeldBody<B>>,
    rule: CommitRule,
    // Whether content is held back, too, until the stream has shown its speed.
    holds_content: bool,
}

pin_project! {
    /// The body of an answer, and the part of it that was read and is held.
    #[project = HeldBodyProj]
    #[derive(Debug)]
    pub(crate) struct HeldBody<B> {
        pub(crate) held: HeldPrefix,
        #[pin]
        pub(crate) body: B,
        // Counts the brackets of a JSON answer that was committed before its end, to detect at the
        // end that it is incomplete; `None` for other answers.
        pub(super) document: Option<JsonOutline>,
    }
}

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

impl<F, B, E> Peek<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        own: &Run,
        policy: &impl AttemptPolicy,
        cx: &mut Context<'_>,
    ) -> Poll<AttemptOutcome<B>> {
        if let PeekProj::Calling { call } = self.as_mut().project() {
            let answer = match ready!(call.poll(cx)) {
                Ok(answer) => {
                    let candidate = policy.current_candidate();
                    let own_upstream = candidate.is_some_and(Candidate::has_own_upstream);
                    let mut answer = PeekedAnswer::new(answer, own_upstream);
                    answer.holds_content = policy.settings().hold.is_some();
                    Some(answer)
                }
                Err(error) => {
                    self.set(Self::Reading { answer: None });
                    return Poll::Ready(AttemptOutcome::of_error(error, false, own, policy));
                }
            };
            self.set(Self::Reading { answer });
        }
        let PeekProj::Reading { answer: slot } = self.project() else {
            return Poll::Pending;
        };
        let Some(answer) = slot else {
            panic!("polled after completion");
        };
        let progress = ready!(answer.poll(cx));
        let answer = slot.take();
        let outcome = answer.map(|answer| answer.conclude(progress, own, policy));
        outcome.map_or(Poll::Pending, Poll::Ready)
    }

    /// Stops reading the answer: classifies a failed answer from its held part, commits any other.
    /// `None` before the answer's head.
    pub(super) fn give_up(
        self: Pin<&mut Self>,
        own: &Run,
        policy: &impl AttemptPolicy,
    ) -> Option<AttemptOutcome<B>> {
        let PeekProj::Reading { answer } = self.project() else {
            return None;
        };
        let answer = answer.take()?;
        let progress = match answer.rule {
            CommitRule::Failure => PeekProgress::Classify,
            _ => PeekProgress::Commit,
        };
        Some(answer.conclude(Ok(progress), own, policy))
    }
}

impl<F, B: Body> Peek<F, B> {
    /// Whether the answer that is being read is a failed one; `None` before its head.
    pub(super) fn reads_failure(&self) -> Option<bool> {
        match self {
            Self::Reading { answer } => {
                let rule = &answer.as_ref()?.rule;
                Some(matches!(rule, CommitRule::Failure))
            }
            Self::Calling { .. } => None,
        }
    }
}

impl<B> PeekedAnswer<B> {
    /// Prepares to read an answer; `own_upstream` if it comes from a candidate's own upstream.
    pub(crate) fn new(answer: Response<B>, own_upstream: bool) -> Self {
        let rule = CommitRule::of(&answer, own_upstream);
        let (parts, body) = answer.into_parts();
        Self {
            parts,
            content: Box::new(HeldBody {
                held: HeldPrefix::default(),
                body,
                document: None,
            }),
            rule,
            holds_content: false,
        }
    }

    /// Makes a failed answer of its head and its whole body.
    pub(super) fn kept(parts: Parts, whole: Bytes) -> PeekedAnswer<SupervisedBody<B>>
    where
        B: Body,
    {
        let mut held = HeldPrefix::default();
        held.push(Frame::data(whole));
        PeekedAnswer {
            parts,
            content: Box::new(HeldBody {
                held,
                body: SupervisedBody::ended(),
                document: None,
            }),
            rule: CommitRule::Failure,
            holds_content: false,
        }
    }

    /// Whether the head of an answer shows a failure. It does if an inner layer has classified
    /// it as one, or for a 4xx or 5xx to which no inner layer has committed.
    pub(crate) fn is_failure(answer: &Response<B>) -> bool {
        let rule = CommitRule::of(answer, false);
        matches!(rule, CommitRule::Failure | CommitRule::Classified(_))
    }

    /// Classifies the answer as an inner layer did, else by head and held part. `None` if the
    /// answer is not a failure.
    pub(crate) fn classify(&mut self, classifier: &Classifier) -> Option<Failure> {
        if let CommitRule::Classified(failure) = &self.rule {
            return Some(Failure::clone(failure));
        }
        let whole = self.content.held.whole();
        self.classify_body(&whole, false, classifier)
    }

    /// Classifies the answer by its head and its body; `is_whole` if the body is known to be a
    /// complete JSON object.
    fn classify_body(
        &self,
        body: &[u8],
        is_whole: bool,
        classifier: &Classifier,
    ) -> Option<Failure> {
        let (status, headers) = (self.parts.status, &self.parts.headers);
        classifier.of_answer_at(status, headers, body, is_whole, &wall_clock)
    }
}

impl<B: Body> PeekedAnswer<SupervisedBody<B>> {
    /// Makes a plain answer of a stream that reported an error before its content: nothing of it
    /// was sent, so the caller can get the error's own status. Also of a failed answer with a body
    /// that is written as an event.
    #[cold]
    pub(super) fn state_stream_error(&mut self, failure: &Failure)
    where
        B: Unpin,
    {
        let headers = &self.parts.headers;
        if !self.parts.status.is_success() && is_plain(headers) {
            let whole = self.content.held.whole();
            if let Some(error) = unframed(&whole) {
                let body = StreamFailure::read(error).to_answer(Dialect::Any);
                self.replace(body, failure);
            }
            return;
        }
        if !MarkingReader::is_events(self.parts.status, headers) {
            return;
        }
        let Some(marks) = self.parts.extensions.remove::<ResponseMarks>() else {
            return;
        };
        let Some(event) = marks.failure().filter(|_| marks.commit().is_none()) else {
            self.parts.extensions.insert(marks);
            return;
        };
        self.replace(event.to_answer(marks.dialect()), failure);
    }

    /// Puts a JSON body in the place of a failed answer's own.
    fn replace(&mut self, body: Bytes, failure: &Failure)
    where
        B: Unpin,
    {
        Pin::new(&mut self.content.body).fail(failure.class);
        let mut held = HeldPrefix::default();
        held.push(Frame::data(body));
        self.content.held = held;
        let headers = &mut self.parts.headers;
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.remove(header::CONTENT_LENGTH);
        self.rule = CommitRule::Failure;
    }
}

impl<B> PeekedAnswer<B>
where
    B: Body<Data = Bytes, Error = BoxError> + Unpin,
{
    /// Reads the answer as far as its rule needs.
    ///
    /// The body must report its end by `is_end_stream` once it has returned `None`.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<PeekProgress, BoxError>> {
        // The loop is bounded: frames that are always ready and empty must not starve other tasks.
        let HeldBody { held, body, .. } = &mut *self.content;
        for _ in 0..MAX_FRAMES {
            let ended = body.is_end_stream();
            if let CommitRule::Unknown(marks) = &self.rule {
                if let Some(rule) = CommitRule::once_known(marks, ended, &mut self.parts) {
                    self.rule = rule;
                }
            }
            let holds = self.holds_content;
            if let Some(progress) = self.rule.progress(held.len(), ended, holds) {
                return Poll::Ready(Ok(progress));
            }
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) else {
                // The layer that measures the speed of the stream finds at a `Pending` that it is fast
                // enough.
                let progress = holds.then(|| self.rule.progress(held.len(), ended, holds));
                return match progress.flatten() {
                    Some(progress) => Poll::Ready(Ok(progress)),
                    None => Poll::Pending,
                };
            };
            match frame {
                Some(Ok(frame)) => held.push(frame),
                // Nothing to hold: after the end, `is_end_stream` is true.
                None => {}
                Some(Err(error)) if matches!(self.rule, CommitRule::Failure) => {
                    // The answer's status suffices to classify the failure. If the caller gets this
                    // answer, the error follows the held bytes.
                    held.broke(error);
                    return Poll::Ready(Ok(PeekProgress::Classify));
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<B> PeekedAnswer<SupervisedBody<B>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// Puts the body into the extensions, if it was read to its end.
    #[cold]
    fn share_whole_body(&mut self) {
        let HeldBody { held, body, .. } = &mut *self.content;
        if body.is_end_stream() && !held.has_error() {
            self.parts.extensions.insert(WholeBody(held.whole()));
        }
    }

    fn conclude(
        mut self,
        progress: Result<PeekProgress, BoxError>,
        own: &Run,
        policy: &impl AttemptPolicy,
    ) -> AttemptOutcome<B> {
        let classifier = &policy.settings().classifier;
        let headers = &self.parts.headers;
        // The error that replaces an answer which the caller must not get, even if no attempt
        // follows.
        let mut unusable: Option<BoxError> = None;
        let failure = match progress {
            Ok(PeekProgress::Failed) => match &self.rule {
                CommitRule::Classified(_) => self.classify(classifier),
                CommitRule::Redirect(redirected) => {
                    unusable = Some((*redirected).into());
                    Some(Failure::of_error(redirected))
                }
                CommitRule::Content(marks) => {
                    let event = marks
                        .failure()
                        .map(|event| classifier.of_stream(event, wall_clock()));
                    event.or_else(|| stop_failure(marks))
                }
                _ => None,
            },
            Ok(PeekProgress::Classify) => {
                let whole = self.content.held.whole();
                let is_read = self.parts.status.is_success() && is_plain(headers);
                // An answer that this walk reads is whole, so the classifier does not walk it again.
                let answer = is_read.then(|| WholeAnswer::read(&whole)).flatten();
                let mut failure = self.classify_body(&whole, answer.is_some(), classifier);
                let headers = &self.parts.headers;
                if is_read {
                    if let Some(answer) = &answer {
                        self.content.body.report(answer);
                    }
                    if failure.is_none() && is_suspect(answer.as_ref(), &whole) {
                        let is_nothing = is_empty(headers, &whole) && policy.asks_for_content();
                        failure = is_nothing
                            .then(|| classifier.of_nothing(headers, &whole, wall_clock()));
                    }
                    // `classify` finds a failure in each incomplete document, so an answer without
                    // a failure needs no second check.
                    if failure.is_some() && is_broken_json(headers, &whole) {
                        unusable = Some(IncompleteJson::new(whole.len() as u64).into());
                    }
                }
                if failure.is_some() {
                    self.share_whole_body();
                }
                failure
            }
            Ok(PeekProgress::Commit) => {
                if matches!(self.rule, CommitRule::End) && names_json(headers) {
                    let outline = JsonOutline::of(self.content.held.chunks());
                    self.content.document = Some(outline);
                }
                match &self.rule {
                    CommitRule::Content(marks) if is_empty_stream(marks) => policy
                        .asks_for_content()
                        .then(|| classifier.of_nothing(headers, b"", wall_clock())),
                    _ => None,
                }
            }
            Err(error) => {
                let is_stream = matches!(self.rule, CommitRule::Content(_));
                return AttemptOutcome::of_error(error, is_stream, own, policy);
            }
        };
        match (failure, unusable) {
            (None, _) => AttemptOutcome::Served(self),
            (Some(failure), None) => {
                AttemptOutcome::Failed(failure, FailedAttempt::Answer(Box::new(self)))
            }
            (Some(failure), Some(error)) => {
                Pin::new(&mut self.content.body).fail(failure.class);
                AttemptOutcome::Failed(failure, FailedAttempt::Error(error))
            }
        }
    }
}

/// The number of events at which an attempt commits to a stream without content, unless it awaits the
/// stream's speed: that is shown by more events than these if each is a token, and the floor is high.
const MAX_EVENTS: u64 = 256;

/// The number of held bytes above which an attempt commits.
const MAX_HELD: usize = 256 * 1024;

/// The rule that decides how far an answer is read before the attempt commits or fails.
#[derive(Debug)]
enum CommitRule {
    /// The answer is not read: the attempt commits at once.
    Nothing,
    /// The answer is not read: a candidate's own upstream redirects, which is a failure.
    Redirect(Redirected),
    /// The answer is not read: an inner layer has classified the failure.
    Classified(Box<Failure>),
    /// The answer is a stream of events. It is read to its first content or error event, its
    /// terminator or end, `MAX_EVENTS` events, or until more than `MAX_HELD` bytes are held. While the
    /// attempt awaits its speed, neither content nor a number of events commits.
    Content(ResponseMarks),
    /// The head of the answer names no event stream, but its first bytes may show that it is one.
    Unknown(ResponseMarks),
    /// The answer is read to its first byte or its end.
    Byte,
    /// The answer is read to its end, or until more than `MAX_HELD` bytes are held.
    End,
    /// The answer is a 4xx or 5xx, which is read to classify it. The reading stops at the end or an
    /// error, once `MAX_ERROR` bytes are held, or after `ERROR_TIME`.
    Failure,
}

/// The next step for an answer that was read far enough.
#[derive(Debug)]
pub(crate) enum PeekProgress {
    Commit,
    /// The rule has found that the answer is a failure, without the held bytes.
    Failed,
    /// The held bytes decide whether the answer is a failure.
    Classify,
}

impl CommitRule {
    /// The rule that decides how far an answer is read; `own_upstream` if it comes from a
    /// candidate's own upstream.
    fn of<B>(answer: &Response<B>, own_upstream: bool) -> Self {
        let extensions = answer.extensions();
        let status = answer.status();
        // A redirect is checked before the extensions: an inner layer may not know the
        // candidate.
        if own_upstream && (status.is_informational() || status.is_redirection()) {
            return Self::Redirect(Redirected::new(status));
        }
        if let Some(failure) = extensions.get::<Failure>() {
            return Self::Classified(Box::new(failure.clone()));
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
        if !is_plain(answer.headers()) {
            return Self::Byte;
        }
        match extensions.get::<ResponseMarks>() {
            // The marks alone do not suffice: a layer in between may have replaced the stream by
            // another body.
            Some(marks) if MarkingReader::is_events(status, answer.headers()) => {
                Self::Content(marks.clone())
            }
            _ => match extensions.get() {
                Some(PossibleStream(marks)) => Self::Unknown(marks.clone()),
                None => Self::End,
            },
        }
    }

    /// The rule for an answer of which the first bytes have shown what it is; `None` before. Names
    /// the stream in the head if it is one.
    #[cold]
    fn once_known(marks: &ResponseMarks, ended: bool, parts: &mut Parts) -> Option<Self> {
        match marks.form() {
            BodyForm::Events => {
                name_stream(&mut parts.headers, &mut parts.extensions, marks);
                Some(Self::Content(marks.clone()))
            }
            BodyForm::Unknown if !ended => None,
            BodyForm::Unknown | BodyForm::Other => Some(Self::End),
        }
    }

    /// The next step once `bytes` are held; `None` while the rule needs more.
    ///
    /// `ended` says that no byte follows the held ones, and `holds_content` that content does not
    /// commit before its speed is known.
    fn progress(&self, bytes: usize, ended: bool, holds_content: bool) -> Option<PeekProgress> {
        let reached = |mark: Option<u64>| mark.is_some_and(|at| bytes as u64 >= at);
        let waits = |marks: &ResponseMarks| holds_content && marks.awaits_speed();
        match self {
            Self::Nothing => Some(PeekProgress::Commit),
            Self::Classified(_) | Self::Redirect(_) => Some(PeekProgress::Failed),
            Self::Content(marks) if reached(marks.commit()) && !waits(marks) => {
                Some(PeekProgress::Commit)
            }
            Self::Content(marks) if reached(marks.error()) => Some(PeekProgress::Failed),
            Self::Content(marks) => {
                let over = ended || reached(marks.terminator());
                if over && stop_failure(marks).is_some() {
                    return Some(PeekProgress::Failed);
                }
                let is_full = bytes > MAX_HELD || marks.events() >= MAX_EVENTS && !waits(marks);
                (over || is_full).then_some(PeekProgress::Commit)
            }
            // As much white space is an answer of some kind.
            Self::Unknown(_) => (bytes > MAX_HELD).then_some(PeekProgress::Commit),
            Self::Byte => (ended || bytes > 0).then_some(PeekProgress::Commit),
            Self::End if ended => Some(PeekProgress::Classify),
            Self::End => (bytes > MAX_HELD).then_some(PeekProgress::Commit),
            Self::Failure => (ended || bytes >= MAX_ERROR).then_some(PeekProgress::Classify),
        }
    }
}

/// Whether a stream has ended as a whole one without content, and either its usage states that
/// there was none, or nothing at all came before the terminator.
fn is_empty_stream(marks: &ResponseMarks) -> bool {
    if marks.commit().is_some() {
        return false;
    }
    if marks.says_nothing() {
        return true;
    }
    if marks.terminator().or(marks.finished()).is_none() {
        return false;
    }
    match (marks.stop_reason(), marks.usage()) {
        (Some(reason), Some(usage)) => {
            matches!(&*reason, "stop" | "end_turn") && usage.output_tokens == 0
        }
        // A response that is complete has no reason for its end.
        (None, Some(usage)) => {
            marks.dialect() == Dialect::OpenAiResponses && usage.output_tokens == 0
        }
        (_, None) => false,
    }
}

/// The failure that the stop reason of a stream shows, such as a refusal. `None` if it shows none.
fn stop_failure(marks: &ResponseMarks) -> Option<Failure> {
    Failure::of_stop(&marks.stop_reason()?)
}

impl<B: Body> AttemptOutcome<B> {
    /// The outcome of an attempt that failed with `error`; `is_stream` if its head announced
    /// events.
    fn of_error(error: BoxError, is_stream: bool, own: &Run, policy: &impl AttemptPolicy) -> Self {
        let failure = classify_error(&error, own, is_stream || policy.streams());
        Self::Failed(failure, FailedAttempt::Error(error))
    }
}

/// Classifies the error of an attempt while `own`, the node above it, lives.
pub(super) fn classify_error(error: &BoxError, own: &Run, streams: bool) -> Failure {
    if chain(&**error).any(|error| error.is::<RunPaused>()) {
        // The run waits for its operator: no other model may serve it meanwhile.
        return Failure::new(FailureClass::Caller);
    }
    let Some(end) = Terminated::find(&**error) else {
        return Failure::of_error(&**error);
    };
    let mut failure = Failure::new(match &end.reason {
        // The end of a run in another tree is a failure of its server, unless the request
        // went over a limit there.
        reason if !end.is_kin_of(own.node()) => match reason.class() {
            ReasonClass::Limit => FailureClass::Caller,
            _ => FailureClass::Server,
        },
        // A tool of the program ended, for example a compaction: no other model would help.
        _ if end.kind == NodeKind::Tool => FailureClass::Caller,
        TerminalReason::Failed(class) => *class,
        TerminalReason::StepTimeout => FailureClass::StepTimeout,
        TerminalReason::Slow => FailureClass::Slow,
        _ => FailureClass::Deadline,
    });
    let is_stall = end.reason == TerminalReason::StepTimeout;
    failure.is_slow = is_stall && failure.class == FailureClass::StepTimeout && !streams;
    failure
}

impl<B: Body> FailedAttempt<B> {
    /// Returns the attempt's error. Drops a failed answer, and returns `None` for it.
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

    /// Whether the failure tells about the upstream. It does if it is an answer, an end of the
    /// attempt, a redirect, a cut body, or a transport error.
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

    /// Whether the attempt's error reports a step timeout in the tree of `own`. The timeout of a
    /// tool is left out.
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
                let elsewhere =
                    |end: &&Terminated| !end.is_kin_of(own.node()) && end.run == own.id();
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
    end.kind != NodeKind::Tool && end.is_kin_of(own.node())
}

/// The terminal reason of a node that ends with this error.
pub(super) fn reason_of(error: &BoxError, own: &Run) -> TerminalReason {
    match Terminated::find(&**error) {
        // The end of another node of this tree, such as the attempt, gives its reason.
        Some(end) if end.is_kin_of(own.node()) => end.reason.clone(),
        _ => crate::supervise::reason_of(error),
    }
}
