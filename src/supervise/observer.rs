use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;

use super::{event_stream::Stream, marks::ResponseMarks};
use crate::{
    body::{AnnouncedLength, has_body},
    llm::{
        dialect::{Dialect, Truncated},
        failure::{Failure, FailureClass},
    },
    run::{NotCounted, ResetOn, Run, TerminalReason},
};

/// What a layer must remember of the request to read its answer.
#[derive(Debug, Default)]
pub(crate) struct ResponseFacts {
    dialect: KnownDialect,
    head: bool,
}

/// The dialect that a request's path tells, else that which the program put into
/// its extensions.
#[inline]
pub(crate) fn dialect_of<B>(request: &Request<B>) -> Dialect {
    match Dialect::from_path(request.uri().path()) {
        Dialect::Any => request.extensions().get().copied().unwrap_or_default(),
        known => known,
    }
}

/// A [`Dialect`], small where it is one of ours.
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

/// What a frame was for this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A delta, or bytes of an answer that is no event stream.
    Progress,
    /// Bytes, but no progress: a ping, a prelude.
    Life,
    /// Bytes that a layer of ours put in: the upstream knows nothing of them.
    Inserted,
}

/// Reads along with a body: what was progress, whether it is complete, whether
/// it failed.
#[derive(Debug)]
pub struct Observer {
    mode: ObserverMode,
    passed: u64,
    announced: AnnouncedLength,
    failed: Option<FailureClass>,
    /// The strongest sign since it was last noted on the node.
    unnoted: Option<ResetOn>,
    /// How many heartbeats the run knows of.
    heartbeats: u64,
    /// The node knows what the answer said of itself.
    told: bool,
    /// What it says of its usage counts.
    counts: bool,
}

#[derive(Debug)]
enum ObserverMode {
    /// Every byte is progress.
    Bytes,
    /// The innermost layer that sees this stream.
    Judging(Box<Stream>),
    /// A layer further in judges it; with its mark of progress as last seen.
    Following(Box<Follower>),
}

#[derive(Debug)]
struct Follower {
    judged: ResponseMarks,
    progressed: u64,
    position: u64,
}

impl ResponseFacts {
    /// Whether an answer with this head is a stream of events that can be read.
    pub(crate) fn is_events(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        // A stream that is announced as empty has been cut all the same.
        has_body(self.head, status) && Stream::is_events(status, headers)
    }

    #[inline]
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        Self {
            dialect: dialect_of(request).into(),
            // A successful CONNECT has no body either, but no model call is one.
            head: request.method() == Method::HEAD,
        }
    }
}

/// What an answer is a failure of: as it was judged further in, which an error
/// under a good status is too, else by its status.
fn failed<B>(answer: &Response<B>) -> Option<FailureClass> {
    let judged = answer.extensions().get::<Failure>();
    let judged = judged.map(|failure| failure.class);
    judged.or_else(|| FailureClass::from_status(answer.status()))
}

impl Observer {
    /// Reads the head of an answer; the first layer to see a stream of events
    /// marks it as judged.
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
            told: false,
            counts: answer.extensions().get::<NotCounted>().is_none(),
        }
    }

    /// The answer belongs to this node, which may want to keep what it says.
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

    /// Trailers are handed on: nothing but the end comes after them.
    pub(crate) const fn trailers(&mut self) {
        self.announced = AnnouncedLength::NOTHING;
    }

    /// Stores what was seen since the last call on the node and above it.
    pub(crate) fn note(&mut self, run: &Run, now: std::time::Duration) {
        if let Some(sign) = self.unnoted.take() {
            run.node().record(sign, now);
            self.note_heartbeats(run);
        }
    }

    /// Those of a stream are counted where it is judged, once.
    fn note_heartbeats(&mut self, run: &Run) {
        if let ObserverMode::Judging(stream) = &self.mode {
            let count = stream.judged().heartbeats();
            let new = count - std::mem::replace(&mut self.heartbeats, count);
            if new > 0 {
                run.beat_of_stream(new);
            }
        }
    }

    /// The answer is over: what it said of itself goes to the node, from the
    /// layer that judges it, once.
    pub(crate) fn report(&mut self, run: &Run) {
        if let ObserverMode::Judging(stream) = &self.mode {
            if !std::mem::replace(&mut self.told, true) {
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

    /// Whether what the answer says of its usage counts.
    pub(crate) const fn counts(&self) -> bool {
        self.counts
    }

    /// The marks of the stream of events that this is, if it is one.
    pub(crate) fn judged(&self) -> Option<&ResponseMarks> {
        match &self.mode {
            ObserverMode::Bytes => None,
            ObserverMode::Judging(stream) => Some(stream.judged()),
            ObserverMode::Following(follower) => Some(&follower.judged),
        }
    }

    /// Why the model stopped, as the upstream put it.
    pub(crate) fn stop_reason(&self) -> Option<std::sync::Arc<str>> {
        self.judged().and_then(ResponseMarks::stop_reason)
    }

    /// Whether any content was seen yet.
    pub(crate) fn has_content(&self) -> bool {
        self.judged()
            .map_or(self.passed > 0, |judged| judged.commit().is_some())
    }

    /// Whether the stream has shown that it sends signs of life.
    pub(crate) fn has_heartbeats(&self) -> bool {
        self.judged().is_some_and(|judged| judged.heartbeats() > 0)
    }

    /// Whether the stream ends here without its terminator, if it ends here.
    /// Only the layer that judges it says so, and only once.
    ///
    /// # Errors
    ///
    /// If it does.
    pub(crate) fn finish(&self) -> Result<(), Truncated> {
        match &self.mode {
            ObserverMode::Judging(stream) => stream.finish(),
            _ => Ok(()),
        }
    }

    /// Whether all that was announced, or the terminator, was handed on.
    pub(crate) fn is_complete(&self) -> bool {
        // After its own error event an upstream has nothing more to say.
        let ends = |judged: &ResponseMarks| judged.terminator().or(judged.error());
        let terminator = self.judged().and_then(ends);
        terminator.is_some_and(|at| self.passed >= at) || self.announced.is_reached(self.passed)
    }

    /// What a body that was handed on whole amounts to.
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
