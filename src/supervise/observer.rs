use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;

use super::marks::{ResponseMarks, Stream};
use crate::{
    body::{AnnouncedLength, has_body},
    llm::{
        dialect::{Dialect, Truncated},
        failure::{Failure, FailureClass},
    },
    run::{NotCounted, ResetOn, Run, TerminalReason},
};

/// The facts of a request that a layer needs to read its response.
#[derive(Debug, Default)]
pub(crate) struct ResponseFacts {
    dialect: KnownDialect,
    head: bool,
}

/// Returns the dialect that the request's path shows, else the one in the request's
/// extensions.
#[inline]
pub(crate) fn dialect_of<B>(request: &Request<B>) -> Dialect {
    match Dialect::from_path(request.uri().path()) {
        Dialect::Any => request.extensions().get().copied().unwrap_or_default(),
        known => known,
    }
}

/// A [`Dialect`] in two words: only a custom one is boxed.
#[derive(Debug, Default)]
enum KnownDialect {
    #[default]
    Any,
    Chat,
    Responses,
    Anthropic,
    Other(Box<Dialect>),
}

impl From<Dialect> for KnownDialect {
    #[inline]
    fn from(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Any => Self::Any,
            Dialect::OpenAiChat => Self::Chat,
            Dialect::OpenAiResponses => Self::Responses,
            Dialect::Anthropic => Self::Anthropic,
            other @ Dialect::Custom(_) => Self::Other(Box::new(other)),
        }
    }
}

impl From<KnownDialect> for Dialect {
    fn from(known: KnownDialect) -> Self {
        match known {
            KnownDialect::Any => Self::Any,
            KnownDialect::Chat => Self::OpenAiChat,
            KnownDialect::Responses => Self::OpenAiResponses,
            KnownDialect::Anthropic => Self::Anthropic,
            KnownDialect::Other(other) => *other,
        }
    }
}

/// The meaning of a body's frame for the layer: progress, a sign of life, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// The frame is progress: a delta, or bytes of a response that is no event stream.
    Progress,
    /// The frame is a sign of life without progress, such as a ping or a prelude.
    Life,
    /// The frame is not the upstream's: another layer of this crate inserted it into the
    /// stream.
    Inserted,
}

/// The observer of a response body: of its progress, its completeness, and its failure.
#[derive(Debug)]
pub(crate) struct Observer {
    mode: ObserverMode,
    passed: u64,
    announced: AnnouncedLength,
    failed: Option<FailureClass>,
    /// The upstream's strongest sign of life that is not yet recorded on the node.
    unnoted: Option<ResetOn>,
    /// The number of the stream's heartbeats with which the run has been credited.
    heartbeats: u64,
    /// Whether the response's usage and stop reason have been stored on the node.
    is_reported: bool,
    /// Whether the run adds the response's token usage to its own count.
    counts: bool,
}

#[derive(Debug)]
enum ObserverMode {
    /// The mode for a body that is no event stream: every byte is progress.
    Bytes,
    /// The mode of the innermost layer that sees an event stream: the layer judges its
    /// events.
    Judging(Box<Stream>),
    /// The mode of an outer layer: an inner layer judges the stream, and this one follows
    /// its marks.
    Following(Box<Follower>),
}

#[derive(Debug)]
struct Follower {
    judged: ResponseMarks,
    progressed: u64,
    position: u64,
}

impl ResponseFacts {
    /// Whether a response with this head is a readable event stream.
    pub(crate) fn is_events(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        // An announced length of zero does not matter: an event stream without its
        // terminator is truncated.
        has_body(self.head, status) && Stream::is_events(status, headers)
    }

    #[inline]
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        Self {
            dialect: dialect_of(request).into(),
            // A successful CONNECT has no body either, but a model call never is one.
            head: request.method() == Method::HEAD,
        }
    }
}

/// The failure class of a response, if it is a failure.
///
/// The judgement of an inner layer counts before the status, because an inner layer also
/// finds an error under a good status.
fn failed<B>(answer: &Response<B>) -> Option<FailureClass> {
    let judged = answer.extensions().get::<Failure>();
    let judged = judged.map(|failure| failure.class);
    judged.or_else(|| FailureClass::from_status(answer.status()))
}

impl Observer {
    /// Reads the head of `answer`, and creates the observer of its body.
    ///
    /// The first layer that sees an event stream judges it, and adds its marks to the
    /// response's extensions.
    #[inline]
    pub(crate) fn new<B: Body>(facts: ResponseFacts, answer: &mut Response<B>) -> Self {
        let announced = AnnouncedLength::by(facts.head, answer);
        let mode = if facts.is_events(answer.status(), answer.headers()) {
            match answer.extensions().get::<ResponseMarks>() {
                Some(judged) => ObserverMode::Following(Box::new(Follower {
                    judged: judged.clone(),
                    progressed: 0,
                    position: 0,
                })),
                None => {
                    let stream = Box::new(Stream::new(facts.dialect.into()));
                    answer.extensions_mut().insert(stream.judged().clone());
                    ObserverMode::Judging(stream)
                }
            }
        } else {
            ObserverMode::Bytes
        };
        Self {
            mode,
            passed: 0,
            announced,
            failed: failed(answer),
            unnoted: None,
            heartbeats: 0,
            is_reported: false,
            counts: answer.extensions().get::<NotCounted>().is_none(),
        }
    }

    /// Binds the response to its node, which may keep the partial text.
    #[inline]
    pub(crate) fn begin(&mut self, run: &Run) {
        if let ObserverMode::Judging(stream) = &mut self.mode {
            if let Some(partial) = run.begin_partial() {
                stream.keep_text(partial);
            }
        }
    }

    #[inline]
    pub(crate) fn frame(&mut self, data: &Bytes) -> FrameKind {
        self.passed += data.len() as u64;
        let progress = match &mut self.mode {
            ObserverMode::Bytes => true,
            ObserverMode::Judging(stream) => stream.push(data).progress,
            ObserverMode::Following(follower) => {
                let latest = follower.judged.progressed();
                let position = follower.judged.position();
                let grown = std::mem::replace(&mut follower.position, position) != position;
                if !grown && !data.is_empty() {
                    return FrameKind::Inserted;
                }
                std::mem::replace(&mut follower.progressed, latest) != latest
            }
        };
        if progress {
            self.unnoted = Some(ResetOn::Content);
            FrameKind::Progress
        } else {
            self.unnoted = self.unnoted.or(Some(ResetOn::AnyByte));
            FrameKind::Life
        }
    }

    /// Notes that the caller gets the body's trailers, which are its last frame.
    pub(crate) const fn trailers(&mut self) {
        self.announced = AnnouncedLength::NOTHING;
    }

    /// Whether the upstream gave a sign of life since the last note.
    pub(crate) const fn has_news(&self) -> bool {
        self.unnoted.is_some()
    }

    /// Records the upstream's signs of life since the last note, on the node and its
    /// ancestors.
    pub(crate) fn note(&mut self, run: &Run, now: std::time::Duration) {
        if let Some(sign) = self.unnoted.take() {
            run.node().record(sign, now);
            self.note_heartbeats(run);
        }
    }

    /// Credits the run with the stream's heartbeats since the last note.
    ///
    /// Only the layer that judges the stream credits its heartbeats, so that each counts
    /// once.
    fn note_heartbeats(&mut self, run: &Run) {
        if let ObserverMode::Judging(stream) = &self.mode {
            let count = stream.judged().heartbeats();
            let new = count - std::mem::replace(&mut self.heartbeats, count);
            if new > 0 {
                run.beat_of_stream(new);
            }
        }
    }

    /// Stores usage and stop reason of the finished response on the node.
    ///
    /// Only the layer that judges the stream stores usage and stop reason, and only once.
    pub(crate) fn report(&mut self, run: &Run) {
        if let ObserverMode::Judging(stream) = &self.mode {
            if !std::mem::replace(&mut self.is_reported, true) {
                let judged = stream.judged();
                let usage = judged.usage().filter(|_| self.counts);
                run.report(usage, judged.stop_reason().as_ref());
                if let Some(partial) = stream.kept_text() {
                    run.end_partial(partial);
                }
                self.note_heartbeats(run);
            }
        }
    }

    /// Whether the run adds the response's token usage to its own count.
    pub(crate) const fn counts(&self) -> bool {
        self.counts
    }

    /// The published marks of the response, if it is an event stream.
    pub(crate) fn judged(&self) -> Option<&ResponseMarks> {
        match &self.mode {
            ObserverMode::Bytes => None,
            ObserverMode::Judging(stream) => Some(stream.judged()),
            ObserverMode::Following(follower) => Some(&follower.judged),
        }
    }

    /// The reason why the model stopped, in the upstream's words.
    pub(crate) fn stop_reason(&self) -> Option<std::sync::Arc<str>> {
        self.judged().and_then(ResponseMarks::stop_reason)
    }

    /// Whether the response has had any content yet.
    pub(crate) fn has_content(&self) -> bool {
        self.judged()
            .map_or(self.passed > 0, |judged| judged.commit().is_some())
    }

    /// Whether the stream has sent comments or pings.
    pub(crate) fn has_heartbeats(&self) -> bool {
        self.judged().is_some_and(|judged| judged.heartbeats() > 0)
    }

    /// Checks whether the stream would be complete if it ended at this point.
    ///
    /// Only the layer that judges the stream returns an error for a truncated one.
    ///
    /// # Errors
    ///
    /// The stream is [`Truncated`] if the terminator of its dialect is missing.
    pub(crate) fn finish(&self) -> Result<(), Truncated> {
        match &self.mode {
            ObserverMode::Judging(stream) => stream.finish(),
            _ => Ok(()),
        }
    }

    /// Whether the caller has received the body's announced length, or the stream's last
    /// event.
    pub(crate) fn is_complete(&self) -> bool {
        // Nothing follows an upstream's own error event, so it ends the stream as a
        // terminator does.
        let ends = |judged: &ResponseMarks| judged.terminator().or(judged.error());
        let terminator = self.judged().and_then(ends);
        terminator.is_some_and(|at| self.passed >= at) || self.announced.is_reached(self.passed)
    }

    /// The terminal reason for the node of a body that ended without a transport error.
    pub(crate) fn verdict(&self) -> TerminalReason {
        let failure = self.judged().and_then(ResponseMarks::failure);
        let class = failure.map(|failure| Failure::of_stream(failure).class);
        let cut = || self.finish().err().map(|_| FailureClass::Transport);
        match class.or(self.failed).or_else(cut) {
            Some(class) => TerminalReason::Failed(class),
            None => TerminalReason::Completed,
        }
    }
}
