use bytes::Bytes;
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;

use super::{
    stream_marks::{MarkingReader, ResponseMarks},
    unary_tokens::UnaryTokens,
};
use crate::{
    body::{AnnouncedLength, has_body},
    llm::{
        dialect::{Dialect, GenAiOperation, Truncated},
        failure::{Failure, FailureClass},
    },
    run::{Nanos, NotCounted, ResetOn, Run, TerminalReason},
    wall_clock::wall_clock,
};

/// The facts of a request that a layer needs to read the response.
///
/// The facts are the dialect of the request, and whether the method is HEAD.
#[derive(Debug, Default)]
pub(crate) struct ResponseFacts {
    dialect: Dialect,
    head: bool,
}

/// Returns the dialect that a request's path names, or else the one in its extensions. Without
/// either, returns [`Dialect::Any`].
#[inline]
pub(crate) fn dialect_of<B>(request: &Request<B>) -> Dialect {
    match Dialect::from_path(request.uri().path()) {
        Dialect::Any => request.extensions().get().copied().unwrap_or_default(),
        known => known,
    }
}

/// The operation of a request, for its span and its metrics.
pub(crate) fn operation_of<B>(request: &Request<B>) -> &'static GenAiOperation {
    GenAiOperation::of(request.uri().path(), dialect_of(request))
}

/// Observes a response body: its progress, its completeness, and the failure that it reports.
#[derive(Debug)]
pub(crate) struct Observer {
    mode: ObserverMode,
    passed: u64,
    announced: AnnouncedLength,
    failed: Option<FailureClass>,
    /// The upstream's strongest sign of life that is not yet recorded on the node.
    unnoted: Option<ResetOn>,
    /// The number of the stream's heartbeats that were already added to the run's count.
    heartbeats: u64,
    /// Whether the response's usage and stop reason have been stored on the node.
    is_reported: bool,
    /// Whether the run adds the response's token usage to its own count. False if the response is
    /// [`NotCounted`], or if a [`UnaryTokens`] of this or of an inner layer adds the usage.
    counts: bool,
    /// Whether the response is [`NotCounted`]: no upstream is paid for it.
    is_free: bool,
}

#[derive(Debug)]
enum ObserverMode {
    /// The mode for a body that is no event stream: every byte is progress.
    Bytes,
    /// The mode for a body that is no event stream, in the layer that counts its tokens.
    Counting(Box<UnaryTokens>),
    /// The mode of the innermost layer that sees an event stream: it classifies each event.
    Classifying(Box<MarkingReader>),
    /// The mode of an outer layer, which reads the marks of the layer that classifies the events.
    ReadingMarks {
        marks: ResponseMarks,
        /// The offset behind the latest progress, as it was at the last `Pending`.
        progressed: u64,
    },
}

impl ObserverMode {
    // The function is out of line, because most answers that a layer observes are no streams.
    #[inline(never)]
    fn of_events(
        facts: ResponseFacts,
        extensions: &mut Extensions,
        run: &Run,
        counts: bool,
    ) -> Self {
        if let Some(marks) = extensions.get::<ResponseMarks>() {
            return Self::ReadingMarks {
                marks: marks.clone(),
                progressed: 0,
            };
        }
        let mut reader = Box::new(MarkingReader::new(facts.dialect));
        reader.begin(run, counts);
        extensions.insert(reader.marks().clone());
        Self::Classifying(reader)
    }
}

impl ResponseFacts {
    /// Whether a response with this head is a successful, uncompressed event stream.
    pub(crate) fn is_events(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        // An announced length of zero does not matter: an event stream without its
        // terminator is truncated.
        has_body(self.head, status) && MarkingReader::is_events(status, headers)
    }

    #[inline]
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        Self {
            dialect: dialect_of(request),
            // A successful CONNECT has no body either, but no model call is a CONNECT.
            head: request.method() == Method::HEAD,
        }
    }
}

/// Returns the failure class of a response, by its head; `None` if it is no failure.
///
/// A [`Failure`] that an inner layer put into the response's extensions counts before the
/// status: such a layer also finds an error under a good status.
fn failed<B>(answer: &Response<B>) -> Option<FailureClass> {
    let classified = answer.extensions().get::<Failure>();
    let classified = classified.map(|failure| failure.class);
    classified.or_else(|| FailureClass::from_status(answer.status()))
}

impl Observer {
    /// Reads the head of the answer to `run`, and creates the observer of its body.
    ///
    /// The first layer that sees an event stream classifies its events, and adds the stream's
    /// marks to the response's extensions. Layers further out follow these marks.
    #[inline]
    pub(crate) fn new<B: Body>(facts: ResponseFacts, answer: &mut Response<B>, run: &Run) -> Self {
        let announced = AnnouncedLength::of_response(facts.head, answer);
        let counts = answer.extensions().get::<NotCounted>().is_none();
        let mode = if facts.is_events(answer.status(), answer.headers()) {
            ObserverMode::of_events(facts, answer.extensions_mut(), run, counts)
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
            counts,
            is_free: !counts,
        }
    }

    /// Begins to count the tokens of an answer that is no event stream.
    ///
    /// The observer leaves out an answer that is failed, compressed or marked as [`NotCounted`]. It
    /// also leaves out one with tokens that a layer further in counts, and counts nothing if no run
    /// does.
    #[inline(never)]
    pub(super) fn count_answer<B>(&mut self, answer: &mut Response<B>, run: &Run) {
        let is_whole = matches!(self.mode, ObserverMode::Bytes) && self.failed.is_none();
        if !is_whole || !self.counts {
            return;
        }
        if let Some(counted) = UnaryTokens::of(answer, run) {
            self.counts = false;
            self.mode = counted.map_or(ObserverMode::Bytes, ObserverMode::Counting);
        }
    }

    /// Counts the data of a frame. The innermost layer of an event stream classifies its events.
    #[inline]
    pub(crate) fn frame(&mut self, data: &Bytes) {
        self.passed += data.len() as u64;
        let progress = match &mut self.mode {
            ObserverMode::Bytes => true,
            ObserverMode::Counting(tokens) => {
                tokens.push(data);
                true
            }
            ObserverMode::Classifying(reader) => reader.push(data).progress,
            // The layer that classifies the events also notes them on the node.
            ObserverMode::ReadingMarks { .. } => return,
        };
        if progress {
            self.unnoted = Some(ResetOn::Content);
        } else {
            self.unnoted = self.unnoted.or(Some(ResetOn::AnyByte));
        }
    }

    /// Times the stream's first chunk with content, if the last frame was that chunk.
    #[cfg(feature = "metrics")]
    #[inline]
    pub(crate) fn time_first_chunk(&mut self, run: &Run) {
        if let ObserverMode::Classifying(reader) = &mut self.mode {
            if reader.chunks.is_first() {
                reader.chunks.time(crate::run::nanos(run.now()));
            }
        }
    }

    /// Whether there was progress since the last [`note`](Self::note), or since the last
    /// [`wait`](Self::wait).
    ///
    /// In the layer that reads the events or bytes itself, only progress since the last `note`
    /// counts. In a layer further out, which reads that layer's marks, only progress since the last
    /// `wait` counts.
    pub(crate) fn has_progressed(&self) -> bool {
        match &self.mode {
            ObserverMode::ReadingMarks { marks, progressed } => *progressed != marks.progressed(),
            _ => self.unnoted == Some(ResetOn::Content),
        }
    }

    /// Prepares for [`has_progressed`](Self::has_progressed), at a `Pending`, after the
    /// [`note`](Self::note) of the frames so far.
    pub(crate) fn wait(&mut self) {
        if let ObserverMode::ReadingMarks { marks, progressed } = &mut self.mode {
            *progressed = marks.progressed();
        }
    }

    /// Marks the response as complete: the caller gets its trailers, which are its last frame.
    pub(crate) fn trailers(&mut self) {
        self.announced = AnnouncedLength::NOTHING;
    }

    /// Whether the upstream sent progress or a sign of life since the last [`note`](Self::note).
    /// Always false if a layer further in notes them.
    pub(crate) const fn has_news(&self) -> bool {
        self.unnoted.is_some()
    }

    /// Records at `now`, on the node and its ancestors, the signs of life since the last call.
    ///
    /// The method does nothing if no frame has come since then, or if a layer further in notes the
    /// frames.
    #[inline]
    pub(crate) fn note(&mut self, run: &Run, now: Nanos) {
        if let Some(sign) = self.unnoted.take() {
            #[cfg(feature = "metrics")]
            if let ObserverMode::Classifying(reader) = &mut self.mode {
                reader.chunks.time(now);
            }
            run.node().record_at(sign, now);
            self.note_heartbeats(run);
        }
    }

    /// Adds the stream's heartbeats since the last call to the run's count.
    ///
    /// Only the layer that classifies the stream's events adds its heartbeats, so that each
    /// counts once.
    fn note_heartbeats(&mut self, run: &Run) {
        if let ObserverMode::Classifying(reader) = &self.mode {
            let count = reader.marks().heartbeats();
            let new = count - std::mem::replace(&mut self.heartbeats, count);
            if new > 0 {
                run.beat_of_stream(new);
            }
        }
    }

    /// Stores usage, stop reason and partial text of the response on the node.
    ///
    /// The caller calls this method once no more of the response is read. Only the first call has
    /// an effect. The innermost layer that reads an event stream stores these values; of any other
    /// response only the usage is stored, by the layer that counts its tokens.
    #[inline]
    pub(crate) fn report(&mut self, run: &Run) {
        let reads = matches!(
            self.mode,
            ObserverMode::Classifying(_) | ObserverMode::Counting(_)
        );
        if reads && !self.is_reported {
            self.is_reported = true;
            self.report_answer(run);
        }
    }

    fn report_answer(&mut self, run: &Run) {
        if let ObserverMode::Counting(tokens) = &mut self.mode {
            tokens.report(run);
        }
        if let ObserverMode::Classifying(reader) = &self.mode {
            let marks = reader.marks();
            #[cfg(feature = "metrics")]
            run.store_chunks(reader.chunks);
            let usage = marks.usage().filter(|_| self.counts);
            run.report(usage, marks.stop_reason().as_ref());
            if let Some(partial) = reader.kept_text() {
                run.end_partial(partial);
            }
            self.note_heartbeats(run);
        }
    }

    /// Whether a usage found in the response is still to be added to the run's count.
    ///
    /// False if the response is marked as [`NotCounted`], or if this or an inner layer counts the
    /// usage already.
    pub(crate) const fn counts(&self) -> bool {
        self.counts
    }

    /// Whether the response costs nothing: it is marked as [`NotCounted`].
    pub(crate) const fn is_free(&self) -> bool {
        self.is_free
    }

    /// The marks of the event stream, set by this or an inner layer. `None` for other responses.
    pub(crate) fn marks(&self) -> Option<&ResponseMarks> {
        match &self.mode {
            ObserverMode::Bytes | ObserverMode::Counting(_) => None,
            ObserverMode::Classifying(reader) => Some(reader.marks()),
            ObserverMode::ReadingMarks { marks, .. } => Some(marks),
        }
    }

    /// The reason why the model stopped, in the upstream's words.
    pub(crate) fn stop_reason(&self) -> Option<std::sync::Arc<str>> {
        self.marks().and_then(ResponseMarks::stop_reason)
    }

    /// Whether a content event was read; of a response that is no event stream, any byte.
    pub(crate) fn has_content(&self) -> bool {
        self.marks()
            .map_or(self.passed > 0, |marks| marks.commit().is_some())
    }

    /// Whether the stream has sent a comment or a ping that counts as a heartbeat.
    pub(crate) fn has_heartbeats(&self) -> bool {
        self.marks().is_some_and(|marks| marks.heartbeats() > 0)
    }

    /// Checks whether the stream would be complete if it ended at this point.
    ///
    /// Only the layer that classifies the stream's events returns an error for a truncated one.
    ///
    /// # Errors
    ///
    /// The stream is [`Truncated`] if the terminator of its dialect is missing.
    pub(crate) fn finish(&self) -> Result<(), Truncated> {
        match &self.mode {
            ObserverMode::Classifying(reader) => reader.finish(),
            _ => Ok(()),
        }
    }

    /// Whether the caller has received the complete response.
    ///
    /// The response is complete with the body's announced length, the trailers, or the event that
    /// ends the stream.
    pub(crate) fn is_complete(&self) -> bool {
        // Nothing follows an upstream's own error event, so it ends the stream as a
        // terminator does.
        let ends = |marks: &ResponseMarks| marks.terminator().or(marks.error());
        let terminator = self.marks().and_then(ends);
        terminator.is_some_and(|at| self.passed >= at) || self.announced.is_reached(self.passed)
    }

    /// Whether the head of the response says that it is a failure.
    pub(super) const fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The terminal reason for the node of a body that ended without a transport error.
    ///
    /// The reason is `Failed` for an error event, a failed head or a missing terminator, else
    /// `Completed`.
    pub(crate) fn verdict(&self) -> TerminalReason {
        let failure = self.marks().and_then(ResponseMarks::failure);
        let class = failure.map(|failure| Failure::of_stream(failure, wall_clock()).class);
        let cut = || self.finish().err().map(|_| FailureClass::Transport);
        match class.or(self.failed).or_else(cut) {
            Some(class) => TerminalReason::Failed(class),
            None => TerminalReason::Completed,
        }
    }
}
